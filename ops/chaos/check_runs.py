"""What becomes of runs: each is started once, decided on once at each gate, and comes to rest somewhere."""

from collections import Counter
from collections.abc import Iterable, Sequence

from .facts import SeenFact, Violation, by_root, of_type

STARTED = "coordinator.started"
GATE = "coordinator.assembly_review_requested"
APPROVED = "coordinator.assembly_review_approved"
DECLINED = "coordinator.assembly_declined"
#: A coordinator whose last step is one of these waits for a person, or is over.
AT_REST = frozenset(
    {
        GATE,
        DECLINED,
        "coordinator.assembly_completed",
        "coordinator.assembly_blocked",
        "coordinator.assembly_merge_blocked",
        "coordinator.assembly_failed",
        "coordinator.assembly_merge_failed",
        "run.failed",
        "run.cancelled",
    }
)
#: A coordinator whose last step is one of these has something to do.
AT_WORK = frozenset(
    {
        STARTED,
        APPROVED,
        "coordinator.work_plan",
        "coordinator.children_complete",
        "coordinator.assembly_started",
        "coordinator.assembly_integrated",
        "coordinator.assembly_changes_requested",
        "coordinator.assembly_merge_started",
        "coordinator.assembly_merge_prepared",
        "coordinator.assembly_merge_completed",
        "coordinator.recovered",
        "subtask.dispatched",
        "subtask.running",
        "subtask.pending",
    }
)
#: What ends a coordinator run for good, and with it everything under it.
OVER = frozenset(
    {
        DECLINED,
        "coordinator.assembly_completed",
        "coordinator.assembly_failed",
        "coordinator.assembly_merge_failed",
        "run.failed",
        "run.cancelled",
    }
)
#: What was tried in vain, whom it waits for, and that it does so no more.
HELD = "coordinator.effect_held"
RELEASED = "coordinator.effect_released"
CHILD_ENDS = frozenset({"run.assemble_ready", "run.completed", "run.failed", "run.cancelled"})


def every_run_is_started_once(
    facts: Iterable[SeenFact], acknowledged: Sequence[str], goals: Sequence[str]
) -> list[Violation]:
    """Each acknowledged run is there; each goal that was sent, acknowledged or not, has at most one run."""
    started = list(of_type(facts, STARTED))
    found: list[Violation] = []
    known = {fact.run for fact in started}
    for run_id in acknowledged:
        if run_id not in known:
            found.append(
                Violation(invariant="acknowledged is stored", message=f"{run_id} was acknowledged and is lost")
            )
    of_goal = Counter(str(fact.payload["goal"]) for fact in started)
    for goal in goals:
        if of_goal[goal] > 1:
            found.append(Violation(invariant="stored once", message=f"{goal!r} has {of_goal[goal]} runs"))
    return found


def acknowledged_decisions_are_stored(facts: Iterable[SeenFact], told: Iterable[tuple[str, str]]) -> list[Violation]:
    """Every approval and every refusal that was acknowledged, as (run, verb), is on its run's log."""
    verbs = {APPROVED: "approve", DECLINED: "decline"}
    stored = Counter((fact.root, verbs[fact.type]) for fact in of_type(facts, *verbs))
    return [
        Violation(
            invariant="acknowledged is stored",
            message=f"{root}: {count} times {verb} was acknowledged, and is stored {stored[root, verb]} times",
            root=root,
        )
        for (root, verb), count in Counter(told).items()
        if stored[root, verb] < count
    ]


def every_gate_is_decided_once(facts: Iterable[SeenFact]) -> list[Violation]:
    """Of the decisions about a gate the first one wins: no second one is on the log, and none of an unopened gate."""
    found: list[Violation] = []
    opened: set[str] = set()
    decided: set[str] = set()
    for fact in of_type(facts, GATE, APPROVED, DECLINED, "coordinator.assembly_merge_blocked"):
        if fact.type == "coordinator.assembly_merge_blocked":
            # Nothing was merged, and the same gate is open again.
            decided = {gate for gate in decided if not gate.startswith(f"{fact.root}/")}
            continue
        gate = str(fact.payload["gateId"])
        if fact.type == GATE:
            if gate in opened:
                found.append(_in(fact, "gates open once", f"the gate {gate} was opened before {fact.position}"))
            opened.add(gate)
        elif gate not in opened or gate in decided:
            what = "decided before" if gate in decided else "never opened"
            found.append(_in(fact, "gates are decided once", f"{fact.type} at {fact.position}: {gate} was {what}"))
        if fact.type != GATE:
            decided.add(gate)
    return found


