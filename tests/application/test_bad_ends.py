"""However a turn ends badly: what was half done is kept, whoever starts afresh is told, and in the end a person is asked."""

import time

import pytest

from steersman.application.effects.carry_out import carry_out
from steersman.application.effects.record_turn import RECORD_BYTES
from steersman.application.ports.agents import AgentFailed, AgentUpdate, SessionRequest, TurnEnd, TurnObserver
from steersman.domain.facts.assembly import AssemblyBlocked, StallDetected, SubtaskRedispatched
from steersman.domain.facts.bad_ends import WAYS
from steersman.domain.facts.child_run import (
    RunFailed,
    RunStarted,
    SessionOpened,
    TreeCommitted,
    TurnEnded,
    TurnInterrupted,
    TurnOpened,
)
from steersman.domain.process.dispatch import advance
from steersman.domain.process.effects import PauseWorker, ResumeWorker, next_effects
from steersman.tests.application.outside import Behaviour, Session, writes_its_part
from steersman.tests.application.service import Service, part

#: How long an agent may be silent that is there to be given up for it. Whoever works has a hundred times as long.
STALL_SECONDS = 0.3
PATIENCE_SECONDS = 100 * STALL_SECONDS
TURN_BYTES = 50_000
WORDS = "I was about to write the rest."


def fails(code: str, message: str = "status 3", *, retryable: bool = True) -> Behaviour:
    """Return an agent that writes half of its part, says something, and fails."""

    def behave(session: Session, prompt: str, observer: TurnObserver) -> None:
        observer.update(AgentUpdate(kind="message", text=WORDS))
        session.files["half.txt"] = "half"
        raise AgentFailed(code, message, retryable=retryable)

    return behave


def ends(stop_reason: str) -> Behaviour:
    """Return an agent that writes half of its part, says something, and ends its turn for this reason."""

    def behave(session: Session, prompt: str, observer: TurnObserver) -> TurnEnd:
        observer.update(AgentUpdate(kind="message", text=WORDS))
        session.files["half.txt"] = "half"
        return TurnEnd(stop_reason=stop_reason, message=WORDS)

    return behave


def stalls(session: Session, prompt: str, observer: TurnObserver) -> TurnEnd:
    observer.update(AgentUpdate(kind="message", text=WORDS))
    session.files["half.txt"] = "half"
    return session.hang(heeds_cancel=False)


