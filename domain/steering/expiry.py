"""What an agent asked and nobody has answered, when it can no longer hear the answer. That is nobody's denial."""

from collections.abc import Sequence

from ..event import Draft
from ..facts.asking import ApprovalResolved, ChildApprovalResolved, QuestionAnswered
from ..facts.child_run import ChildRun
from ..facts.run import CoordinatorRun


def expire_requests(run: CoordinatorRun, child: ChildRun) -> Sequence[Draft]:
    """
    Close what the child's agent still waits for.

    It goes before the fact that ends the turn or the run: behind that one nobody would see it.
    """
    drafts: list[Draft] = []
    for request in child.requests.values():
        if request.state != "pending":
            continue
        if request.kind == "question":
            answered = QuestionAnswered(request_id=request.request_id, answer=None, timed_out=True, answered_by=None)
            drafts.append(run.on_child(child.run_id, answered))
            continue
        resolved = ApprovalResolved(
            request_id=request.request_id,
            run_id=child.run_id,
            approved=False,
            expired=True,
            scope="once",
            resolved_by=None,
        )
        shown = ChildApprovalResolved(
            child_run_id=child.run_id,
            subtask_id=child.subtask_id,
            request_id=request.request_id,
            approved=False,
            expired=True,
        )
        drafts += [run.on_child(child.run_id, resolved), run.coordinator(shown)]
    return drafts
