"""
Whatever way a next prompt comes about, it says what was asked, what came of it, why that ended, and what is there now.

A new way gets a line in WAYS; that every way of a bad end has one is asked of `bad_ends`.
"""

from collections.abc import Callable

import msgspec
import pytest

from steersman.domain.facts.bad_ends import STALLED, WAYS, BadEnd
from steersman.domain.facts.line import Left
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.git import Commit
from steersman.domain.runs import review
from steersman.domain.runs.orchestration import start_run
from steersman.domain.runs.retry import start_again
from steersman.domain.steering import steering
from steersman.domain.work import child_ends, turns
from steersman.tests.domain.fleet import BASE, PROJECT, TEAM, Fleet, part
from steersman.tests.spec import Story

ASKED = "Use metres."
TASK = "# Your part: One"


class Told(msgspec.Struct, frozen=True):
    """What a prompt has to say."""

    prompt: str
    asked: tuple[str, ...]
    came: str
    why: str
    now: str


def end_badly(fleet: Fleet, code: str, subtask_id: int = 1, half: Commit | None = None) -> None:
    end = BadEnd(code=code, message="status 3\nIt said last: oh", stall_seconds=300 if code == STALLED else None)
    fleet.put(child_ends.end_badly(fleet.run, fleet.child_id(subtask_id), fleet.now, end, half))
    fleet.settle()


def after_bad_end(code: str, *, keeps: bool) -> Told:
    fleet = Fleet(part("One"))
    fleet.start(1)
    end_badly(fleet, code, half=fleet.commit() if keeps else None)
    left = "What was half done is in your worktree, unfinished" if keeps else "Nothing of it is in your worktree"
    return Told(fleet.start(1), (TASK, "attempt 2 of 4"), "ann has worked on your part before", f"({code})", left)


def after_a_block_that_a_failure_made() -> Told:
    fleet = Fleet(part("One"))
    fleet.start(1)
    end_badly(fleet, "agent_refused", half=fleet.commit())
    assert fleet.plan.status == "assembly_blocked"
    fleet.steer("redirect", words=ASKED)
    fleet.settle()
    asked, why = (TASK, ASKED), "> status 3"
    return Told(
        fleet.start(1), asked, "Its agent refused to do it (agent_refused)", why, "half done is in your worktree"
    )


def after_an_abort() -> Told:
    fleet = Fleet(part("One"))
    fleet.start(1)
    abort = fleet.command("abort", 1, reason="It goes the wrong way.")
    fleet.settle()
    fleet.confirm_end(abort, 7)
    fleet.steer("redirect", words=ASKED)
    fleet.settle()
    why = "Your part had no result:\n\n> It goes the wrong way."
    return Told(fleet.start(1), (TASK, ASKED), "A person ended it", why, "Nothing of it is in your worktree")


def never_begun_because_of_another() -> Told:
    fleet = Fleet(part("Zero"), part("One", 0))
    fleet.start(1)
    end_badly(fleet, "agent_refused")
    fleet.steer("redirect", words=ASKED)
    fleet.settle()
    fleet.work(1)
    came, why = "Parts of the plan had ended without a result", "> Subtask 1, which this one depends on, ended without"
    return Told(fleet.start(2), (TASK, ASKED), came, why, "# Already done, and in your worktree\n\n- Zero")


def after_a_merge_that_conflicted() -> Told:
    fleet = Fleet(part("One")).to_gate()
    fleet.review(approved=True)
    fleet.settle()
    fleet.put(review.fail_merge(fleet.run, ["a.txt"], fleet.commit()))
    fleet.steer("redirect", words=ASKED)
    fleet.settle()
    why = "could not be merged into the branch that it is for"
    prompt = fleet.start(1)
    assert "- `a.txt`" in prompt
    return Told(prompt, (TASK, ASKED), "It came to an end", why, "What was committed is in your worktree")


def after_a_rebuilt_base_that_conflicted() -> Told:
    fleet = Fleet(part("Zero"), part("One", 0)).to_gate()
    fleet.request_changes(1, words="More.")
    fleet.settle()
    fleet.work(1)
    fleet.put(child_ends.dispatch_outdated_afresh(fleet.run, fleet.child_id(2), fleet.now))
    fleet.settle()
    why = "What it builds on was changed in the same places"
    return Told(fleet.start(2), (TASK,), "ann has worked on your part before", why, "Nothing of it is in your worktree")


def sent_back(source: str, *, afresh: bool) -> Told:
    fleet = Fleet(part("One")).to_gate(capabilities=() if afresh else ("load_session",))
    if source == "human-review":
        fleet.request_changes(1, words=ASKED)
    else:
        fleet.signal("rai", 1, words=ASKED)
    fleet.settle()
    if not afresh:
        came, why = "You had come to the end of your last turn", f"It was sent back ({source})"
        return Told(fleet.start(1), ("# Changes are requested", ASKED), came, why, "is in your worktree")
    came, why = "ann has worked on your part before", f"was sent back ({source})"
    return Told(fleet.start(1), (TASK, ASKED), came, why, "What was committed is in your worktree")


