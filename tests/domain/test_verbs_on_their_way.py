"""Verbs for one child, at once and one after the other: what was accepted last is what holds, or its refusal is true."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Literal

import pytest

from steersman.domain.process.effects import EndTurn, EndWorkers, PauseWorker, ResumeWorker, next_effects
from steersman.domain.steering.steering import RunNotActive, RunNotSteerable
from steersman.domain.work import turns
from steersman.tests.domain.fleet import Fleet, part

Verb = Literal["pause", "resume", "guidance", "redirect", "abort", "stop", "send", "amend"]
VERBS: tuple[Verb, ...] = ("pause", "resume", "guidance", "redirect", "abort", "stop", "send", "amend")
#: Those that decide whether a child works, stands still or ends.
STANDING: tuple[Verb, ...] = ("pause", "resume", "redirect", "abort")
ENDING = ("abort", "stop")


def waiting() -> Fleet:
    # The second one keeps the run at work whatever becomes of the first.
    return Fleet(part("One"), part("Two"))


def at_work() -> Fleet:
    fleet = waiting()
    fleet.start(1)
    return fleet


def between_turns() -> Fleet:
    fleet = at_work()
    fleet.end(1)
    return fleet


def pausing() -> Fleet:
    fleet = at_work()
    fleet.command("pause", 1)
    fleet.settle()
    return fleet


def paused() -> Fleet:
    fleet = at_work()
    fleet.pause(1)
    return fleet


def resuming() -> Fleet:
    fleet = paused()
    fleet.command("resume", 1)
    fleet.settle()
    return fleet


def resumed() -> Fleet:
    fleet = resuming()
    quiet(fleet)
    return fleet


STATES: tuple[Callable[[], Fleet], ...] = (waiting, at_work, between_turns, pausing, paused, resuming, resumed)


def act(fleet: Fleet, *, newest: bool = False) -> bool:
    """Carry out one thing that the log calls for and that stops, continues or ends a child; return whether one was."""
    fleet.settle()
    wanted = [e for e in next_effects(fleet.run) if isinstance(e, PauseWorker | ResumeWorker | EndWorkers | EndTurn)]
    if not wanted:
        return False
    match wanted[-1 if newest else 0]:
        case PauseWorker() as effect:
            cut(fleet, effect.child_run_id)
            fleet.confirm_pause(effect.directive_id)
        case ResumeWorker() as effect:
            fleet.confirm_resume(effect.directive_id)
        case EndWorkers() as effect:
            fleet.confirm_end(effect.directive_id)
        case EndTurn() as effect:
            cut(fleet, effect.child_run_id)
        case _:
            raise AssertionError
    fleet.settle()
    return True


def cut(fleet: Fleet, child_id: str) -> None:
    """The agent leaves off."""
    turn = fleet.run.children[child_id].turn
    if turn is not None and turn.stop_reason is None:
        fleet.put(turns.end_turn(fleet.run, child_id, "cancelled"))


def quiet(fleet: Fleet, *, newest: bool = False) -> None:
    """Carry out everything that stops, continues or ends a child."""
    for _ in range(20):
        if not act(fleet, newest=newest):
            return
    raise AssertionError(f"it does not come to rest: {next_effects(fleet.run)}")


#: How far what was asked for has come when the next word is said.
PACES: dict[str, Callable[[Fleet], object]] = {
    "at once": lambda _: None,
    "decided": Fleet.settle,
    "one effect later": act,
    "at rest": quiet,
}


def say(fleet: Fleet, verb: Verb) -> None:
    if verb in ("stop", "send", "amend"):
        fleet.steer(verb, 1)
    else:
        fleet.command(verb, 1)


def stands(fleet: Fleet) -> str:
    """How the first child stands."""
    status = fleet.child(1).status
    return "ended" if status == "failed" else "paused" if status in ("pausing", "paused") else "works"


def after(stand: str, verb: Verb) -> str:
    """How the child is to stand once a verb that was accepted holds."""
    if verb in ENDING:
        return "ended"
    return {"pause": "paused", "resume": "works"}.get(verb, stand)


def check(state: Callable[[], Fleet], verbs: Sequence[Verb], pace: str, *, newest: bool) -> None:
    fleet = state()
    wanted = "works" if state is resuming else stands(fleet)
    for verb in verbs:
        before = len(fleet.facts)
        try:
            say(fleet, verb)
        except (RunNotActive, RunNotSteerable):
            assert len(fleet.facts) == before
            # A refusal is true: of the dead, of who is being ended, and of a pause of who stays paused.
            assert wanted == "ended" or (verb, wanted) == ("pause", "paused"), f"{verb} of one that {wanted}"
        else:
            assert wanted != "ended", f"{verb} of one that is being ended"
            wanted = after(wanted, verb)
        PACES[pace](fleet)
    quiet(fleet, newest=newest)
    assert stands(fleet) == wanted, f"{verbs} {pace}"
    if wanted == "ended":
        assert not [d for d in fleet.run.open_directives() if fleet.child_id(1) in d.targets]
    standing = [d for d in fleet.run.open_directives() if d.verb == "pause"]
    assert not standing, "a pause is over when the child stands still"


@pytest.mark.parametrize("newest", [False, True], ids=["in order", "newest first"])
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_of_every_pair_of_verbs_the_last_accepted_holds_or_the_refusal_is_true(
    state: Callable[[], Fleet], pace: str, newest: bool
) -> None:
    for verbs in product(VERBS, repeat=2):
        check(state, verbs, pace, newest=newest)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_of_every_triple_of_verbs_the_last_accepted_holds_or_the_refusal_is_true(
    state: Callable[[], Fleet], pace: str
) -> None:
    for verbs in product(STANDING, repeat=3):
        check(state, verbs, pace, newest=False)