def every_run_comes_to_rest(facts: Iterable[SeenFact]) -> list[Violation]:
    """
    At the end every coordinator stands at a gate, is parked, or is over, and nothing under one that is over works.

    One that is held is at rest, too: a fact names who is waited for.
    """
    return [found for root, tree in by_root(facts).items() for found in _rest_of(root, tree)]


def _rest_of(root: str, tree: Sequence[SeenFact]) -> list[Violation]:
    last: SeenFact | None = None
    merges = cleared = 0
    held: set[str] = set()
    children: dict[str, SeenFact] = {}
    subtasks: dict[int, SeenFact] = {}
    for fact in tree:
        if fact.run == root:
            last = fact if fact.type in AT_REST | AT_WORK else last
            merges += fact.type == "coordinator.assembly_merge_completed"
            if fact.type == HELD and fact.payload.get("waitsFor"):
                held.add(fact.payload["effectId"])
            elif fact.type == RELEASED:
                held.discard(fact.payload["effectId"])
            if fact.type.startswith("subtask."):
                subtasks[fact.payload["subtaskId"]] = fact
            child = fact.payload.get("childRunId")
            if fact.type == "subtask.dispatched" and child in children:
                children[child] = fact  # it goes on
        elif fact.type == "run.worktrees_removed":
            cleared = fact.position
        elif fact.run is not None and (fact.type == "run.started" or fact.type in CHILD_ENDS):
            children[fact.run] = fact
    found: list[Violation] = []
    if last is None or (last.type in AT_WORK and not held):
        where = f"{last.type} at {last.position}" if last else "its start"
        found.append(Violation(invariant="comes to rest", message=f"{root} stands still after {where}", root=root))
    elif last.type in OVER | {GATE}:
        for subtask, step in subtasks.items():
            if step.type in ("subtask.dispatched", "subtask.running") and last.type == GATE:
                why = f"{root} is at its gate, and its subtask {subtask} is {step.payload['status']}"
                found.append(Violation(invariant="nothing runs unowned", message=why, root=root))
        for child, step in children.items():
            if step.type not in CHILD_ENDS:
                why = f"{last.type} at {last.position} ended {root}, and its child {child} never ended"
                found.append(Violation(invariant="nothing runs unowned", message=why, root=root, about=(child,)))
    if last is not None and last.type in OVER and cleared < last.position and not held:
        why = f"{root} is over since {last.position}, and its worktrees were not cleared away"
        found.append(Violation(invariant="comes to rest", message=why, root=root))
    if merges > 1:
        found.append(Violation(invariant="merged once", message=f"{root} was merged {merges} times", root=root))
    return found


def numbers_have_no_gap(facts: Iterable[SeenFact]) -> list[Violation]:
    """Positions rise; in each run, each tree and each stream the facts count up by one, and leases rise."""
    found: list[Violation] = []
    counts: Counter[tuple[str, str]] = Counter()
    epochs: Counter[str | None] = Counter()
    position = 0
    for fact in facts:
        if fact.position <= position:
            found.append(_in(fact, "no gap", f"the position {fact.position} comes after {position}"))
        position = fact.position
        numbers = {
            ("run", fact.run): fact.run_sequence,
            ("tree", fact.root): fact.root_sequence,
            ("stream", fact.stream): fact.version,
        }
        if fact.type == "run.lease_taken":
            # Whoever took it may have died before it could say so: that epoch is left out.
            if fact.payload["epoch"] <= epochs[fact.root]:
                found.append(_in(fact, "no gap", f"the lease at {fact.position} is that of an epoch that was over"))
            epochs[fact.root] = fact.payload["epoch"]
        for (kind, name), number in numbers.items():
            if name is None or number is None:
                continue
            counts[kind, name] += 1
            if number != counts[kind, name]:
                why = f"at {fact.position} the {kind} {name} goes on with {number}, not {counts[kind, name]}"
                found.append(_in(fact, "no gap", why))
                counts[kind, name] = number
    return found


def _in(fact: SeenFact, invariant: str, message: str) -> Violation:
    return Violation(invariant=invariant, message=message, root=fact.root)