def after_a_revision_that_died() -> Told:
    fleet = Fleet(part("One")).to_gate()
    fleet.request_changes(1, words=ASKED)
    fleet.settle()
    fleet.start(1)
    end_badly(fleet, "agent_exited")
    now = "What was committed is in your worktree"
    return Told(fleet.start(1), (TASK, ASKED), "has worked on your part before", "(agent_exited)", now)


def steered(verb: str) -> Told:
    fleet = Fleet(part("One"))
    fleet.start(1)
    if verb == "redirect":
        fleet.command("redirect", 1, words=ASKED)
    elif verb == "guidance":
        fleet.command("guidance", 1, words=ASKED)
    else:
        fleet.steer("amend", 1, words=ASKED)
    fleet.settle()
    fleet.end(1, stop_reason="cancelled" if verb == "redirect" else "end_turn")
    prompt = fleet.open_turn(1) or ""
    came = "Your last turn was ended before" if verb == "redirect" else "You had come to the end of your last turn"
    heading = {"redirect": "# A new direction", "guidance": "# Guidance", "amend": "# An addition"}[verb]
    return Told(prompt, (ASKED,), came, heading, "is in your worktree")


def resumed() -> Told:
    fleet = Fleet(part("One"))
    fleet.start(1)
    pause = fleet.command("pause", 1)
    fleet.settle()
    fleet.put(turns.end_turn(fleet.run, fleet.child_id(1), "cancelled"))
    fleet.confirm_pause(pause)
    resume = fleet.command("resume", 1)
    fleet.settle()
    fleet.confirm_resume(resume)
    fleet.put(turns.commit_tree(fleet.run, fleet.child_id(1), fleet.commit()))
    prompt = fleet.open_turn(1) or ""
    return Told(prompt, ("Continue exactly",), "was ended before", "You were paused", "is in your worktree")


def rebuilt() -> Told:
    fleet = Fleet(part("Zero"), part("One", 0)).to_gate()
    fleet.request_changes(1, words="More.")
    fleet.settle()
    fleet.work(1)
    prompt = fleet.start(2)
    why = "What your part builds on has been changed"
    return Told(prompt, ("bring it in line",), "You had come to the end", why, "your worktree holds the new version")


def lost(what: str) -> Told:
    fleet = Fleet(part("One"))
    fleet.command("guidance", 1, words=ASKED)
    fleet.settle()
    fleet.start(1)
    if what == "session":
        why = "the session in which that was done is gone"
    else:
        fleet.put(turns.lose_workplace(fleet.run, fleet.child_id(1), what))
        why = "was deleted while it was worked on"
    fleet.put(turns.open_session(fleet.run, fleet.child_id(1), "another", ()))
    fleet.crash()
    prompt = turns.prompt_now(fleet.run, fleet.child_id(1), asked=False)
    return Told(prompt, (TASK, ASKED), "# What is lost", why, "it was made anew from the last recorded state")


def crashed(*, asked: bool) -> Told:
    fleet = Fleet(part("One"))
    fleet.start(1)
    end_badly(fleet, "agent_exited")
    fleet.start(1)
    fleet.crash()
    fleet.put(turns.interrupt_turn(fleet.run, fleet.child_id(1), found_in_history=asked, session_kept=True))
    prompt = turns.prompt_now(fleet.run, fleet.child_id(1), asked=asked)
    if asked:
        came, why = "You were interrupted", "The program that you worked in has ended"
        return Told(
            prompt, ("what you had been asked still holds",), came, why, "your working directory is as you left it"
        )
    return Told(
        prompt, (TASK,), "ann has worked on your part before", "(agent_exited)", "Nothing of it is in your worktree"
    )


def unproved_and_tried_again() -> Told:
    fleet = Fleet(part("One")).to_gate()
    changes = fleet.request_changes(1, words=ASKED)
    fleet.settle()
    fleet.prepare(1)
    fleet.open_turn(1)
    for _ in range(3):
        fleet.put(turns.fail_execution(fleet.run, fleet.child_id(1), "no sign of life"))
    fleet.put(steering.resolve(fleet.run, changes, "retry"))
    fleet.put(turns.commit_tree(fleet.run, fleet.child_id(1), fleet.commit()))
    fleet.settle()
    prompt = fleet.open_turn(1) or ""
    return Told(
        prompt, ("# Changes are requested", ASKED), "Your last turn was ended", "(human-review)", "in your worktree"
    )


