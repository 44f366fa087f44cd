"""What is outstanding: the effects that the log calls for and that no fact has proved yet."""

import msgspec

from ..facts.child_run import ENDED, ChildRun, work_id
from ..facts.directive import SteeringDirective
from ..facts.gates import ORDER, GateKind
from ..facts.run import CoordinatorRun
from ..steering.earlier import earlier
from ..work import budget


class Effect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something to be done outside. Its id is the same for the same need, on every replica and after every restart."""

    id: str
    run_id: str

    @property
    def workplace(self) -> str:
        """What the effect works with: a branch, a worktree, an agent. No two effects work with the same at once."""
        return self.id


class DraftOutcome(Effect, frozen=True, kw_only=True):
    """Ask the writer what the goal means."""

    round: int

    @property
    def workplace(self) -> str:
        """The coordinator's own agent."""
        return f"{self.run_id}/coordinator"


class MakePlan(Effect, frozen=True, kw_only=True):
    """Ask the planner for a work plan."""

    @property
    def workplace(self) -> str:
        """The coordinator's own agent."""
        return f"{self.run_id}/coordinator"


class WorkOnSubtask(Effect, frozen=True, kw_only=True):
    """Take a child run through its turns to its end."""

    child_run_id: str


class AnswerQuestion(Effect, frozen=True, kw_only=True):
    """Have the coordinator answer what a child's agent asks."""

    child_run_id: str
    request_id: str

    @property
    def workplace(self) -> str:
        """The agent that answers for this child, whatever it is asked."""
        return f"{self.child_run_id}/autopilot"


class AssembleChildren(Effect, frozen=True, kw_only=True):
    """Put the children's work together on the integration branch."""

    @property
    def workplace(self) -> str:
        """The integration branch."""
        return f"{self.run_id}/integration"


class RunGate(Effect, frozen=True, kw_only=True):
    """Have an automated gate look at the assembled work."""

    kind: GateKind

    @property
    def workplace(self) -> str:
        """The worktree of this kind of gate, whatever round it looks at."""
        return f"{self.run_id}/{self.kind}"


class MergeAssembly(Effect, frozen=True, kw_only=True):
    """Merge the approved work into the originating branch."""

    @property
    def workplace(self) -> str:
        """The integration branch."""
        return f"{self.run_id}/integration"


class EndTurn(Effect, frozen=True, kw_only=True):
    """End a child's open turn early, because it was redirected."""

    child_run_id: str
    turn_id: str


class PauseWorker(Effect, frozen=True, kw_only=True):
    """Stop a child's processes and find out what its worktree holds."""

    child_run_id: str
    directive_id: str


class ResumeWorker(Effect, frozen=True, kw_only=True):
    """Let a paused child go on."""

    child_run_id: str
    directive_id: str


class EndWorkers(Effect, frozen=True, kw_only=True):
    """Kill what a stopped run's, or an aborted child's, agents have running."""

    directive_id: str


class ClearAway(Effect, frozen=True, kw_only=True):
    """Remove the worktrees of a run that has ended."""


class EraseRun(Effect, frozen=True, kw_only=True):
    """Remove everything that a deleted run left in its repository, and forget its words."""


def in_the_way(effect: Effect, other: Effect) -> bool:
    """Whether an effect has to wait for the end of another one, which may be no longer called for and not ended yet."""
    # What clears a run away is alone with it: whoever is still at work would put something back, and whoever begins,
    # because the run was taken up again meanwhile, would have its worktree removed under it.
    clears = isinstance(effect, ClearAway | EraseRun) or isinstance(other, ClearAway | EraseRun)
    return other.workplace == effect.workplace or (clears and other.run_id == effect.run_id)


def next_effects(run: CoordinatorRun) -> tuple[Effect, ...]:
    """
    Return everything that is outstanding in a run, in the order in which it should be begun; where no turn of an agent may
    begin, because a budget is used up, nothing that would begin one.

    A run with a fact that this release does not know has none here: a newer replica must drive it.
    """
    if not run.exists or run.unknown_topic is not None:
        return ()
    if run.deleted and run.ended:
        return () if run.erased else (EraseRun(id=f"{run.run_id}/erase", run_id=run.run_id),)
    if run.ended:
        return () if run.worktrees_removed else (ClearAway(id=f"{run.run_id}/clear-away", run_id=run.run_id),)
    if run.stopping:
        # Nothing is begun any more; what is at work stays its own thread's until it is killed.
        return (*_steering(run), *_work(run))
    if run.plan is None:
        return _steering(run) if run.out_of is not None else (*_steering(run), *_planning(run))
    return (*_steering(run), *_work(run), *_questions(run), *_assembly(run))


