"""
What waits for somebody in a coordinator run and its children, as `GET /api/waiting` lists it.

Key: the coordinator run's id; group: its project's id while something waits, else none.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from ..domain.event import Fact
from ..domain.facts.asking import (
    MAX_AUTOPILOT_FAILURES,
    ApprovalResolved,
    AutopilotFailed,
    OptionsSet,
    QuestionAnswered,
    QuestionAsked,
    ShellApprovalRequired,
    ToolApprovalRequired,
)
from ..domain.facts.assembly import AssemblyBlocked, ReviewRequested
from ..domain.facts.directive import DirectiveMoved
from ..domain.facts.held import EffectHeld, EffectReleased
from ..domain.facts.outcome_spec import OutcomeSpecConfirmed, OutcomeSpecDrafted, OutcomeSpecDrafting
from ..domain.facts.run import TERMINAL, CoordinatorStarted
from ..domain.facts.spending import BudgetReached, BudgetReleased, BudgetScope, BudgetSet, Limit
from .money import money
from .standing import Standing, after
from .view import Rows, View, deleted_run

VERSION = 2

WaitingKind = Literal["gate", "outcome_spec", "tool", "shell", "question", "needs_attention", "blocked", "budget"]
#: Who is waited for: whoever may decide in the project, whoever looks after the machine, or a newer release.
WaitsForWhom = Literal["person", "operator", "release"]


class LostPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the plan that has no result, and why: in a word, and in the last words of its agent."""

    subtask_id: int
    title: str | None
    agent: str
    error_code: str | None
    message: str | None


class WaitingDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody needs to know who is to decide. What says nothing about this kind is left out."""

    #: gate: what was assembled, and why it is there if not simply because the work is done.
    tree_hash: str | None = None
    commit_hash: str | None = None
    has_changes: bool | None = None
    conflicting_files: tuple[str, ...] = ()
    moved_files: tuple[str, ...] = ()
    #: outcome_spec: what the goal is taken to mean.
    goal: str | None = None
    desired_outcome: str | None = None
    scope: str | None = None
    assumptions: str | None = None
    clarifying_questions: str | None = None
    #: tool: which, and with what, as the agent's call has it; the call on the child's feed, its kind, and its files.
    tool_name: str | None = None
    arguments: str | None = None
    url: str | None = None
    call_id: str | None = None
    tool_kind: str | None = None
    files: tuple[str, ...] = ()
    #: shell: why it is asked about, with the command; and the digest by which it is decided.
    command: str | None = None
    command_hash: str | None = None
    question: str | None = None
    #: needs_attention: what could not be carried out.
    directive_id: str | None = None
    verb: str | None = None
    instruction: str | None = None
    #: blocked: the parts of the plan without a result, or what fails time and again.
    parts: tuple[LostPart, ...] = ()
    effect: str | None = None
    message: str | None = None
    reason: str | None = None
    #: budget: which limit, whose (run, project), and what of it is used; of money as a decimal number, with its currency;
    #: and the model of the agent that does not say what it uses.
    limit: Limit | None = None
    limit_of: BudgetScope | None = None
    spent: str | None = None
    allowed: str | None = None
    currency: str | None = None
    model_id: str | None = None


class WaitingItem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that waits."""

    id: str
    kind: WaitingKind
    child_run_id: str | None = None
    #: When it began to wait, and the position of the fact that says so: the lower, the older.
    since: str
    position: int
    waits_for: WaitsForWhom = "person"
    detail: WaitingDetail
    #: Of a question: how often autopilot could not answer it.
    autopilot_failures: int = 0


