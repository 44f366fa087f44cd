"""What happens to a child run from its worktree to its committed turn, as decisions."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from uuid import NAMESPACE_OID, uuid5

from ..event import Draft, Text
from ..facts.bad_ends import INTERRUPTED
from ..facts.child_run import (
    ENDED,
    MAX_INTERRUPTIONS,
    BaseRebuilt,
    ChildRun,
    SessionOpened,
    TreeCommitted,
    TurnEnded,
    TurnInterrupted,
    TurnOpened,
    TurnStarted,
    WorktreePrepared,
)
from ..facts.conflicts import Conflict
from ..facts.directive import MAX_EXECUTIONS, RevisionExecution, SteeringDirective
from ..facts.line import in_the_work
from ..facts.run import CoordinatorRun
from ..facts.work_plan import Subtask, SubtaskRunning, step
from ..git import Commit
from ..projects.project import Project
from ..rejected import Rejected
from ..steering.expiry import expire_requests
from ..steering.follow import feedback_rounds, moved
from . import budget, prompts
from .budget import NO_PROJECT
from .what_happened import Said

MAX_MESSAGE_CHARACTERS = 2_000


class Overtaken(Rejected):
    """The run has moved on, so this step is no longer wanted. Nothing was stored."""

    code = "overtaken"


class InterruptedTooOften(Rejected):
    """The turn was cut off so often that it is given up."""

    code = INTERRUPTED


def child_at_work(run: CoordinatorRun, child_run_id: str) -> tuple[ChildRun, Subtask]:
    """Return a child run and its subtask. Raises Overtaken when the child has ended or works on it no longer."""
    child = run.children.get(child_run_id)
    subtask = run.part_of(child_run_id)
    if child is None or subtask is None or child.status in ENDED or run.ended:
        raise Overtaken
    return child, subtask


def prepare_worktree(
    run: CoordinatorRun,
    child_run_id: str,
    base: Commit,
    path: str,
    at: datetime,
    foundation: Commit | None = None,
    conflicts: Sequence[Conflict] = (),
) -> Sequence[Draft]:
    """The worktree stands at *base*, so the subtask runs. What is beyond *foundation* there, earlier authors of it left."""
    child, subtask = child_at_work(run, child_run_id)
    if child.base is not None:
        raise Overtaken
    prepared = WorktreePrepared(
        base=base,
        worktree_path=Text(path),
        worktree_branch=child.branch,
        foundation=foundation or base,
        conflicts=tuple(conflicts),
    )
    running = step(SubtaskRunning, subtask, "running", at)
    return (run.on_child(child_run_id, prepared), run.on_plan(running))


def take_up(run: CoordinatorRun, child_run_id: str, at: datetime) -> Sequence[Draft]:
    """A child that had finished has its place again, so its subtask runs."""
    child, subtask = child_at_work(run, child_run_id)
    if subtask.status != "dispatched" or child.head is None:
        raise Overtaken
    return (run.on_plan(step(SubtaskRunning, subtask, "running", at)),)


def open_session(
    run: CoordinatorRun, child_run_id: str, session_id: str, capabilities: Sequence[str]
) -> Sequence[Draft]:
    """An agent process stands ready with this session."""
    child, _ = child_at_work(run, child_run_id)
    opened = SessionOpened(session_id=session_id, model_id=child.model_id, capabilities=tuple(capabilities))
    return (run.on_child(child_run_id, opened),)


def open_turn(run: CoordinatorRun, child_run_id: str, project: Project = NO_PROJECT) -> Sequence[Draft]:
    """
    Decide what the agent is asked next; nothing when nothing is left to ask, or while the child is paused.

    The turn carries every directive that waits for this child, in the order of their receipt, each for the only time. Where
    the budget of the run or of its project is used up no turn begins, and that is said in its place, once.
    """
    child, subtask = child_at_work(run, child_run_id)
    if child.head is None:
        raise Overtaken
    waiting = [directive for directive in run.open_for(child_run_id) if directive.waits_for(child_run_id)]
    # An agent that has not even begun its task is asked for it again, whatever became of what was said to it.
    told = child.turn is not None and child.briefed and not child.rebuilt
    if child.status in ("pausing", "paused") or (told and not waiting) or run.out_of is not None:
        return ()
    if reached := budget.may_begin(run, project):
        return reached
    number = child.turn.number + 1 if child.turn else 1
    turn_id = str(uuid5(NAMESPACE_OID, f"{child_run_id}/turn/{number}"))
    prompt, tells = _prompt(run, child, subtask, turn_id, waiting)
    opened = TurnOpened(
        turn_id=turn_id,
        number=number,
        directive_ids=tuple(directive.directive_id for directive in waiting),
        prompt=Text(prompt),
        prompt_digest=prompts.digest(prompt),
        parent=child.head,
        tells=tuple(directive.directive_id for directive in tells),
    )
    # The marker keeps a second launcher away; the proof comes with the first sign that the agent works on it.
    return (run.on_child(child_run_id, opened), *_mark(run, waiting, child_run_id, "initiated"))


def _prompt(
    run: CoordinatorRun, child: ChildRun, subtask: Subtask, turn_id: str, waiting: Sequence[SteeringDirective]
) -> tuple[str, Sequence[Said]]:
    """Return a turn's prompt, and what was said earlier that it tells as something to do."""
    rounds = _before(run, child, waiting)
    if not child.briefed:
        # It knows nothing of its task, nor of what was said to the one before it.
        to_do, done = _left_to_do(run, subtask, rounds)
        return prompts.task_prompt(run, subtask, turn_id, to_do, waiting, done=done), to_do
    earlier = [d for d in rounds if not d.direct] if any(not d.direct for d in waiting) else []
    return prompts.revision_prompt(run, subtask, turn_id, earlier, waiting, rebuilt=child.rebuilt), earlier


