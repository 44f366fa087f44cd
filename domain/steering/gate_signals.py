"""
Receive what is said about the assembled work: by a person at the human gate, or by an automated one.

Feedback is for whoever revises the work; it is never parsed. Only named files say whom it is about.
"""

from collections.abc import Mapping, Sequence

import msgspec

from ..event import Draft, Text
from ..facts.assembly import MAX_SHOWN_FILES, ScopeFellBack
from ..facts.directive import Severity, Source, SteeringReceived, TargetScope
from ..facts.run import CoordinatorRun
from ..rejected import Invalid, Rejected
from .implicated import implicated
from .receipts import fresh_budget, payload_hash, queued

MAX_FEEDBACK_BYTES = 16_384
MAX_TARGET_FILES = 1_000

#: What each subtask's child has changed, by path.
Touched = Mapping[int, frozenset[str]]


class RequestChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for changes of the assembled work, at the human gate."""

    directive_id: str
    feedback: str
    reviewer: str
    target_files: tuple[str, ...] = ()
    tree_hash: str | None = None


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """What an automated gate, or an agent, has to say about the assembled work."""

    directive_id: str
    source: Source
    severity: Severity
    feedback: str
    created_by: str
    target_files: tuple[str, ...] = ()
    tree_hash: str | None = None


class NoReviewPending(Rejected):
    """No collective review is awaited: the assembly is not there yet, or somebody has decided already."""

    code = "no_assembly_review_pending"


def request_changes(run: CoordinatorRun, command: RequestChanges, touched: Touched) -> Sequence[Draft]:
    """
    Receive a person's request at the gate; the gate closes, and the plan's budgets start anew.

    Raises:
        NoReviewPending: no gate is open.
        Invalid: the feedback is too long, or too many files are named.
    """
    assembly = run.assembly
    if assembly is None or not assembly.gate_open or assembly.head is None or run.plan is None or run.stopping:
        raise NoReviewPending
    if len(command.feedback.encode(errors="replace")) > MAX_FEEDBACK_BYTES:
        raise Invalid(f"`feedback` has more than {MAX_FEEDBACK_BYTES} bytes.")
    if len(command.target_files) > MAX_TARGET_FILES:
        raise Invalid(f"`target_files` names more than {MAX_TARGET_FILES} files.")
    signal = Signal(
        directive_id=command.directive_id,
        source="human-review",
        severity="request-changes",
        feedback=command.feedback,
        created_by=command.reviewer,
        target_files=command.target_files,
        tree_hash=command.tree_hash or assembly.head.tree,
    )
    drafts = receive_signal(run, signal, touched)
    found = implicated(run.plan, command.target_files, touched)
    fresh = fresh_budget(
        run,
        run.plan,
        command.directive_id,
        {*found.subtask_ids, *run.plan.dependants(found.subtask_ids)},
        "A person asked for changes, so the coordinator's budgets start anew.",
        trips=run.plan.human_review_round_trips + 1,
    )
    return (*drafts, fresh)


def receive_signal(run: CoordinatorRun, signal: Signal, touched: Touched) -> Sequence[Draft]:
    """Receive a signal about the assembled work. Raises NoReviewPending when there is none."""
    if run.plan is None or run.assembly is None or run.ended or run.merging:
        raise NoReviewPending
    found = implicated(run.plan, signal.target_files, touched)
    received = SteeringReceived(
        directive_id=signal.directive_id,
        source=signal.source,
        severity=signal.severity,
        verb="send" if signal.severity == "advisory" else "redirect",
        target_scope=TargetScope(kind="subtask", subtask_ids=found.subtask_ids),
        feedback=Text(signal.feedback),
        tree_hash=signal.tree_hash,
        target_files=tuple(Text(path) for path in signal.target_files),
        created_by=signal.created_by,
        payload_hash=payload_hash({"source": signal.source, "severity": signal.severity, "feedback": signal.feedback}),
        direct=False,
    )
    drafts = list(queued(run, received))
    if found.fallback is not None and signal.severity != "advisory":
        fell_back = ScopeFellBack(
            work_plan_id=run.plan.work_plan_id,
            source=signal.source,
            reviewer=signal.created_by,
            reason=found.fallback,
            named_files=tuple(Text(path) for path in signal.target_files),
            touched_files=tuple(
                Text(path) for path in sorted({p for of in touched.values() for p in of})[:MAX_SHOWN_FILES]
            ),
            contributor_ids=found.contributor_ids,
        )
        drafts.append(run.coordinator(fell_back))
    return drafts
