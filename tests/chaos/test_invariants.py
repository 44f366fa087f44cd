"""The chaos harness's invariants: each passes a history that is whole, and finds what is broken in one that is not."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from steersman.ops.chaos import check_agents, check_feeds, check_runs, check_steering
from steersman.ops.chaos.agent import NOT_ALONE
from steersman.ops.chaos.check_feeds import SeenFrame
from steersman.ops.chaos.facts import Acknowledged, SeenFact, Violation, smallest

ROOT, CHILD, STEER = "run-1", "child-1", "steer-1"
RECEIVED, DECIDED = "coordinator.steering_received", "coordinator.steering_decision"
MOVED, MARKER = "coordinator.steering", "coordinator.revision_execution"
GATE, APPROVED = "coordinator.assembly_review_requested", "coordinator.assembly_review_approved"
Says = tuple[str, str | None, dict[str, Any]]


def log(*facts: Says) -> list[SeenFact]:
    """Return facts as they stand in a log: everything numbered, all in one tree."""
    versions: dict[str, int] = {}
    found: list[SeenFact] = []

    def count(name: str) -> int:
        versions[name] = versions.get(name, 0) + 1
        return versions[name]

    for position, (topic, run, payload) in enumerate(facts, 1):
        stream = f"run/{run or ROOT}"
        entry = SeenFact(
            position=position,
            stream=stream,
            version=count(stream),
            type=topic,
            run=run,
            run_sequence=count(run) if run else None,
            root=ROOT,
            root_sequence=position,
            at="2026-01-01T00:00:00Z",
            principal="somebody",
            payload=payload,
        )
        found.append(entry)
    return found


def received(directive: str = STEER, feedback: str = "mark-1- do it", targets: Sequence[str] = (CHILD,)) -> Says:
    said = {
        "directiveId": directive,
        "payloadHash": "h1",
        "feedback": feedback,
        "reason": "",
        "targetScope": {"childRunId": targets[0]},
    }
    return RECEIVED, ROOT, said


def decided(*, charged: bool = False, subtasks: Sequence[int] = (1,)) -> Says:
    return DECIDED, ROOT, {"directiveId": STEER, "charged": charged, "subtaskIds": list(subtasks)}


def moved(status: str, directive: str = STEER) -> Says:
    return MOVED, ROOT, {"directiveId": directive, "status": status, "workPlanId": None}


def marker(state: str, *, attempt: int = 0, receipt: str = "h1") -> Says:
    said = {"directiveId": STEER, "attempt": attempt, "childRunId": CHILD, "state": state}
    return MARKER, ROOT, {**said, "receiptPayloadHash": receipt}


def turn(number: int, *directives: str) -> Says:
    return "turn.opened", CHILD, {"turnId": f"turn-{number}", "number": number, "directiveIds": list(directives)}


def began(goal: str = "goal 1", run: str = ROOT) -> Says:
    return "coordinator.started", run, {"goal": goal, "maxSteeringIterations": 6}


def gate(topic: str = GATE, number: int = 1) -> Says:
    return topic, ROOT, {"gateId": f"{ROOT}/review/{number}.1"}


def held(waits_for: str) -> Says:
    return "coordinator.effect_held", ROOT, {"effectId": "e", "waitsFor": waits_for}


def subtask(step: str) -> Says:
    return f"subtask.{step}", ROOT, {"subtaskId": 1, "status": step, "childRunId": CHILD}


STEERED = (received(), decided(), marker("initiated"), marker("effect_confirmed"), moved("applied"))
DONE = (
    began(),
    subtask("dispatched"),
    ("run.started", CHILD, {}),
    subtask("running"),
    ("run.assemble_ready", CHILD, {}),
    subtask("assemble_ready"),
    gate(),
)


def stored(*facts: Says, told: str = STEER, marks: Sequence[str] = ("mark-1-",)) -> list[Violation]:
    acknowledged = [Acknowledged(mark="mark-1-", directive_id=told, root=ROOT)]
    return check_steering.acknowledged_is_stored_once(log(*facts), acknowledged, marks)


def started(*facts: Says) -> list[Violation]:
    return check_runs.every_run_is_started_once(log(*facts), [ROOT], ["goal 1"])


def of(check: Callable[[list[SeenFact]], list[Violation]], *facts: Says) -> list[Violation]:
    return check(log(*facts))


ENDS = check_steering.every_directive_ends_once
EFFECTS = check_steering.effects_follow_receipts_once
TURNS = check_steering.no_turn_repeats_a_directive
BUDGETS = check_steering.budgets_are_kept
GATES = check_runs.every_gate_is_decided_once
REST = check_runs.every_run_comes_to_rest
#: A second receipt of what was sent once.
TWIN = received("steer-2")
FRESH = (MOVED, ROOT, {"directiveId": STEER, "status": "queued", "workPlanId": "plan", "resetSubtaskIds": [1]})
CHARGES = tuple(decided(charged=True) for _ in range(3))
SPREAD = tuple(decided(charged=True, subtasks=(number,)) for number in range(6))
BLOCKED = ("coordinator.assembly_merge_blocked", ROOT, {})

WHOLE = {
    "a run that waits for somebody who is named": lambda: of(REST, *DONE[:-1], held("operator")),
    "a correction that is stored": lambda: stored(*STEERED),
    "one for two workers": lambda: stored(received(), received("steer-2", targets=("child-2",))),
    "one without an answer": lambda: stored(*STEERED, marks=("mark-1-", "mark-2-")),
    "a correction with an end": lambda: of(ENDS, *STEERED),
    "one that a person tries again": lambda: of(
        ENDS, received(), moved("needs_attention"), moved("decided"), moved("applied")
    ),
    "an effect": lambda: of(EFFECTS, *STEERED),
    "an effect of another attempt": lambda: of(EFFECTS, *STEERED, marker("effect_confirmed", attempt=1)),
    "a turn that was lost before it began": lambda: of(TURNS, received(), turn(1, STEER), turn(2, STEER)),
    "a spent budget": lambda: of(BUDGETS, began(), *CHARGES),
    "a budget that a person renewed": lambda: of(BUDGETS, began(), *CHARGES, FRESH, *CHARGES),
    "three failures": lambda: of(BUDGETS, *(marker("failed") for _ in range(3))),
    "a run": lambda: started(*DONE),
    "an approval": lambda: of(GATES, gate(), gate(APPROVED)),
    "an approval after a merge that was blocked": lambda: of(GATES, gate(), gate(APPROVED), BLOCKED, gate(APPROVED)),
    "a stored approval": lambda: check_runs.acknowledged_decisions_are_stored(
        log(gate(), gate(APPROVED)), [(ROOT, "approve")]
    ),
    "a run that is over": lambda: of(
        REST, *DONE, gate("coordinator.assembly_declined"), ("run.worktrees_removed", None, {})
    ),
    "a run at its gate": lambda: of(REST, *DONE),
    "numbers": lambda: of(check_runs.numbers_have_no_gap, *DONE, *STEERED),
}

BROKEN = {
    "an acknowledged correction is lost": (lambda: stored(marks=()), "acknowledged is stored"),
    "another one is stored in its place": (lambda: stored(received("steer-9")), "acknowledged is stored"),
    "an acknowledged review is lost": (
        lambda: check_steering.acknowledged_is_stored_once([], [Acknowledged(mark="mark-1-")], []),
        "acknowledged is stored",
    ),
    "a correction is stored twice": (lambda: stored(received(), received()), "stored once"),
    "a repeated command is a second correction": (lambda: stored(received(), TWIN), "stored once"),
    "a correction has no end": (lambda: of(ENDS, *STEERED[:-1]), "ends once"),
    "a correction ends twice": (lambda: of(ENDS, *STEERED, moved("superseded")), "ends once"),
    "a closed correction goes on": (lambda: of(ENDS, *STEERED, moved("decided"), moved("applied")), "ends once"),
    "a correction ends without a receipt": (lambda: of(ENDS, moved("applied")), "receipt first"),
    "an effect comes before its receipt": (lambda: of(EFFECTS, *STEERED[1:], STEERED[0]), "receipt first"),
    "an effect comes before its decision": (lambda: of(EFFECTS, received(), marker("initiated")), "decision first"),
    "an effect is of another receipt": (
        lambda: of(EFFECTS, received(), decided(), marker("initiated", receipt="h2")),
        "cites its receipt",
    ),
    "an effect is had twice": (lambda: of(EFFECTS, *STEERED, marker("effect_confirmed")), "effect once"),
    "a worker is paused twice": (
        lambda: of(
            EFFECTS,
            received(),
            decided(),
            *[("run.paused", CHILD, {"directiveId": STEER, "receiptPayloadHash": "h1"})] * 2,
        ),
        "effect once",
    ),
    "a correction is delivered again": (
        lambda: of(TURNS, turn(1, STEER), marker("effect_confirmed"), turn(2, STEER)),
        "delivered once",
    ),
    "a turn is opened twice": (lambda: of(TURNS, turn(1), turn(1)), "turns count up"),
    "a turn is left out": (lambda: of(TURNS, turn(1), turn(3)), "turns count up"),
    "an agent is asked twice": (
        lambda: check_steering.prompted_once({"s": ["T: 1\n\nDo it.", "T: 1\n\nDo it."]}, "T: ", "Go on"),
        "prompted once",
    ),
    "a subtask is done over too often": (lambda: of(BUDGETS, began(), *CHARGES, decided(charged=True)), "budgets"),
    "a plan is steered too often": (
        lambda: of(BUDGETS, began(), *SPREAD, decided(charged=True, subtasks=(7,))),
        "budgets",
    ),
    "an effect is tried too often": (lambda: of(BUDGETS, *(marker("failed") for _ in range(4))), "budgets"),
    "a stalled subtask starts too often": (
        lambda: of(BUDGETS, ("coordinator.subtask_redispatched", ROOT, {"subtaskId": 1, "attempt": 4})),
        "budgets",
    ),
    "an acknowledged run is lost": (lambda: started(), "acknowledged is stored"),
    "a goal has two runs": (lambda: started(began(), began(run="run-2")), "stored once"),
    "a gate is decided twice": (lambda: of(GATES, gate(), gate(APPROVED), gate(APPROVED)), "gates are decided once"),
    "a gate is approved and declined": (
        lambda: of(GATES, gate(), gate(APPROVED), gate("coordinator.assembly_declined")),
        "gates are decided once",
    ),
    "a gate is decided that nobody opened": (lambda: of(GATES, gate(APPROVED)), "gates are decided once"),
    "a gate opens twice": (lambda: of(GATES, gate(), gate()), "gates open once"),
    "a run that was held is not any more, and stands still": (
        lambda: of(REST, *DONE[:-1], held("operator"), ("coordinator.effect_released", ROOT, {"effectId": "e"})),
        "comes to rest",
    ),
    "a run is held, and nobody is waited for": (lambda: of(REST, *DONE[:-1], held("")), "comes to rest"),
    "a run stands still": (lambda: of(REST, *DONE[:-1]), "comes to rest"),
    "a run stands still after its approval": (lambda: of(REST, *DONE, gate(APPROVED)), "comes to rest"),
    "a subtask runs at the gate": (lambda: of(REST, *DONE[:-2], subtask("running"), gate()), "nothing runs unowned"),
    "a child outlives its run": (
        lambda: of(REST, began(), ("run.started", CHILD, {}), ("run.cancelled", ROOT, {})),
        "nothing runs unowned",
    ),
    "an ended run leaves its worktrees": (lambda: of(REST, began(), ("run.failed", ROOT, {})), "comes to rest"),
    "an acknowledged approval is lost": (
        lambda: check_runs.acknowledged_decisions_are_stored(log(*DONE), [(ROOT, "approve")]),
        "acknowledged is stored",
    ),
    "a run is merged twice": (
        lambda: of(
            REST,
            began(),
            *[("coordinator.assembly_merge_completed", ROOT, {})] * 2,
            ("coordinator.assembly_completed", ROOT, {}),
        ),
        "merged once",
    ),
    "two agents work in one workplace": (
        lambda: check_agents.one_agent_in_each_workplace(
            log(("run.failed", CHILD, {"message": f"the agent exited with code 97; its last words: {NOT_ALONE}"}))
        ),
        "one agent a workplace",
    ),
    "an agent is left": (lambda: check_agents.nobody_is_left({7: "w"}), "nobody is left"),
    "replicas show different facts": (
        lambda: check_feeds.replicas_show_one_log({"a": [1, 2], "b": [1, 3]}),
        "one truth",
    ),
    "a replica shows less": (lambda: check_feeds.replicas_show_one_log({"a": [1, 2], "b": [1]}), "one truth"),
}


@pytest.mark.parametrize("history", WHOLE)
def test_a_whole_history_passes(history: str) -> None:
    assert WHOLE[history]() == []


@pytest.mark.parametrize("history", BROKEN)
def test_a_broken_history_is_found(history: str) -> None:
    check, invariant = BROKEN[history]
    assert invariant in {violation.invariant for violation in check()}


@pytest.mark.parametrize("place", ["run", "tree", "stream", "position", "lease"])
def test_a_gap_is_found_in_every_count(place: str) -> None:
    lease: Says = ("run.lease_taken", None, {"epoch": 1})
    facts = log(*DONE, lease)
    whole = check_runs.numbers_have_no_gap
    assert whole(facts) == []
    match place:
        case "run":
            broken = [*facts[:4], *facts[5:]]
        case "tree":
            broken = [fact for fact in facts if fact.run == ROOT]
        case "stream":
            broken = [*facts[:-1], msgspec.structs.replace(facts[-1], version=99)]
        case "position":
            broken = [*facts[:2], facts[3], facts[2], *facts[4:]]
        case _:
            broken = log(*DONE, lease, ("run.lease_taken", None, {"epoch": 1}))
    assert any(place in violation.message for violation in whole(broken))


EVENTS = [{"sequence": n, "type": "agent.intent", "payload": {"n": n}} for n in (1, 2, 3)]
FRAMES = [SeenFrame(n, "agent.intent", json.dumps({"n": n})) for n in (1, 2, 3)]


@pytest.mark.parametrize(
    "frames",
    [
        [FRAMES[0], FRAMES[2]],
        FRAMES[:2],
        [*FRAMES, FRAMES[2]],
        [FRAMES[0], FRAMES[0], *FRAMES[1:]],
        [FRAMES[1], FRAMES[0], FRAMES[2]],
        [*FRAMES[:2], SeenFrame(3, "agent.intent", '{"n": 4}')],
        [*FRAMES[:2], SeenFrame(3, "tool.call", '{"n": 3}')],
        [*FRAMES[:2], SeenFrame(3, "agent.intent", '{"n":3}')],
    ],
    ids=["a gap", "too few", "too many", "one twice", "out of order", "other data", "another event", "other bytes"],
)
def test_a_subscriber_who_saw_anything_else_is_found(frames: list[SeenFrame]) -> None:
    seen = {"first": FRAMES}
    assert check_feeds.subscribers_saw_the_log(CHILD, ROOT, EVENTS, seen) == []
    assert check_feeds.subscribers_saw_the_log(CHILD, ROOT, EVENTS, {**seen, "second": frames})


def test_events_with_a_gap_are_found() -> None:
    events = [EVENTS[0], EVENTS[2]]
    assert check_feeds.subscribers_saw_the_log(CHILD, ROOT, events, {"one": [FRAMES[0], FRAMES[2]]})


def test_the_smallest_log_holds_the_facts_of_what_is_wrong_and_no_others() -> None:
    facts = log(*DONE, *STEERED, received("steer-2"), moved("applied", "steer-2"))
    (violation,) = ENDS([*facts, *log(*STEERED, moved("expired"))[-1:]])
    shown = smallest(facts, violation)
    assert [fact.payload["directiveId"] for fact in shown] == [STEER] * len(STEERED)
    whole_run = Violation(invariant="budgets", message="", root=ROOT)
    assert smallest(facts, whole_run) == facts