def _before(run: CoordinatorRun, child: ChildRun, carried: Sequence[SteeringDirective]) -> Sequence[SteeringDirective]:
    """Return what was said about a child's part besides what its turn carries, and what its next one will."""
    return [
        directive
        for directive in feedback_rounds(run, child.subtask_id)
        if directive not in carried and directive.targets.get(child.run_id) != "outstanding"
    ]


def _left_to_do(
    run: CoordinatorRun, subtask: Subtask, rounds: Sequence[SteeringDirective]
) -> tuple[Sequence[Said], Sequence[Said]]:
    """
    Return what was said that is to be done, and what the work has already that the subtask's author goes on from; with
    what was said in an earlier run of the same plan.
    """
    known = in_the_work(run, subtask)
    said = (*(subtask.earlier.corrections if subtask.earlier else ()), *rounds)
    return [s for s in said if s.directive_id not in known], [s for s in said if s.directive_id in known]


def prompt_now(run: CoordinatorRun, child_run_id: str, *, asked: bool) -> str:
    """Return what the agent is told for the child's open turn; *asked* is whether its session shows that it was already."""
    child, _ = child_at_work(run, child_run_id)
    if child.turn is None:
        raise Overtaken
    if asked:
        return prompts.continue_prompt(child.turn.turn_id)
    knows = child.session_briefed or (not child.briefed and child.turn.lost is None)
    return str(child.turn.prompt) if knows else prompt_anew(run, child_run_id)


def prompt_anew(run: CoordinatorRun, child_run_id: str) -> str:
    """Return the prompt of the child's open turn for a session that knows nothing: the task, and all that was said."""
    child, subtask = child_at_work(run, child_run_id)
    if child.turn is None:
        raise Overtaken
    carried = [run.directives[i] for i in child.turn.directive_ids]
    to_do, done = _left_to_do(run, subtask, _before(run, child, carried))
    return prompts.task_prompt(run, subtask, child.turn.turn_id, to_do, carried, done=done, lost=child.turn.lost)


def _mark(
    run: CoordinatorRun,
    directives: Sequence[SteeringDirective],
    child_run_id: str,
    state: Literal["initiated", "effect_confirmed", "failed"],
    reason: str | None = None,
    message: Text | None = None,
) -> Sequence[Draft]:
    return tuple(
        run.on_directive(
            directive.directive_id,
            RevisionExecution(
                directive_id=directive.directive_id,
                attempt=directive.attempt,
                child_run_id=child_run_id,
                state=state,
                receipt_payload_hash=directive.payload_hash,
                reason=reason,
                message=message,
            ),
        )
        for directive in directives
    )


def interrupt_turn(
    run: CoordinatorRun, child_run_id: str, *, found_in_history: bool, session_kept: bool
) -> Sequence[Draft]:
    """
    An open turn is taken up again. Raises InterruptedTooOften past the bound.

    What the agent that is gone had asked nobody can hear any more: whoever goes on asks anew.
    """
    child, _ = child_at_work(run, child_run_id)
    if child.turn is None or child.turn.stop_reason is not None:
        raise Overtaken
    if child.interruptions >= MAX_INTERRUPTIONS:
        raise InterruptedTooOften
    event = TurnInterrupted(turn_id=child.turn.turn_id, found_in_history=found_in_history, session_kept=session_kept)
    return (*expire_requests(run, child), run.on_child(child_run_id, event))


def lose_workplace(run: CoordinatorRun, child_run_id: str, state: str) -> Sequence[Draft]:
    """
    What stands in the child's workplace is not what was made there: nothing of it is taken for work, and its newest turn
    is asked again from its parent, by an agent that knows nothing. Raises InterruptedTooOften past the bound.
    """
    child, _ = child_at_work(run, child_run_id)
    if child.turn is None or child.turn.committed:
        raise Overtaken
    if child.interruptions >= MAX_INTERRUPTIONS:
        raise InterruptedTooOften(f"{InterruptedTooOften.__doc__} Its workplace: {state}.")
    event = TurnInterrupted(turn_id=child.turn.turn_id, found_in_history=False, session_kept=False, workplace=state)
    return (*expire_requests(run, child), run.on_child(child_run_id, event))


