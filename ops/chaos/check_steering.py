"""Corrections, from the receipt to the end: each has one, and has its effect once."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .facts import CLOSED, DECIDED, MARKER, MOVED, RECEIVED, Acknowledged, SeenFact, Violation, by_root, of_type

#: Facts, besides the marker, that say that a correction has had an effect on a child.
EFFECTS = ("run.paused", "run.resumed", "run.processes_killed")


def acknowledged_is_stored_once(
    facts: Sequence[SeenFact], acknowledged: Iterable[Acknowledged], sent: Iterable[str]
) -> list[Violation]:
    """What was acknowledged is on the log; what was sent, acknowledged or not, is there once at most."""
    found: list[Violation] = []
    received = list(of_type(facts, RECEIVED))
    ids = Counter(str(fact.payload["directiveId"]) for fact in received)
    for directive_id, count in ids.items():
        if count > 1:
            found.append(_of("stored once", f"{directive_id} was received {count} times", None, directive_id))
    words = [(fact, f"{fact.payload.get('feedback')} {fact.payload.get('reason')}") for fact in received]
    for told in acknowledged:
        stored = told.directive_id in ids if told.directive_id else any(told.mark in said for _, said in words)
        if not stored:
            why = f"{told.directive_id} ({told.mark}) was acknowledged and is not on the log"
            found.append(_of("acknowledged is stored", why, told.root, *filter(None, [told.directive_id])))
    for mark in sent:
        holders = [fact for fact, said in words if mark in said]
        # One command to a fleet is one receipt for each of its targets.
        places = Counter(str(fact.payload["targetScope"]) for fact in holders)
        if any(count > 1 for count in places.values()):
            why = f"what was sent once, as {mark}, was received {len(holders)} times"
            found.append(_of("stored once", why, holders[0].root, *(str(f.payload["directiveId"]) for f in holders)))
    return found


def every_directive_ends_once(facts: Iterable[SeenFact]) -> list[Violation]:
    """Each receipt leads to exactly one end; only a person's answer to `needs_attention` goes on behind one."""
    found: list[Violation] = []
    status: dict[str, str] = {}
    roots: dict[str, str | None] = {}
    for fact in of_type(facts, RECEIVED, MOVED):
        directive_id = str(fact.payload["directiveId"])
        if fact.type == RECEIVED:
            status.setdefault(directive_id, "pending")
            roots[directive_id] = fact.root
            continue
        if fact.payload.get("workPlanId") is not None:
            continue  # no step: the plan got a fresh budget
        before, after = status.get(directive_id), str(fact.payload["status"])
        if before is None:
            found.append(_of("receipt first", f"{directive_id} is {after} without a receipt", fact.root, directive_id))
        elif before in CLOSED and not (before == "needs_attention" and after in ("decided", "expired")):
            why = f"{directive_id} had ended as {before} and became {after}"
            found.append(_of("ends once", why, fact.root, directive_id))
        status[directive_id] = after
    for directive_id, last in status.items():
        if last not in CLOSED:
            why = f"{directive_id} was received and is {last} at the end"
            found.append(_of("ends once", why, roots.get(directive_id), directive_id))
    return found


def effects_follow_receipts_once(facts: Iterable[SeenFact]) -> list[Violation]:
    """Every confirmed effect comes after its receipt and its decision, cites the receipt, and is had once."""
    found: list[Violation] = []
    hashes: dict[str, Any] = {}
    decided: set[str] = set()
    had: set[tuple[Any, ...]] = set()
    for fact in of_type(facts, RECEIVED, DECIDED, MARKER, *EFFECTS):
        payload = fact.payload
        directive_id = str(payload.get("directiveId"))
        if fact.type == RECEIVED:
            hashes[directive_id] = payload["payloadHash"]
            continue
        if directive_id not in hashes:
            why = f"{fact.type} at {fact.position} stands before the receipt of {directive_id}"
            found.append(_of("receipt first", why, fact.root, directive_id))
            continue
        if fact.type == DECIDED:
            decided.add(directive_id)
            continue
        if directive_id not in decided:
            why = f"{fact.type} at {fact.position} stands before the decision about {directive_id}"
            found.append(_of("decision first", why, fact.root, directive_id))
        if payload["receiptPayloadHash"] != hashes[directive_id]:
            why = f"{fact.type} at {fact.position} cites another receipt than that of {directive_id}"
            found.append(_of("cites its receipt", why, fact.root, directive_id))
        if fact.type == MARKER and payload["state"] != "effect_confirmed":
            continue
        once = (fact.type, directive_id, payload.get("attempt"), payload.get("childRunId") or fact.run)
        if once in had:
            why = f"{directive_id} has had its effect ({fact.type}) on {once[3]} before {fact.position}"
            found.append(_of("effect once", why, fact.root, directive_id))
        had.add(once)
    return found


