"""
The decision table of steering: what a correction leads to, and why, in words.

One function, one place: whoever asks (a person, a gate, an agent) and whenever it is asked again, the same log gives
the same answer.
"""

from collections.abc import Iterable, Sequence

from ..facts.child_run import ChildRun
from ..facts.directive import Action, SteeringDecided, SteeringDirective
from ..facts.run import CoordinatorRun
from ..facts.work_plan import Subtask, WorkPlan

#: How often one subtask is done over before a person has to look at it.
MAX_RECOVERY_ATTEMPTS = 3

_DIRECT: dict[str, Action] = {
    "guidance": "in_place_steer",
    "send": "in_place_steer",
    "amend": "in_place_steer",
    "redirect": "in_place_steer",
    "resume": "in_place_steer",
    "pause": "proceed",
    "stop": "proceed",
    "abort": "proceed",
}


def decide(run: CoordinatorRun, directive: SteeringDirective) -> tuple[SteeringDecided, ...]:
    """
    Return the decision about a directive; two when some of its targets can go on in place and the rest cannot.

    Deciding a directive that is decided already gives nothing.
    """
    if directive.action is not None or not directive.open:
        return ()
    if directive.direct:
        return (_direct(directive),)
    plan = run.plan
    if plan is None:
        return (_decided(directive, "proceed", "There is no work plan to change, so a person has to decide.", (), 0),)
    subtasks = concerned(plan, directive)
    attempt = plan.steering_iterations + 1
    ids = tuple(subtask.subtask_id for subtask in subtasks)
    action, why = _choose(run, plan, directive, subtasks)
    if action is not None:
        return (_decided(directive, action, _prefix(run) + why, ids, attempt),)
    return _go_on(run, directive, subtasks, attempt)


def concerned(plan: WorkPlan, directive: SteeringDirective) -> tuple[Subtask, ...]:
    """Return the subtasks that a directive is about, by id; without any named, all of the plan."""
    ids = directive.subtask_ids or tuple(plan.subtasks)
    return tuple(plan.subtasks[i] for i in sorted(ids) if i in plan.subtasks)


def resumable(run: CoordinatorRun, subtask: Subtask) -> ChildRun | None:
    """Return the child run that can go on with a subtask in place, or None: no session, no way to load one, or failed."""
    child = run.children.get(subtask.child_run_id or "")
    if child is None or child.status == "failed" or child.session_id is None:
        return None
    if not {"load_session", "resume_session"}.intersection(child.capabilities):
        return None
    return child


def _direct(directive: SteeringDirective) -> SteeringDecided:
    rationale = f"direct:{directive.verb}"
    if directive.severity == "advisory":
        return _decided(directive, "advisory", rationale, directive.subtask_ids, 0)
    if directive.verb in ("redirect", "amend") and not directive.targets:
        # Received while the run stood still. Another correction may have set it going since.
        return _decided(directive, "dispatch_fresh", rationale, directive.subtask_ids, 0)
    action = _DIRECT[directive.verb]
    return _decided(directive, action, rationale, directive.subtask_ids, 0, targets=tuple(directive.targets))


def _choose(
    run: CoordinatorRun, plan: WorkPlan, directive: SteeringDirective, subtasks: Sequence[Subtask]
) -> tuple[Action | None, str]:
    if directive.severity == "advisory":
        return "advisory", "The signal is advice: it is shown, and nothing is changed."
    if not subtasks:
        return "proceed", "The signal is about no subtask of the plan, so a person has to decide."
    worn_out = [s.subtask_id for s in subtasks if s.recovery_attempts >= MAX_RECOVERY_ATTEMPTS]
    if worn_out:
        return "proceed", (
            f"Subtask {worn_out[0]} has used its budget of {MAX_RECOVERY_ATTEMPTS} attempts, so a person has to decide."
        )
    if plan.steering_iterations >= run.max_steering_iterations:
        return "proceed", (
            f"The plan has used its budget of {run.max_steering_iterations} steering iterations, "
            "so a person has to decide."
        )
    if directive.source == "human-review" and not str(directive.feedback).strip():
        # An agent that is told nothing could only do the same again.
        return "proceed", "lockout_no_context: there are no words to hand over, so a person has to decide."
    if directive.severity == "blocking":
        word = "rai_red: " if directive.source == "rai" else ""
        return "proceed", word + "The signal is blocking, so a person has to decide."
    if _stale(run, directive):
        return "proceed", "The signal is about a tree that is no longer the assembled one, so a person has to decide."
    return None, ""


def _stale(run: CoordinatorRun, directive: SteeringDirective) -> bool:
    head = run.assembly.head if run.assembly else None
    return directive.tree_hash is not None and head is not None and directive.tree_hash != head.tree


def _go_on(
    run: CoordinatorRun, directive: SteeringDirective, subtasks: Iterable[Subtask], attempt: int
) -> tuple[SteeringDecided, ...]:
    """Budgets are charged once for the directive, with its first decision, for every subtask that it is about."""
    in_place: dict[int, ChildRun] = {}
    afresh: list[int] = []
    for subtask in subtasks:
        child = resumable(run, subtask)
        if child is None:
            afresh.append(subtask.subtask_id)
        else:
            in_place[subtask.subtask_id] = child
    everybody = tuple(sorted((*in_place, *afresh)))
    why = _prefix(run) + "The request can be met within the budgets. "
    if not in_place:
        text = why + f"{_named(afresh)} cannot go on in place ({_reason(run, afresh)}), so the work starts afresh."
        return (_decided(directive, "dispatch_fresh", text, everybody, attempt, charged=True),)
    text = why + f"{_named(in_place)} can go on in place: same child run, same session, same worktree."
    children = tuple(child.run_id for child in in_place.values())
    first = _decided(directive, "in_place_steer", text, everybody, attempt, charged=True, targets=children)
    if not afresh:
        return (first,)
    rest = f"{_named(afresh)} cannot go on in place ({_reason(run, afresh)}), so that part starts afresh."
    return (first, _decided(directive, "dispatch_fresh", rest, tuple(afresh), attempt, phase="mixed_targets"))


def _reason(run: CoordinatorRun, subtask_ids: Iterable[int]) -> str:
    assert run.plan is not None
    reasons: set[str] = set()
    for subtask_id in subtask_ids:
        child = run.children.get(run.plan.subtasks[subtask_id].child_run_id or "")
        if child is None or child.session_id is None:
            reasons.add("it has no session")
        elif child.status == "failed":
            reasons.add("its run has failed")
        else:
            reasons.add(f"its agent {child.model_id} cannot load a session")
    return ", ".join(sorted(reasons))


def _named(subtask_ids: Iterable[int]) -> str:
    ids = ", ".join(str(subtask_id) for subtask_id in sorted(subtask_ids))
    return f"Subtask {ids}" if "," not in ids else f"Subtasks {ids}"


def _prefix(run: CoordinatorRun) -> str:
    return "Autopilot: " if run.autopilot else ""


def _decided(
    directive: SteeringDirective,
    action: Action,
    rationale: str,
    subtask_ids: tuple[int, ...],
    attempt: int,
    *,
    charged: bool = False,
    targets: tuple[str, ...] = (),
    phase: str | None = None,
) -> SteeringDecided:
    return SteeringDecided(
        directive_id=directive.directive_id,
        decision=action,
        rationale=rationale,
        subtask_ids=subtask_ids,
        attempt=attempt,
        charged=charged,
        targets=targets,
        phase=phase,
    )