def _planning(run: CoordinatorRun) -> tuple[Effect, ...]:
    """What leads to a plan; nothing while a person is to confirm what the goal means."""
    spec = run.outcome_spec
    if spec is None or spec.status == "confirmed":
        return (MakePlan(id=f"{run.run_id}/plan", run_id=run.run_id),)
    if spec.status == "drafting":
        return (DraftOutcome(id=f"{run.run_id}/outcome-spec/{spec.round}", run_id=run.run_id, round=spec.round),)
    return ()


def _steering(run: CoordinatorRun) -> tuple[Effect, ...]:
    """What the decided directives call for outside; what they ask of agents goes with the children's next turns."""
    effects: list[Effect] = []
    for directive in run.pending_directives():
        if directive.action is None or not directive.direct:
            continue
        if directive.verb in ("stop", "abort"):
            effects.append(
                EndWorkers(id=f"{directive.directive_id}/end", run_id=run.run_id, directive_id=directive.directive_id)
            )
            continue
        for child_id in directive.targets:
            effects.extend(_on_child(run, directive, run.children[child_id]))
    # Two directives may call for the same thing.
    return tuple({effect.id: effect for effect in effects}.values())


def _on_child(run: CoordinatorRun, directive: SteeringDirective, child: ChildRun) -> tuple[Effect, ...]:
    of: dict[str, str] = {"run_id": run.run_id, "child_run_id": child.run_id}
    if directive.verb == "pause" and child.status == "pausing":
        if earlier(run, directive, child.run_id, "pause", "resume"):
            # The pause that is under way is another one, and somebody may have asked in between to go on.
            return ()
        return (PauseWorker(id=f"{directive.directive_id}/pause", directive_id=directive.directive_id, **of),)
    if directive.verb == "resume" and child.status == "paused":
        if earlier(run, directive, child.run_id, "pause"):
            return ()
        return (ResumeWorker(id=f"{directive.directive_id}/resume", directive_id=directive.directive_id, **of),)
    turn = child.turn
    if turn is None or turn.stop_reason is not None or directive.directive_id in turn.directive_ids:
        return ()
    if directive.verb == "redirect" and directive.waits_for(child.run_id) and child.status == "in_progress":
        return (EndTurn(id=f"{child.run_id}/end-turn/{turn.number}", turn_id=turn.turn_id, **of),)
    return ()


def _work(run: CoordinatorRun) -> tuple[Effect, ...]:
    if run.plan is None:
        return ()
    at_work = (subtask.child_run_id for _, subtask in sorted(run.plan.subtasks.items()) if subtask.in_flight)
    return tuple(
        WorkOnSubtask(id=work_id(child_id), run_id=run.run_id, child_run_id=child_id)
        for child_id in at_work
        if child_id is not None
        and run.children[child_id].status not in ENDED
        and not budget.rests(run, run.children[child_id])
    )


def _questions(run: CoordinatorRun) -> tuple[Effect, ...]:
    """What the coordinator answers by itself: of each child one question after the other."""
    if not run.autopilot or run.out_of is not None:
        return ()
    effects: list[Effect] = []
    for child in run.children.values():
        asked = (request.request_id for request in child.requests.values() if request.waits_for_autopilot)
        request_id = next(asked, None) if child.status == "in_progress" else None
        if request_id is not None:
            of: dict[str, str] = {"run_id": run.run_id, "child_run_id": child.run_id, "request_id": request_id}
            attempt = child.requests[request_id].autopilot_failures + 1
            effects.append(AnswerQuestion(id=f"{request_id}/autopilot/{attempt}", **of))
    return tuple(effects)


def _assembly(run: CoordinatorRun) -> tuple[Effect, ...]:
    if run.plan is None or run.assembly is None or run.plan.status != "assembling":
        return ()
    if run.assembly.head is None:
        return (AssembleChildren(id=f"{run.run_id}/assemble/{run.assembly.round}", run_id=run.run_id),)
    for kind in ORDER:
        if run.plan.stage == kind and kind not in run.assembly.gates_done:
            if run.out_of is not None and kind != "build-test":
                return ()
            return (RunGate(id=run.assembly.gate_id(kind), run_id=run.run_id, kind=kind),)
    if run.plan.stage == "merge":
        round_and_try = f"{run.assembly.round}/{run.assembly.approvals}"
        return (MergeAssembly(id=f"{run.run_id}/merge/{round_and_try}", run_id=run.run_id),)
    return ()