def floods(session: Session, prompt: str, observer: TurnObserver) -> None:
    observer.update(AgentUpdate(kind="message", text=WORDS))
    session.files["half.txt"] = "half"
    for _ in range(TURN_BYTES // RECORD_BYTES + 1):
        observer.update(AgentUpdate(kind="tool_call", call_id="c", title="flood", text="{}"))
    raise AssertionError("nobody ended the flood")


#: Every way that is tried again, how an agent takes it, and whether half of its part is kept.
AGAIN: dict[str, tuple[Behaviour, bool]] = {
    "agent_exited": (fails("agent_exited"), True),
    "agent_protocol_error": (fails("agent_protocol_error"), True),
    "agent_turn_failed": (fails("agent_turn_failed"), True),
    "agent_start_timeout": (fails("agent_start_timeout"), True),
    "agent_stall_timeout": (stalls, True),
    "agent_turn_cancelled": (ends("cancelled"), True),
    "agent_turn_limit": (ends("max_tokens"), True),
    "agent_disk_limit": (fails("agent_disk_limit"), False),
    "agent_output_limit": (floods, True),
}
#: What gets no better by being done again.
ONCE: dict[str, tuple[Behaviour, bool]] = {
    "agent_not_installed": (fails("agent_not_installed", retryable=False), True),
    "agent_not_configured": (fails("agent_not_configured", retryable=False), True),
    "agent_login_required": (fails("agent_login_required", retryable=False), True),
    "agent_refused": (ends("refusal"), True),
    "agent_processes_unruly": (fails("agent_processes_unruly", retryable=False), False),
    "of_an_adapter": (fails("of_an_adapter"), True),
}


def first(bad: Behaviour) -> Behaviour:
    """Return an agent that ends badly the first time, and after that does its part."""
    done: list[str] = []

    def behave(session: Session, prompt: str, observer: TurnObserver) -> TurnEnd | str | None:
        if done:
            return writes_its_part(session, prompt, observer)
        done.append(session.request.run_id)
        return bad(session, prompt, observer)

    return behave


def started(behave: Behaviour, *, silences: int = 0) -> Service:
    """A service with one part, whose agents behave like this, and in their first so many turns fall silent."""
    service = Service()
    service.shop.stall_seconds = STALL_SECONDS if silences else PATIENCE_SECONDS
    service.shop.turn_bytes = TURN_BYTES
    service.start(part("One"))

    def behaves(session: Session, prompt: str, observer: TurnObserver) -> TurnEnd | str | None:
        if len(service.agents.prompts) >= silences:
            service.shop.stall_seconds = PATIENCE_SECONDS
        return behave(session, prompt, observer)

    service.agents.behave = behaves
    return service


def children(service: Service) -> list[str]:
    return [event.run_id for event in service.told(RunStarted)]


def reason(service: Service) -> str:
    """What a person who is asked is told about the part."""
    (missing,) = service.told(AssemblyBlocked)[-1].ineligible_subtasks
    return str(missing.reason)


def test_every_way_of_the_policy_is_tried_here() -> None:
    elsewhere = {"agent_interrupted_too_often", "commit_failed_persistent", "branch_moved"}
    assert set(WAYS) - elsewhere == set(AGAIN) | (set(ONCE) - {"of_an_adapter"})
    reasons = [way.reason for way in WAYS.values() if way.then == "start afresh"]
    assert all(reasons)
    assert len(set(reasons)) == len(reasons)


@pytest.mark.parametrize("code", AGAIN)
def test_who_starts_afresh_has_what_was_half_done_and_is_told_all_about_it(code: str) -> None:
    bad, is_kept = AGAIN[code]
    service = started(first(bad), silences=code == "agent_stall_timeout")
    assert service.drive().status == "awaiting_review"
    old, new = children(service)
    (failed,) = service.told(RunFailed)
    assert (failed.error_code, failed.retryable) == (code, True)
    (again,) = service.told(SubtaskRedispatched)
    assert (again.prior_child_run_id, again.attempt, again.max_attempts) == (old, 1, 3)
    assert again.reason == WAYS[code].reason
    (prompt,) = service.agents.prompted(new)
    assert "# Your part: One" in prompt
    assert "Yours is attempt 2 of 4" in prompt
    assert f"{WAYS[code].said} ({code})" in prompt
    assert f"> It said last: {WORDS}" in prompt or code == "agent_stall_timeout"
    assert ("What was half done is in your worktree" in prompt) == is_kept
    assert ("Nothing of it is in your worktree" in prompt) != is_kept
    service.approve()
    service.drive()
    assert ("half.txt" in service.merged()) == is_kept


@pytest.mark.parametrize("code", [code for code, (_, is_kept) in AGAIN.items() if is_kept])
def test_half_done_work_is_a_commit_of_its_own_on_the_childs_branch_that_says_so(code: str) -> None:
    service = started(first(AGAIN[code][0]), silences=code == "agent_stall_timeout")
    service.drive()
    old = service.run.children[children(service)[0]]
    kept = service.told(TreeCommitted)[0]
    assert (kept.unfinished, kept.has_changes) == (True, True)
    assert old.head is not None
    assert service.git.branches[old.branch] == kept.commit.commit == old.head.commit
    message = service.git.messages[kept.commit.commit]
    assert message.startswith("Unfinished: One\n")
    assert f"\nSteersman-Unfinished: {code}\n" in message


@pytest.mark.parametrize("code", AGAIN)
def test_what_ends_badly_every_time_is_tried_four_times_and_then_a_person_is_asked_with_the_cause(code: str) -> None:
    service = started(AGAIN[code][0], silences=4 if code == "agent_stall_timeout" else 0)
    run = service.drive()
    assert run.plan is not None
    assert (run.plan.status, run.plan.subtasks[1].status) == ("assembly_blocked", "failed")
    assert [event.error_code for event in service.told(RunFailed)] == [code] * 4
    assert [event.attempt for event in service.told(SubtaskRedispatched)] == [1, 2, 3]
    assert reason(service) == str(service.told(RunFailed)[-1].message)
    assert len(service.told(StallDetected)) == (4 if code == "agent_stall_timeout" else 0)
    assert [n for n in (1, 2, 3, 4) if f"attempt {n} of 4" in service.agents.prompts[-1][1]] == [4]


@pytest.mark.parametrize("code", ONCE)
def test_what_gets_no_better_is_not_repeated_and_a_person_is_asked_at_once(code: str) -> None:
    bad, is_kept = ONCE[code]
    service = started(bad)
    run = service.drive()
    assert run.plan is not None
    assert run.plan.status == "assembly_blocked"
    assert len(children(service)) == 1
    assert not service.told(SubtaskRedispatched)
    assert [event.error_code for event in service.told(RunFailed)] == [code]
    assert WORDS in reason(service)
    assert bool([event for event in service.told(TreeCommitted) if event.unfinished]) == is_kept


def test_a_person_who_sets_it_going_again_does_not_keep_the_cause_from_the_next_author() -> None:
    service = started(first(ONCE["agent_refused"][0]))
    service.drive()
    service.steer("r1", "redirect", words="You may.")
    assert service.drive().status == "awaiting_review"
    prompt = service.agents.prompts[-1][1]
    assert prompt.count("You may.") == 1
    assert "(agent_refused)" in prompt
    assert WORDS in prompt
    assert "What was half done is in your worktree" in prompt


def test_an_agent_that_did_nothing_leaves_no_commit() -> None:
    def dies(session: Session, prompt: str, observer: TurnObserver) -> None:
        raise AgentFailed("agent_exited", "status 3", retryable=True)

    service = started(first(dies))
    service.drive()
    assert [event.unfinished for event in service.told(TreeCommitted)] == [False]
    assert "Nothing of it is in your worktree" in service.agents.prompts[-1][1]


def test_an_agent_that_cannot_be_started_once_is_started_again() -> None:
    service = started(writes_its_part)
    opened, failures = service.agents.open, ["agent_start_timeout"]

    def open_at_last(request: SessionRequest) -> Session:
        if failures:
            raise AgentFailed(failures.pop(), "it was not ready", retryable=True)
        return opened(request)

    service.agents.open = open_at_last
    assert service.drive().status == "awaiting_review"
    assert [event.error_code for event in service.told(RunFailed)] == ["agent_start_timeout"]


def test_half_done_work_that_cannot_be_committed_keeps_nobody_from_starting_afresh() -> None:
    service = started(first(fails("agent_exited")))
    service.git.failing_commits = 1
    assert service.drive().status == "awaiting_review"
    assert "Nothing of it is in your worktree" in service.agents.prompts[-1][1]


def test_an_end_that_is_no_word_of_the_protocol_is_no_end_of_the_work() -> None:
    service = started(first(ends("bored")))
    assert service.drive().status == "awaiting_review"
    assert [event.error_code for event in service.told(RunFailed)] == ["agent_protocol_error"]


def test_how_the_agent_ended_its_turn_is_on_its_feed_before_the_failure() -> None:
    service = started(first(ends("cancelled")))
    service.drive()
    old = children(service)[0]
    told = [fact.event for fact in service.facts if fact.run == old and fact.stream == f"run/{old}"]
    (ended,) = [event for event in told if isinstance(event, TurnEnded)]
    assert ended.stop_reason == "cancelled"
    assert isinstance(told[-1], RunFailed)


def test_a_bad_end_whose_fact_was_lost_is_taken_up_like_any_crash() -> None:
    service = started(first(fails("agent_exited")))
    # The run's start is behind it: a plan, a place, a session, a turn, its first sign; then the end.
    service.log.fault_at = 7
    assert service.drive().status == "awaiting_review"
    assert not service.told(RunFailed) or len(children(service)) == 2
    service.approve()
    service.drive()
    assert service.merged()["half.txt"] == "half"


def test_a_crash_before_the_branch_holds_the_half_done_work_loses_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    service = started(first(fails("agent_exited")))
    point = service.git.point_branch

    def dies(*args: object) -> None:
        if [event for event in service.told(TreeCommitted) if event.unfinished]:
            monkeypatch.undo()
            raise KeyboardInterrupt
        point(*args)

    monkeypatch.setattr(service.git, "point_branch", dies)
    with pytest.raises(KeyboardInterrupt):
        service.drive()
    service.restart()
    assert service.drive().status == "awaiting_review"
    old = service.run.children[children(service)[0]]
    assert old.head is not None
    assert service.git.branches[old.branch] == old.head.commit
    assert service.git.files(service.run.assembly.head.commit)["half.txt"] == "half"


def test_a_redirect_that_meets_a_bad_end_goes_on_with_the_same_child() -> None:
    def is_redirected(session: Session, prompt: str, observer: TurnObserver) -> TurnEnd | str | None:
        service.command("d", "redirect", 1, words="Go left.")
        while service.shop.decide("r", lambda run: advance(run, service.clock.now())):
            pass
        return ends("max_tokens")(session, prompt, observer)

    service = started(first(is_redirected))
    assert service.drive().status == "awaiting_review"
    assert len(children(service)) == 1
    assert not service.told(RunFailed)
    assert service.directive("d").status == "applied"


def test_a_cancel_of_ours_that_an_agent_reads_after_the_resume_is_no_end() -> None:
    def carry(kind: type[PauseWorker] | type[ResumeWorker]) -> None:
        while service.shop.decide("r", lambda run: advance(run, service.clock.now())):
            pass
        for effect in next_effects(service.run):
            if isinstance(effect, kind):
                carry_out(effect, service.shop)

    def is_paused(session: Session, prompt: str, observer: TurnObserver) -> TurnEnd | str | None:
        service.command("p", "pause", 1)
        carry(PauseWorker)
        assert service.child(1).status == "paused"
        service.command("c", "resume", 1)
        carry(ResumeWorker)
        assert session.cancelled.is_set()
        return ends("cancelled")(session, prompt, observer)

    service = started(first(is_paused))
    service.wait_only(pause=0.0)
    assert service.drive().status == "awaiting_review"
    assert len(children(service)) == 1
    assert len(service.told(TurnOpened)) == len(service.told(SessionOpened)) == 1
    assert [(e.found_in_history, e.session_kept) for e in service.told(TurnInterrupted)] == [(True, True)]
    assert "You were interrupted" in service.agents.prompts[-1][1]
    assert f"{service.child(1).run_id[:8]}.txt" in service.git.files(service.child(1).head.commit)


def test_what_an_agent_writes_to_its_standard_error_is_no_sign_of_life() -> None:
    def chatters(session: Session, prompt: str, observer: TurnObserver) -> TurnEnd:
        until = time.monotonic() + 60.0
        while not session.killed.wait(STALL_SECONDS / 10):
            assert time.monotonic() < until, "nobody noticed"
            observer.update(AgentUpdate(kind="stderr", text="still here\n"))
        raise AgentFailed("agent_exited", "it was killed", retryable=True)

    service = started(first(chatters), silences=1)
    assert service.drive().status == "awaiting_review"
    assert [event.error_code for event in service.told(RunFailed)] == ["agent_stall_timeout"]