class WaitingRun(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator run, and what waits in it."""

    run_id: str
    project_id: str
    #: The position of the run's first fact.
    position: int
    started_by: str
    task: str | None
    branch: str
    #: The new branch that the work goes onto; None: into the other one.
    delivered_to: str | None = None
    autopilot: bool
    standing: Standing = Standing()
    #: Everything that may wait, by its key; `items` says what does.
    asked: dict[str, WaitingItem] = {}

    @property
    def items(self) -> tuple[WaitingItem, ...]:
        """What waits now, the oldest first."""
        found = [item for item in self.asked.values() if self._waits(item)]
        return tuple(sorted(found, key=lambda item: item.position))

    def _waits(self, item: WaitingItem) -> bool:
        if item.waits_for != "person":
            return True  # also when the run has ended: what it left behind is to be cleared away
        if self.standing.status in TERMINAL or self.standing.stopping:
            return False
        match item.kind:
            case "gate":
                return self.standing.status == "awaiting_review"
            case "blocked":
                return self.standing.plan_status == "assembly_blocked"
            case "question":
                return not self.autopilot or item.autopilot_failures >= MAX_AUTOPILOT_FAILURES
            case _:
                return True


GATE, SPEC, BLOCKED, BUDGET = "gate", "outcome_spec", "blocked", "budget"


def apply(rows: Rows[WaitingRun], fact: Fact) -> Mapping[str, WaitingRun | None]:
    """Fold one fact of a run's tree."""
    if (deleted := deleted_run(fact)) is not None:
        return {deleted: None}
    if fact.root is None or fact.event.OUTPUT:
        return {}
    row = rows.get(fact.root)
    then = after_fact(row, fact)
    return {} if then == row else {fact.root: then}


def after_fact(row: WaitingRun | None, fact: Fact) -> WaitingRun | None:
    """Return what waits in a run after a fact of its tree; None: there was no such run, and it does not begin here."""
    if isinstance(fact.event, CoordinatorStarted) and fact.root is not None:
        return _started(fact.root, fact, fact.event)
    return None if row is None else _next(row, fact)


def _started(run_id: str, fact: Fact, event: CoordinatorStarted) -> WaitingRun:
    return WaitingRun(
        run_id=run_id,
        project_id=event.project_id,
        position=fact.position,
        started_by=event.submitting_user,
        task=event.goal.value,
        branch=event.originating_branch,
        delivered_to=event.delivery.branch_of(run_id) if event.delivery and event.delivery.mode != "merge" else None,
        autopilot=event.autopilot,
    )


def _next(row: WaitingRun, fact: Fact) -> WaitingRun:
    replace = msgspec.structs.replace
    if fact.run == fact.root:
        row = replace(row, standing=after(row.standing, fact))
    match fact.event:
        case OptionsSet() as event:
            # Autopilot that is turned on may try every question as often as at first.
            again = event.autopilot and not row.autopilot
            asked = {k: replace(i, autopilot_failures=0) if again else i for k, i in row.asked.items()}
            return replace(row, autopilot=event.autopilot, asked=asked)
        case AutopilotFailed() as event if event.request_id in row.asked:
            return _with(row, event.request_id, replace(row.asked[event.request_id], autopilot_failures=event.attempt))
        case ApprovalResolved() | QuestionAnswered() as event:
            return _without(row, event.request_id)
        case OutcomeSpecConfirmed() | OutcomeSpecDrafting():
            return _without(row, SPEC)
        case EffectReleased() as event:
            return _without(row, event.effect_id)
        case BudgetSet() | BudgetReleased():
            return _without(row, BUDGET)
        case DirectiveMoved(work_plan_id=None) as event if event.status != "needs_attention":
            return _without(row, event.directive_id)
        case _:
            item = _asked(row, fact)
            return row if item is None else _with(row, *item)


def _with(row: WaitingRun, key: str, item: WaitingItem) -> WaitingRun:
    return msgspec.structs.replace(row, asked={**row.asked, key: item})


def _without(row: WaitingRun, key: str) -> WaitingRun:
    if key not in row.asked:
        return row
    return msgspec.structs.replace(row, asked={other: item for other, item in row.asked.items() if other != key})


def _asked(row: WaitingRun, fact: Fact) -> tuple[str, WaitingItem] | None:
    """Return what begins to wait with a fact, and under which key, if anything does."""
    match fact.event:
        case ToolApprovalRequired() | ShellApprovalRequired() | QuestionAsked() as event:
            return event.request_id, _request(fact, event)
        case ReviewRequested() as event:
            return GATE, _item(fact, event.gate_id, "gate", _gate(event))
        case OutcomeSpecDrafted() as event:
            return SPEC, _item(fact, event.spec_id, "outcome_spec", _spec(event))
        case AssemblyBlocked() as event:
            return BLOCKED, _item(fact, f"blocked-{fact.position}", "blocked", _blocked(event))
        case BudgetReached() as event:
            return BUDGET, _item(fact, f"budget-{fact.position}", "budget", _budget(event))
        case DirectiveMoved(work_plan_id=None) as event:
            detail = WaitingDetail(
                directive_id=event.directive_id,
                verb=event.kind,
                instruction=event.instruction.value if event.instruction else None,
                reason=event.reason,
            )
            return event.directive_id, _item(fact, event.directive_id, "needs_attention", detail)
        case EffectHeld() as event:
            before = row.asked.get(event.effect_id)
            detail = WaitingDetail(effect=event.kind, reason=event.error_code, message=event.message.value)
            item = msgspec.structs.replace(
                _item(fact, event.effect_id, "blocked", detail),
                child_run_id=event.child_run_id,
                waits_for=event.waits_for,
                since=before.since if before else fact.at.isoformat(),
            )
            return event.effect_id, item
        case _:
            return None


def _item(fact: Fact, item_id: str, kind: WaitingKind, detail: WaitingDetail) -> WaitingItem:
    return WaitingItem(id=item_id, kind=kind, since=fact.at.isoformat(), position=fact.position, detail=detail)


def _request(fact: Fact, event: ToolApprovalRequired | ShellApprovalRequired | QuestionAsked) -> WaitingItem:
    match event:
        case ToolApprovalRequired():
            detail = WaitingDetail(
                tool_name=event.tool_name.value,
                arguments=event.intention.value if event.intention else None,
                url=event.url.value if event.url else None,
                call_id=event.call_id,
                tool_kind=event.kind,
                files=tuple(at.path.value for at in event.locations if at.path.value),
            )
            item = _item(fact, event.request_id, "tool", detail)
        case ShellApprovalRequired():
            detail = WaitingDetail(command=event.message.value, command_hash=event.command_hash)
            item = _item(fact, event.request_id, "shell", detail)
        case QuestionAsked():
            item = _item(fact, event.request_id, "question", WaitingDetail(question=event.question.value))
    return msgspec.structs.replace(item, child_run_id=fact.run)


def _gate(event: ReviewRequested) -> WaitingDetail:
    conflicting = {path.value: None for conflict in event.conflicts for path in conflict.paths if path.value}
    return WaitingDetail(
        tree_hash=event.tree_hash,
        commit_hash=event.commit_hash,
        has_changes=event.has_changes,
        conflicting_files=tuple(conflicting),
        moved_files=tuple(path.value for path in event.moved_files if path.value),
        reason=event.reason,
    )


def _spec(event: OutcomeSpecDrafted) -> WaitingDetail:
    questions = event.clarifying_questions
    return WaitingDetail(
        goal=event.goal.value,
        desired_outcome=event.desired_outcome.value,
        scope=event.scope.value,
        assumptions=event.assumptions.value,
        clarifying_questions=questions.value if questions else None,
    )


def _budget(event: BudgetReached) -> WaitingDetail:
    is_money = event.limit == "money"
    return WaitingDetail(
        reason=event.reason,
        limit=event.limit,
        limit_of=event.scope,
        spent=money(event.spent) if is_money else str(event.spent),
        allowed=money(event.allowed) if is_money else str(event.allowed),
        currency=event.currency,
        model_id=event.model_id,
    )


def _blocked(event: AssemblyBlocked) -> WaitingDetail:
    parts = tuple(
        LostPart(
            subtask_id=part.id,
            title=part.title.value,
            agent=part.agent,
            error_code=part.cause,
            message=part.reason.value if part.reason else None,
        )
        for part in event.ineligible_subtasks
    )
    return WaitingDetail(reason=event.reason, parts=parts)


def _place(row: WaitingRun) -> tuple[str, int]:
    return row.project_id if row.items else "", row.position


VIEW = View("waiting", VERSION, WaitingRun, apply=apply, place=_place)
