"""How far a run is, as views show it: always the answer of the domain's own `evolve`, kept in a few fields."""

import msgspec

from ..domain.event import Event, Fact, Text
from ..domain.facts import fold
from ..domain.facts.assembly import Assembly
from ..domain.facts.child_run import ENDED, ChildRun, ChildStatus
from ..domain.facts.directive import CLOSED, DirectiveMoved, SteeringReceived
from ..domain.facts.run import TERMINAL, CoordinatorRun, RunStatus
from ..domain.facts.work_plan import PlanStatus, Subtask, SubtaskMoved, WorkPlan
from ..domain.git import Commit
from ..domain.steering.steerable import takes_words

#: What is decided and done about a directive moves the directive, not the run.
_OF_DIRECTIVES = frozenset({"coordinator.steering_decision", "coordinator.steering", "coordinator.revision_execution"})


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator run, without the parts of its plan and without words: as small for 200 subtasks as for one."""

    status: RunStatus = "in_progress"
    result: str | None = None
    ended_at: str | None = None
    #: Whether there is, or was, an assembly.
    assembled: bool = False
    plan_status: PlanStatus | None = None
    stage: str | None = None
    terminal_stage: str | None = None
    status_reason: str | None = None
    #: Whether it is being stopped.
    stopping: bool = False

    @property
    def steerable(self) -> bool:
        """Whether the coordinator's door takes words for the run now."""
        return not self.stopping and takes_words(_run(self, None))

    @property
    def reason(self) -> str | None:
        """Why the run stands where it does: the plan's reason, or what a run without a plan failed of."""
        if self.status_reason is not None or self.plan_status is not None:
            return self.status_reason
        return self.result if self.status in TERMINAL else None


def after(standing: Standing, fact: Fact) -> Standing:
    """Return the standing after a fact of the coordinator's own feed; the same one if the fact does not move the run."""
    if fact.event.OUTPUT:
        return standing
    stopping = _stopping(standing, fact.event)
    if stopping != standing.stopping:
        standing = msgspec.structs.replace(standing, stopping=stopping)
    # The receipt of what is said directly closes no gate; that of a signal about the assembled work may.
    if fact.topic in _OF_DIRECTIVES or (isinstance(fact.event, SteeringReceived) and fact.event.direct):
        return standing
    state = fold.evolve(_run(standing, fact.event), fact)
    plan = state.plan
    return Standing(
        status=state.status,
        result=state.result,
        ended_at=(standing.ended_at or fact.at.isoformat()) if state.ended else None,
        assembled=state.assembly is not None,
        plan_status=plan.status if plan else None,
        stage=plan.stage if plan else None,
        terminal_stage=plan.terminal_stage if plan else None,
        status_reason=plan.status_reason if plan else None,
        stopping=standing.stopping,
    )


def _stopping(standing: Standing, event: Event) -> bool:
    match event:
        case SteeringReceived():
            return standing.stopping or (event.verb == "stop" and event.target_scope.kind == "run")
        case DirectiveMoved() if event.kind == "stop" and event.target_child_run_id is None:
            return standing.stopping and event.status not in CLOSED
        case _:
            return standing.stopping


def _run(standing: Standing, event: Event | None) -> CoordinatorRun:
    return CoordinatorRun(
        status=standing.status,
        result=standing.result,
        assembly=Assembly(round=1, branch="", started_at="") if standing.assembled else None,
        plan=_plan(standing, event),
    )


def _plan(standing: Standing, event: Event | None) -> WorkPlan | None:
    if standing.plan_status is None:
        return None
    return WorkPlan(
        work_plan_id="",
        status=standing.plan_status,
        # Only the part that moves: how the plan as a whole moves with it does not depend on the others.
        subtasks={event.subtask_id: _stub(event)} if isinstance(event, SubtaskMoved) else {},
        stage=standing.stage,
        terminal_stage=standing.terminal_stage,
        status_reason=standing.status_reason,
    )


def _stub(event: SubtaskMoved) -> Subtask:
    return Subtask(
        subtask_id=event.subtask_id,
        title=Text(None),
        scope=Text(None),
        assigned_agent=event.assigned_agent,
        model_id=event.selected_model_id,
        phase="none",
        depends_on=(),
        files=(),
    )


class ChildStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A child run, without its turns and without words."""

    status: ChildStatus = "pending"
    ended_at: str | None = None
    base: Commit | None = None
    #: The last recorded commit of the child's branch.
    head: Commit | None = None
    has_changes: bool = False

    @property
    def tree_hash(self) -> str | None:
        """The tree that the child offers to the assembly; None while it offers none."""
        return self.head.tree if self.head is not None and self.status == "assemble_ready" else None


def child_after(standing: ChildStanding, child_run_id: str, fact: Fact) -> ChildStanding:
    """Return the standing after a fact of the child's own feed, or after a step of its subtask."""
    if fact.event.OUTPUT:
        return standing
    at = fact.at.isoformat()
    state = CoordinatorRun(
        plan=_plan(Standing(plan_status="dispatching"), fact.event),
        children={child_run_id: _child(standing, child_run_id)},
    )
    child = fold.evolve(state, fact).children[child_run_id]
    return ChildStanding(
        status=child.status,
        ended_at=(standing.ended_at or at) if child.status in ENDED else None,
        base=child.base,
        head=child.head,
        has_changes=child.has_changes,
    )


def _child(standing: ChildStanding, child_run_id: str) -> ChildRun:
    return ChildRun(
        run_id=child_run_id,
        subtask_id=0,
        agent_name="",
        model_id="",
        branch="",
        created_at="",
        status=standing.status,
        base=standing.base,
        head=standing.head,
        has_changes=standing.has_changes,
    )