def no_turn_repeats_a_directive(facts: Iterable[SeenFact]) -> list[Violation]:
    """A turn carries a correction to a child only as long as it has had no effect there; each turn is opened once."""
    found: list[Violation] = []
    confirmed: set[tuple[str, str]] = set()
    opened: set[str] = set()
    numbers: dict[str, int] = {}
    for fact in of_type(facts, MARKER, "turn.opened"):
        payload = fact.payload
        if fact.type == MARKER:
            if payload["state"] == "effect_confirmed":
                confirmed.add((str(payload["directiveId"]), str(payload["childRunId"])))
            continue
        child = str(fact.run)
        for directive_id in payload["directiveIds"]:
            if (directive_id, child) in confirmed:
                why = f"{directive_id} was delivered to {child} and is carried by its turn {payload['number']} again"
                found.append(_of("delivered once", why, fact.root, directive_id))
        if payload["turnId"] in opened or payload["number"] != numbers.get(child, 0) + 1:
            why = f"{child} opens its turn {payload['number']} after its turn {numbers.get(child, 0)}"
            found.append(_of("turns count up", why, fact.root, child))
        opened.add(payload["turnId"])
        numbers[child] = payload["number"]
    return found


def prompted_once(histories: Mapping[str, Sequence[str]], turn_line: str, continues: str) -> list[Violation]:
    """
    No agent was asked the same turn twice: in a session's own history each turn has one prompt that is not merely a
    call to go on.
    """
    found: list[Violation] = []
    for session, prompts in histories.items():
        turns: Counter[str] = Counter()
        for prompt in prompts:
            first = prompt.partition("\n")[0]
            if first.startswith(turn_line) and continues not in prompt:
                turns[first.removeprefix(turn_line)] += 1
        for turn, count in turns.items():
            if count > 1:
                why = f"the session {session} was asked its turn {turn} {count} times"
                found.append(_of("prompted once", why, None, turn))
    return found


def budgets_are_kept(facts: Iterable[SeenFact], per_subtask: int = 3, executions: int = 3) -> list[Violation]:
    """No plan is steered, no subtask done over, and no effect tried more often than its budget says."""
    return [found for tree in by_root(facts).values() for found in _budgets_of(tree, per_subtask, executions)]


def _budgets_of(tree: Sequence[SeenFact], per_subtask: int, executions: int) -> list[Violation]:
    found: list[Violation] = []
    plan, most = 0, 6
    subtasks: Counter[int] = Counter()
    failures: Counter[str] = Counter()
    for fact in tree:
        payload, about = fact.payload, str(fact.payload.get("directiveId"))
        over: str | None = None
        if fact.type == "coordinator.started":
            most = payload["maxSteeringIterations"]
        elif fact.type == DECIDED and payload["charged"]:
            plan += 1
            subtasks.update(payload["subtaskIds"])
            worn = [s for s in payload["subtaskIds"] if subtasks[s] > per_subtask]
            over = f"the plan is steered {plan} times, not {most}" if plan > most else over
            over = f"subtask {worn[0]} is done over {subtasks[worn[0]]} times" if worn else over
        elif fact.type == MOVED and payload.get("workPlanId") is not None:
            plan = 0
            for subtask in payload["resetSubtaskIds"]:
                subtasks[subtask] = 0
        elif fact.type == MOVED and payload["status"] == "decided":
            failures[about] = 0
        elif fact.type == MARKER and payload["state"] == "failed":
            failures[about] += 1
            over = f"{about} is tried {failures[about]} times" if failures[about] > executions else over
        elif fact.type == "coordinator.subtask_redispatched":
            subtasks[payload["subtaskId"]] = payload["attempt"]
            over = (
                f"a stalled subtask begins its attempt {payload['attempt']}"
                if payload["attempt"] > per_subtask
                else over
            )
        if over is not None:
            found.append(Violation(invariant="budgets", message=f"at {fact.position} {over}", root=fact.root))
    return found


def _of(invariant: str, message: str, root: str | None, *about: str) -> Violation:
    return Violation(invariant=invariant, message=message, root=root, about=about)
