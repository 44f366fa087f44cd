"""The receipt of a correction: what was asked, by digest, and the facts that put it on the log."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

from ..event import Draft
from ..facts.directive import DirectiveMoved, SteeringReceived
from ..facts.run import CoordinatorRun
from ..facts.work_plan import WorkPlan


def payload_hash(payload: Mapping[str, str]) -> str:
    """
    Return the digest of what is asked: sorted keys, no white space, raw UTF-8.

    Both ends of the worker's door compute it over kind, task_id, guidance, redirect_target and reason.
    """
    document = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return "sha256:" + hashlib.sha256(document.encode("utf-8", "surrogatepass")).hexdigest()


def queued(run: CoordinatorRun, received: SteeringReceived) -> Sequence[Draft]:
    """Return the receipt, and that it waits to be decided. A directive has one receipt: a second is a broken invariant."""
    if received.directive_id in run.directives:
        raise ValueError(
            f"the directive {received.directive_id} is on the log already: a second receipt would replace it"
        )
    # The second fact is on the coordinator's own stream, so that two receipts can never pass the same bound or gate.
    moved = DirectiveMoved(
        directive_id=received.directive_id,
        kind=received.verb,
        status="queued",
        target_child_run_id=received.target_scope.child_run_id,
        instruction=received.feedback,
    )
    return (run.on_directive(received.directive_id, received), run.coordinator(moved))


def fresh_budget(
    run: CoordinatorRun, plan: WorkPlan, directive_id: str, subtask_ids: Iterable[int], why: str, *, trips: int
) -> Draft:
    """
    Return that a person's word gives the plan, and these subtasks, their budgets anew. *trips* is how often a person has
    asked for changes at the gate by now.
    """
    return run.coordinator(
        DirectiveMoved(
            directive_id=directive_id,
            kind="redirect",
            status="queued",
            work_plan_id=plan.work_plan_id,
            source="human-review",
            human_review_round_trip=trips,
            reset_subtask_ids=tuple(sorted(subtask_ids)),
            note=why,
        )
    )