def start_turn(run: CoordinatorRun, child_run_id: str, isolation: str | None = None) -> Sequence[Draft]:
    """The agent shows that it works on the open turn; said once. It proves what the turn's directives asked for."""
    child, _ = child_at_work(run, child_run_id)
    if child.turn is None or child.turn.started:
        return ()
    carried = [run.directives[i] for i in child.turn.directive_ids if run.directives[i].open]
    started = run.on_child(child_run_id, TurnStarted(turn_id=child.turn.turn_id, isolation=isolation))
    return (started, *_mark(run, carried, child_run_id, "effect_confirmed"))


def end_turn(run: CoordinatorRun, child_run_id: str, stop_reason: str) -> Sequence[Draft]:
    """The agent ended the open turn. A turn that ends without a word was worked on all the same."""
    child, _ = child_at_work(run, child_run_id)
    if child.turn is None or child.turn.stop_reason is not None:
        raise Overtaken
    ended = run.on_child(child_run_id, TurnEnded(turn_id=child.turn.turn_id, stop_reason=stop_reason))
    before = start_turn(run, child_run_id) if stop_reason == "end_turn" else ()
    return (*before, *expire_requests(run, child), ended)


def is_cut_short(run: CoordinatorRun, child_run_id: str) -> bool:
    """Whether a directive asks for the end of the child's open turn: a redirect that it does not carry, or a pause."""
    child = run.children[child_run_id]
    if child.turn is None or child.turn.stop_reason is not None:
        return False
    # One that the turn carries, and whose execution failed, is tried again in the same turn.
    other = (d for d in run.pending_directives() if d.directive_id not in child.turn.directive_ids)
    redirected = any(d.verb == "redirect" and d.waits_for(child_run_id) for d in other)
    return redirected or child.status == "pausing"


def may_be_our_cancel(run: CoordinatorRun, child_run_id: str) -> bool:
    """
    Whether an agent that gives the child's open turn up as cancelled may have been asked to, by something that is over.

    A pause can stop the agent before it reads that; and what a redirect asks of one turn can reach the next, its own.
    """
    turn = run.children[child_run_id].turn
    if turn is None:
        return False
    return turn.paused or any(run.directives[i].verb == "redirect" for i in turn.directive_ids)


def fail_execution(run: CoordinatorRun, child_run_id: str, error_code: str, message: str = "") -> Sequence[Draft]:
    """
    The agent failed before it showed a sign of the directives that its turn carries. *message* may hold its last words.

    They are tried again, up to their execution cap; past it they need attention, and the child is left as its last
    commit, or asked for its task without them if it has not begun that. Nothing when the turn carries none, or was
    worked on already: then the child itself has failed.
    """
    child, _ = child_at_work(run, child_run_id)
    if child.turn is None or child.turn.started or child.turn.stop_reason is not None:
        return ()
    carried = [run.directives[i] for i in child.turn.directive_ids if run.directives[i].open]
    if not carried:
        return ()
    words = Text(message[:MAX_MESSAGE_CHARACTERS]) if message else None
    marks = _mark(run, carried, child_run_id, "failed", error_code, words)
    worn_out = [directive for directive in carried if directive.failures + 1 >= MAX_EXECUTIONS]
    if not worn_out:
        return marks
    given_up = tuple(moved(run, directive, "needs_attention", "steering_execution_exhausted") for directive in worn_out)
    # The turn ends with them: its prompt holds their words, which nobody may hear who is not to act on them.
    ended = run.on_child(child_run_id, TurnEnded(turn_id=child.turn.turn_id, stop_reason="cancelled"))
    return (*marks, *given_up, ended)


def rebuild_base(
    run: CoordinatorRun,
    child_run_id: str,
    base: Commit,
    commit: Commit,
    at: datetime,
    conflicts: Sequence[Conflict] = (),
) -> Sequence[Draft]:
    """The child's branch has taken in what its producers made anew, so its agent looks at its part once more."""
    child, subtask = child_at_work(run, child_run_id)
    if not subtask.outdated:
        raise Overtaken
    running = run.on_plan(step(SubtaskRunning, subtask, "running", at))
    rebuilt = BaseRebuilt(base=base, commit=commit, conflicts=tuple(conflicts))
    return (run.on_child(child.run_id, rebuilt), running)


def commit_tree(run: CoordinatorRun, child_run_id: str, commit: Commit) -> Sequence[Draft]:
    """The ended turn's files are committed."""
    child, _ = child_at_work(run, child_run_id)
    if child.turn is None or child.turn.committed or child.head is None:
        raise Overtaken
    changed = commit.tree != child.head.tree
    event = TreeCommitted(turn_id=child.turn.turn_id, commit=commit, has_changes=changed)
    return (run.on_child(child_run_id, event),)


def is_being_stopped(run: CoordinatorRun, child_run_id: str) -> bool:
    """Whether an open directive stops or aborts this child."""
    ends = (d for d in run.pending_directives() if d.verb in ("stop", "abort"))
    return any(directive.stops_run or child_run_id in directive.targets for directive in ends)