def retried(*, is_handed_on: bool, dies: bool = False) -> Told:
    """A run is stopped after a correction was worked in and nothing came of another, and tried again as a new one."""
    fleet = Fleet(part("One")).to_gate()
    fleet.request_changes(1, words=ASKED)
    fleet.settle()
    fleet.work(1)
    fleet.assemble()
    fleet.request_changes(1, words="And in colour.")
    fleet.settle()
    fleet.work(1, changes=False)
    fleet.assemble()
    stop = fleet.steer("stop")
    fleet.settle()
    fleet.confirm_end(stop, 7)
    child = fleet.child(1)
    assert child.head is not None
    left = {1: Left(child_run_id=child.run_id, commit=child.head.commit)} if is_handed_on else {}
    again = Again(fleet.run, left)
    if dies:
        again.start(1)
        end_badly(again, "agent_exited")
        assert again.child_id(1) != child.run_id
    prompt = again.start(1)
    done = "# Feedback that the work has already"
    assert (done in prompt) == is_handed_on, prompt
    assert prompt.count(ASKED) == prompt.count("And in colour.") == 1
    to_do = prompt.split("# Feedback on earlier attempts")[1]
    assert "And in colour." in to_do
    assert (ASKED in to_do) != is_handed_on
    why = "(agent_exited)" if dies else "(steering_stop)"
    came = "has worked on your part before" + ("" if dies else ", in an earlier run of the same plan")
    return Told(
        prompt, (TASK,), came, why, "is in your worktree" if is_handed_on else "Nothing of it is in your worktree"
    )


class Again(Fleet):
    """The run that tries another one again."""

    def __init__(self, failed: CoordinatorRun, left: dict[int, Left]) -> None:
        Story.__init__(self)
        self.team, self._commits, self._directives = TEAM, 100, 100
        command = start_again(failed, "w", {"ann"}, left)
        models = {member.name: f"rehearsal/{member.name}" for member in TEAM}
        self.put(start_run(command, PROJECT, BASE, "/srv/shop", models))
        self.settle()


AGAIN = sorted(code for code, way in WAYS.items() if way.then == "start afresh")
ALL: dict[str, Callable[[], Told]] = {
    **{f"{code}, half done": lambda code=code: after_bad_end(code, keeps=True) for code in AGAIN},
    **{f"{code}, nothing kept": lambda code=code: after_bad_end(code, keeps=False) for code in AGAIN},
    "a redirect after a failure": after_a_block_that_a_failure_made,
    "a redirect after an abort": after_an_abort,
    "a redirect of what waited for a part that failed": never_begun_because_of_another,
    "a redirect after a merge conflict": after_a_merge_that_conflicted,
    "a base that conflicts": after_a_rebuilt_base_that_conflicted,
    "a gate's rejection, in place": lambda: sent_back("rai", afresh=False),
    "a gate's rejection, another author": lambda: sent_back("rai", afresh=True),
    "a request for changes, in place": lambda: sent_back("human-review", afresh=False),
    "a request for changes, another author": lambda: sent_back("human-review", afresh=True),
    "a revision that died": after_a_revision_that_died,
    "a redirect in a turn": lambda: steered("redirect"),
    "guidance": lambda: steered("guidance"),
    "an addition": lambda: steered("amend"),
    "a resume": resumed,
    "a rebuilt base": rebuilt,
    "a lost workplace": lambda: lost("vanished"),
    "a lost session": lambda: lost("session"),
    "a crash, asked": lambda: crashed(asked=True),
    "a crash, not asked": lambda: crashed(asked=False),
    "another try after three without a sign": unproved_and_tried_again,
    "a retry with what was committed": lambda: retried(is_handed_on=True),
    "a retry without what was committed": lambda: retried(is_handed_on=False),
    "a retry whose author dies": lambda: retried(is_handed_on=True, dies=True),
}


@pytest.mark.parametrize("way", ALL)
def test_the_next_prompt_says_what_was_asked_what_came_of_it_why_it_ended_and_what_is_there(way: str) -> None:
    told = ALL[way]()
    for words in (*told.asked, told.came, told.why, told.now):
        assert words in told.prompt
    for words in told.asked:
        assert told.prompt.count(words) == 1


def test_what_was_said_about_a_part_that_nobody_had_begun_is_told_in_the_run_that_tries_it_again() -> None:
    fleet = Fleet(part("Zero"), part("One", 0))
    fleet.start(1)
    end_badly(fleet, "agent_refused")
    fleet.steer("redirect", words=ASKED)
    fleet.settle()
    stop = fleet.steer("stop")
    fleet.settle()
    fleet.confirm_end(stop, 7)
    again = Again(fleet.run, {})
    again.work(1)
    prompt = again.start(2)
    assert prompt.count(ASKED) == 1, prompt
    assert "Begun before you" not in prompt
