"""What follows when a child's turn ends badly, as decisions: one policy, within one budget, and told to whoever is next."""

import pytest

from steersman.domain.facts.assembly import AssemblyBlocked, SubtaskRedispatched
from steersman.domain.facts.bad_ends import OTHER, STOP_REASONS, WAYS, BadEnd, code_of, way_of
from steersman.domain.facts.child_run import (
    MAX_INTERRUPTIONS,
    RevisionHandedOver,
    RunFailed,
    TreeCommitted,
    TurnInterrupted,
)
from steersman.domain.git import Commit
from steersman.domain.work import child_ends, turns
from steersman.domain.work.turns import InterruptedTooOften, Overtaken
from steersman.tests.domain.fleet import Fleet, part

AGAIN = sorted(code for code, way in WAYS.items() if way.then == "start afresh")
ONCE = sorted(code for code, way in WAYS.items() if way.then == "ask a person")


def end_badly(fleet: Fleet, code: str, unfinished: Commit | None = None) -> None:
    """The turn of the only child ends like this."""
    end = BadEnd(code=code, message="status 3\nIt said last: ```rehearsal")
    fleet.put(child_ends.end_badly(fleet.run, fleet.child_id(1), fleet.now, end, unfinished))
    fleet.settle()


@pytest.mark.parametrize("code", AGAIN)
def test_the_part_starts_afresh_within_its_budget_and_then_has_failed(code: str) -> None:
    fleet = Fleet(part("One"))
    for attempt in (1, 2, 3):
        fleet.start(1)
        end_badly(fleet, code)
        assert (fleet.subtask(1).status, fleet.subtask(1).recovery_attempts) == ("dispatched", attempt)
    fleet.start(1)
    end_badly(fleet, code)
    assert (fleet.subtask(1).status, fleet.subtask(1).recovery_attempts) == ("failed", 3)
    assert {e.reason for e in fleet.told(SubtaskRedispatched) if isinstance(e, SubtaskRedispatched)} == {
        WAYS[code].reason
    }
    assert len(fleet.told(AssemblyBlocked)) == 1


@pytest.mark.parametrize("code", [*ONCE, "filter_failed"])
def test_what_gets_no_better_by_being_done_again_goes_to_a_person_at_once(code: str) -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    end_badly(fleet, code)
    assert (fleet.subtask(1).status, fleet.subtask(1).recovery_attempts) == ("failed", 0)
    assert len(fleet.told(AssemblyBlocked)) == 1
    assert not fleet.told(SubtaskRedispatched)


def test_only_one_end_of_a_turn_is_an_end_of_the_work() -> None:
    assert code_of("end_turn") is None
    assert {code_of(reason) for reason in STOP_REASONS} == {"agent_turn_cancelled", "agent_refused", "agent_turn_limit"}
    assert code_of("whatever") == "agent_protocol_error"
    assert way_of("filter_failed") is OTHER


def test_what_was_half_done_is_handed_over_and_said_to_be_unfinished() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    half = fleet.commit()
    end_badly(fleet, "agent_exited", half)
    (kept,) = [e for e in fleet.told(TreeCommitted) if isinstance(e, TreeCommitted)]
    assert (kept.commit, kept.unfinished) == (half, True)
    (handed,) = [e for e in fleet.told(RevisionHandedOver) if isinstance(e, RevisionHandedOver)]
    assert handed.prior_commit == half.commit
    assert fleet.child(1).prior_commit == half.commit


def test_the_failure_is_the_last_word_of_its_child_whatever_was_kept() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    old = fleet.child_id(1)
    end_badly(fleet, "agent_exited", fleet.commit())
    own = [fact.event for fact in fleet.facts if fact.run == old and not fact.event.OUTPUT]
    assert [type(event) for event in own[-2:]] == [TreeCommitted, RunFailed]


def test_an_agents_last_words_are_quoted_so_that_they_are_taken_for_no_part_of_the_task() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    end_badly(fleet, "agent_exited")
    prompt = fleet.start(1)
    assert "> It said last: ```rehearsal" in prompt
    assert not [line for line in prompt.splitlines() if line.startswith("```")]
    assert prompt.index("It said last") < prompt.index("# Your part: One")


