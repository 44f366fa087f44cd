"""Put a run aside, or delete it for good, as decisions. Deleting is driven from the log."""

from collections.abc import Sequence
from uuid import NAMESPACE_OID, uuid5

from ..event import Draft, Text
from ..facts.directive import SteeringReceived, TargetScope
from ..facts.run import CoordinatorRun, deletion_stream
from ..facts.run_records import RunArchived, RunDeleted, RunErased
from ..steering.receipts import payload_hash, queued
from ..work.turns import Overtaken


def archive(run: CoordinatorRun, by: str) -> Sequence[Draft]:
    """Put the run aside; nothing to store if it is put aside already."""
    if run.archived_at is not None:
        return ()
    return (run.coordinator(RunArchived(run_id=run.run_id, archived_by=by)),)


def delete(run: CoordinatorRun, by: str) -> Sequence[Draft]:
    """Hide the whole tree at once. Whatever still is at work in it is ended by the driver afterwards."""
    return tuple(
        Draft(
            stream=deletion_stream(run.run_id),
            event=RunDeleted(run_id=run_id, deleted_by=by),
            run=run_id,
            root=run.run_id,
        )
        for run_id in (run.run_id, *run.children)
    )


def delete_with_project(run: CoordinatorRun) -> Sequence[Draft]:
    """Hide a run with the project that it belongs to; nothing to store if it is deleted already."""
    return () if run.deleted else delete(run, "coordinator")


def end_deleted(run: CoordinatorRun) -> Sequence[Draft]:
    """
    Stop a deleted run that has not ended: a receipt like anybody's stop, so a decision, an effect and a proof follow.

    What is being merged is merged, or blocked: that ends by itself, and a branch is never left half moved.
    """
    if not run.deleted or run.ended or run.stopping or run.merging:
        return ()
    return stop_drafts(run, str(uuid5(NAMESPACE_OID, f"{run.run_id}/deleted/{len(run.directives)}")), "deleted")


def end_with_project(run: CoordinatorRun) -> Sequence[Draft]:
    """Stop a run whose project is being deleted. What is being merged ends by itself."""
    if run.ended or run.stopping or run.merging:
        return ()
    directive_id = str(uuid5(NAMESPACE_OID, f"{run.run_id}/project-deleted/{len(run.directives)}"))
    return stop_drafts(run, directive_id, "project_deleted")


def stop_drafts(run: CoordinatorRun, directive_id: str, ends_as: str) -> Sequence[Draft]:
    """Return the receipt of a stop of the whole run that nobody's token asked for; *ends_as* is the runs' reason."""
    parts = run.plan.subtasks.values() if run.plan else ()
    targets = tuple(part.child_run_id for part in parts if part.in_flight and part.child_run_id is not None)
    received = SteeringReceived(
        directive_id=directive_id,
        source="coordinator",
        severity="request-changes",
        verb="stop",
        target_scope=TargetScope(
            kind="run", subtask_ids=tuple(sorted(run.children[target].subtask_id for target in targets))
        ),
        feedback=Text(""),
        tree_hash=None,
        target_files=(),
        created_by="coordinator",
        payload_hash=payload_hash({"kind": "stop", "run_id": run.run_id, "target_child_run_id": "", "instruction": ""}),
        direct=True,
        targets=targets,
        ends_as=ends_as,
    )
    return queued(run, received)


def confirm_erased(run: CoordinatorRun, texts: int) -> Sequence[Draft]:
    """Nothing is left to forget. It belongs to the tree and to nobody's feed: nobody is shown one any more."""
    if not run.deleted or run.erased:
        raise Overtaken
    erased = RunErased(run_id=run.run_id, texts=texts)
    return (Draft(stream=f"{run.stream}/housekeeping", event=erased, root=run.run_id),)