def test_a_part_that_others_wait_for_is_not_given_up_while_it_is_tried_again() -> None:
    fleet = Fleet(part("One"), part("Two", 0))
    fleet.start(1)
    end_badly(fleet, "agent_exited")
    assert fleet.subtask(2).status == "pending"
    fleet.work(1)
    assert fleet.subtask(2).status == "dispatched"


def test_a_revision_that_ends_badly_is_followed_by_its_directive_and_charges_nothing_more() -> None:
    fleet = Fleet(part("One")).to_gate()
    changes = fleet.request_changes(1, words="Use metres.")
    fleet.settle()
    fleet.start(1)
    end_badly(fleet, "agent_exited", fleet.commit())
    assert not fleet.told(SubtaskRedispatched)
    assert fleet.subtask(1).recovery_attempts == 1
    prompt = fleet.start(1)
    assert prompt.count("Use metres.") == 1
    assert "(agent_exited)" in prompt
    assert "What was half done is in your worktree" in prompt
    fleet.settle()
    assert fleet.directive(changes).status == "applied"


@pytest.mark.parametrize("verb", ["abort", "stop"])
def test_who_ends_a_child_says_how_it_ended(verb: str) -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    ends = fleet.command("abort", 1) if verb == "abort" else fleet.steer("stop")
    fleet.settle()
    with pytest.raises(Overtaken):
        end_badly(fleet, "agent_exited")
    fleet.confirm_end(ends, 7)
    assert not fleet.told(SubtaskRedispatched)


def test_a_lost_workplace_asks_the_newest_turn_again_also_one_that_had_ended() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    fleet.put(turns.end_turn(fleet.run, fleet.child_id(1), "end_turn"))
    fleet.put(turns.lose_workplace(fleet.run, fleet.child_id(1), "vanished"))
    turn = fleet.child(1).turn
    assert turn is not None
    assert (turn.stop_reason, turn.lost, turn.started) == (None, "vanished", True)
    assert fleet.child(1).session_gone
    assert turns.start_turn(fleet.run, fleet.child_id(1)) == (), "its proof is not said twice"
    fleet.end(1)
    with pytest.raises(Overtaken):
        turns.lose_workplace(fleet.run, fleet.child_id(1), "vanished")


def test_a_workplace_that_is_lost_twenty_times_in_a_turn_is_given_up() -> None:
    fleet = Fleet(part("One"))
    fleet.start(1)
    for _ in range(MAX_INTERRUPTIONS):
        fleet.put(turns.lose_workplace(fleet.run, fleet.child_id(1), "replaced"))
    with pytest.raises(InterruptedTooOften, match="replaced"):
        turns.lose_workplace(fleet.run, fleet.child_id(1), "replaced")
    assert len(fleet.told(TurnInterrupted)) == MAX_INTERRUPTIONS


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("vanished", "was deleted"),
        ("replaced", "Something else was put in the place"),
        ("unfinished", "half made"),
        ("cleared", "was cleared away"),
    ],
)
def test_an_agent_whose_workplace_is_lost_is_told_why_its_files_are_gone(lost: str, words: str) -> None:
    fleet = Fleet(part("One"))
    fleet.work(1)
    fleet.command("guidance", 1, words="Use metres.")
    fleet.settle()
    fleet.start(1)
    fleet.put(turns.lose_workplace(fleet.run, fleet.child_id(1), lost))
    fleet.put(turns.open_session(fleet.run, fleet.child_id(1), "another", ()))
    prompt = turns.prompt_now(fleet.run, fleet.child_id(1), asked=False)
    assert words in prompt
    assert "# Your part: One" in prompt
    assert prompt.count("Use metres.") == 1
    assert "What was committed is in your worktree" in prompt


def test_a_new_session_knows_nothing_also_when_the_service_died_before_it_was_asked() -> None:
    fleet = Fleet(part("One")).to_gate()
    fleet.request_changes(1, words="Use metres.")
    fleet.settle()
    fleet.start(1)
    assert "# Your part" not in turns.prompt_now(fleet.run, fleet.child_id(1), asked=False)
    fleet.put(turns.open_session(fleet.run, fleet.child_id(1), "another", ()))
    fleet.crash()
    prompt = turns.prompt_now(fleet.run, fleet.child_id(1), asked=False)
    assert "# Your part: One" in prompt
    assert "the session in which that was done is gone" in prompt
    assert prompt.count("Use metres.") == 1
