"""A child run: one agent in its own worktree, turn by turn, until its work is committed."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec

from ..event import Event, Text
from ..git import Commit
from . import asking
from .asking import Request, grants
from .bad_ends import FINISHED
from .conflicts import Conflict
from .spending import Clocked, TurnCounted, clocked

ChildStatus = Literal["pending", "in_progress", "pausing", "paused", "assemble_ready", "completed", "failed"]

#: A child in one of these has ended its pipeline; a revision may open it again.
ENDED: frozenset[ChildStatus] = frozenset({"assemble_ready", "completed", "failed"})

#: How often a turn may be cut off by the death of its process or its owner before the child run fails.
MAX_INTERRUPTIONS = 20

#: What is said of a workplace that vanished because the run had ended, and was taken up again.
CLEARED = "cleared"

# Events


class RunStarted(Event, frozen=True, kw_only=True):
    """A child run was created for a subtask."""

    TOPIC: ClassVar[str] = "run.started"

    run_id: str
    kind: str
    agent_name: str
    parent_run_id: str
    subtask_id: int
    model_id: str
    worktree_branch: str
    #: The child run whose branch this one goes on from, and the commit there; both null for a first child.
    prior_run_id: str | None = None
    prior_commit: str | None = None


class WorktreePrepared(Event, frozen=True, kw_only=True):
    """
    The child's branch and worktree stand at their base: the originating commit, what its producers made, and what earlier
    authors of its subtask left.
    """

    TOPIC: ClassVar[str] = "run.worktree_prepared"

    base: Commit
    worktree_path: Text
    worktree_branch: str
    #: The base without what the subtask's earlier authors left: only what lies beyond this is the subtask's own work.
    #: Null in facts of earlier releases.
    foundation: Commit | None = None
    #: What was changed in two places on the way to the base.
    conflicts: tuple[Conflict, ...] = ()


class BaseRebuilt(Event, frozen=True, kw_only=True):
    """What the child builds on was changed; its branch has taken the new base in, and its work goes on from there."""

    TOPIC: ClassVar[str] = "run.base_rebuilt"

    base: Commit
    commit: Commit
    #: What was changed in two places on the way to the base.
    conflicts: tuple[Conflict, ...] = ()


class RevisionHandedOver(Event, frozen=True, kw_only=True):
    """A new child run takes over what another one left on its branch."""

    TOPIC: ClassVar[str] = "coordinator.child_revision_handoff"

    #: `fresh_from_prior_branch`: a worktree of its own, from the last commit of the other one's branch.
    strategy: str
    prior_child_run_id: str
    prior_commit: str


class SessionOpened(Event, frozen=True, kw_only=True):
    """An agent process runs for the child, with a session that can be loaded again by this id."""

    TOPIC: ClassVar[str] = "run.session_opened"

    session_id: str
    model_id: str
    capabilities: tuple[str, ...]


class TurnOpened(Event, frozen=True, kw_only=True):
    """What the agent is asked next. Stored before it is asked, so that it is asked once."""

    TOPIC: ClassVar[str] = "turn.opened"

    turn_id: str
    number: int
    #: The directives that the prompt carries.
    directive_ids: tuple[str, ...]
    prompt: Text
    prompt_digest: str
    #: What the worktree holds when the turn begins; a lost session puts it back to this.
    parent: Commit
    #: The directives that were received before, and that the prompt tells once more as something to do.
    tells: tuple[str, ...] = ()


class TurnInterrupted(Event, frozen=True, kw_only=True):
    """The process that drove an open turn is gone; the same turn goes on."""

    TOPIC: ClassVar[str] = "turn.interrupted"

    turn_id: str
    #: Whether the agent's own history shows that it had been asked.
    found_in_history: bool
    #: Whether the agent still had the session. If not, the worktree was put back to the turn's parent.
    session_kept: bool
    #: What was found where the child's workplace should be, if that was not it: vanished, replaced or unfinished, or
    #: `cleared` if it was cleared away when the run had ended. The turn is asked again from its parent then, also one
    #: that had ended and was not committed.
    workplace: str | None = None


class TurnStarted(Event, frozen=True, kw_only=True):
    """The agent showed the first sign that it works on the turn."""

    TOPIC: ClassVar[str] = "agent.turn.start"

    turn_id: str
    #: What kept the agent apart: `bubblewrap`, or `none` when it had all rights of the service; None: not known.
    isolation: str | None = None


class TurnEnded(Event, frozen=True, kw_only=True):
    """The agent ended the turn."""

    TOPIC: ClassVar[str] = "agent.turn.end"

    turn_id: str
    stop_reason: str


class TreeCommitted(Event, frozen=True, kw_only=True):
    """The worktree was committed to the child's branch; without a change the commit is the one before."""

    TOPIC: ClassVar[str] = "run.tree_committed"

    turn_id: str
    commit: Commit
    has_changes: bool
    #: Whether the turn ended badly, so that this is what it had half done; whoever starts afresh goes on from it.
    unfinished: bool = False


class AssembleReady(Event, frozen=True, kw_only=True):
    """The child has changes for the assembly."""

    TOPIC: ClassVar[str] = "run.assemble_ready"

    run_id: str
    subtask_id: int
    parent_run_id: str
    worktree_branch: str
    tree_hash: str
    commit_hash: str
    has_changes: bool
    rai_safety_flagged: bool = False
    #: The child run whose work this is, where this one was satisfied with it and committed nothing itself.
    handed_on_from: str | None = None


class NoChangesProduced(Event, frozen=True, kw_only=True):
    """The child ended without a change."""

    TOPIC: ClassVar[str] = "run.no_changes_produced"

    run_id: str
    subtask_id: int
    parent_run_id: str
    message: str


class RunCompleted(Event, frozen=True, kw_only=True):
    """The run ended with nothing to assemble."""

    TOPIC: ClassVar[str] = "run.completed"

    result: str


class RunFailed(Event, frozen=True, kw_only=True):
    """The run ended without a result."""

    TOPIC: ClassVar[str] = "run.failed"

    message: Text
    error_code: str
    retryable: bool


class PauseBegun(Event, frozen=True, kw_only=True):
    """The child's turn is being ended and its processes are being stopped."""

    TOPIC: ClassVar[str] = "run.pausing"

    directive_id: str


class Paused(Event, frozen=True, kw_only=True):
    """
    Every process of the child is stopped or gone, and this is what its worktree held then.

    `tree_hash` is the git tree of what would be committed, `workspace_hash` covers every file, ignored ones too.
    """

    TOPIC: ClassVar[str] = "run.paused"

    directive_id: str
    receipt_payload_hash: str
    session_id: str
    tree_hash: str
    workspace_hash: str


class Resumed(Event, frozen=True, kw_only=True):
    """The child's processes run again, or its session will be loaded anew."""

    TOPIC: ClassVar[str] = "run.resumed"

    directive_id: str
    receipt_payload_hash: str


class ProcessesKilled(Event, frozen=True, kw_only=True):
    """No process of the child is alive; these were killed for it."""

    TOPIC: ClassVar[str] = "run.processes_killed"

    directive_id: str
    receipt_payload_hash: str
    pids: tuple[int, ...]


class RunCancelled(Event, frozen=True, kw_only=True):
    """The run was stopped."""

    TOPIC: ClassVar[str] = "run.cancelled"

    reason: str
    directive_id: str | None = None


# State


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The newest turn of a child run."""

    turn_id: str
    number: int
    directive_ids: tuple[str, ...]
    prompt: Text
    parent: Commit
    opened_at: str
    tells: tuple[str, ...] = ()
    #: None while the agent has not ended it.
    stop_reason: str | None = None
    started: bool = False
    committed: bool = False
    #: What was lost in this turn: its workplace (vanished, replaced, unfinished), or the agent's `session` alone.
    lost: str | None = None
    #: Whether a pause has asked for its end; the agent may say so as late as after the resume.
    paused: bool = False


class ChildRun(msgspec.Struct, frozen=True, kw_only=True):
    """What decisions about a child run need to know."""

    run_id: str
    subtask_id: int
    agent_name: str
    model_id: str
    branch: str
    #: When the run was created: the time of the merge commits under its base, so that a redo makes the same ones.
    created_at: str
    status: ChildStatus = "pending"
    #: What it builds on: all beyond it is the work of its subtask's line of authors.
    base: Commit | None = None
    #: The last recorded commit of the branch, and the one before it: the branch is moved after it is recorded.
    head: Commit | None = None
    previous: Commit | None = None
    worktree_path: Text = Text(None)
    session_id: str | None = None
    turn: Turn | None = None
    interruptions: int = 0
    #: Whether an agent of it has begun a turn, and whether the present session has, so that it knows its task.
    briefed: bool = False
    session_briefed: bool = False
    #: Whether the session must not be loaded again: the files that it knows of are gone.
    session_gone: bool = False
    #: Whether its branch holds work of its subtask, whichever of the subtask's authors committed it.
    has_changes: bool = False
    #: Whether it has committed something itself.
    has_committed: bool = False
    #: The directives that its agents have been told, and those among them that its commits were made with.
    heard: frozenset[str] = frozenset()
    in_work: frozenset[str] = frozenset()
    #: The newest commit that it had ready for an assembly.
    ready: str | None = None
    #: What was changed in two places on the way to where it started, or goes on from.
    conflicts: tuple[Conflict, ...] = ()
    capabilities: tuple[str, ...] = ()
    #: What kept its agent apart, in the turn that did so the least.
    isolation: str | None = None
    prior_run_id: str | None = None
    prior_commit: str | None = None
    #: What its agent has asked of people, and what needs no further asking.
    requests: Mapping[str, Request] = {}
    grants: frozenset[str] = frozenset()
    #: Whether its work did not fit onto a rebuilt base, so that nobody goes on from it.
    discarded: bool = False
    #: Whether its base was rebuilt and its agent has not been told yet.
    rebuilt: bool = False
    #: The newest pause of this child, for whoever resumes it.
    paused: Paused | None = None
    #: Whether its workplace was cleared away since it was made.
    cleared: bool = False
    #: How it ended, if it ended without a result; and whether its head is what it had half done then.
    failure: RunFailed | None = None
    cancelled: str | None = None
    unfinished: bool = False
    #: How long its agent is at work in what is not counted yet of its turn; and what was counted last: where on the log,
    #: in which session, and what that had cost by then.
    clock: Clocked = Clocked()
    counted_at: int = 0
    counted_turn: str | None = None
    counted_session: str | None = None
    session_cost_micros: int = 0

    @property
    def works(self) -> bool:
        """Whether its agent is at work on a turn: it has begun, is not paused, and waits for nobody's answer."""
        at_work = self.turn is not None and self.turn.started and self.turn.stop_reason is None
        if not at_work or self.status not in ("in_progress", "pausing"):
            return False
        return not any(request.state == "pending" for request in self.requests.values())

    @property
    def stream(self) -> str:
        """The stream of this run."""
        return run_stream(self.run_id)


def run_stream(run_id: str) -> str:
    """Return the stream of a coordinator or child run."""
    return f"run/{run_id}"


def work_id(child_run_id: str) -> str:
    """Return the id of the effect that takes a child run to its end."""
    return f"{child_run_id}/work"


def output_stream(run_id: str) -> str:
    """Return the stream of what a run's agent says; no decision reads it."""
    return f"run/{run_id}/output"


def started(event: RunStarted, at: str) -> ChildRun:
    """Return the state of a child run that was just created."""
    return ChildRun(
        run_id=event.run_id,
        subtask_id=event.subtask_id,
        agent_name=event.agent_name,
        model_id=event.model_id,
        branch=event.worktree_branch,
        created_at=at,
        prior_run_id=event.prior_run_id,
        prior_commit=event.prior_commit,
    )


def evolve(child: ChildRun, event: Event, at: str) -> ChildRun:
    """Add one fact of the child's own stream to its state."""
    after = _evolve(child, event, at)
    # How long nobody was there to work is not known, so what lies before a turn was taken up again is not counted by it.
    before = Clocked() if isinstance(event, TurnInterrupted) else after.clock
    return msgspec.structs.replace(after, clock=clocked(before, works=after.works, at=at))


def counted(child: ChildRun, event: TurnCounted, position: int, at: str) -> ChildRun:
    """Take note of how much of its turn is counted."""
    return msgspec.structs.replace(
        child,
        clock=clocked(Clocked(), works=child.works, at=at),
        counted_at=position,
        counted_turn=event.counted.turn_id,
        counted_session=event.session_id or child.counted_session,
        session_cost_micros=child.session_cost_micros
        if event.session_cost_micros is None
        else event.session_cost_micros,
    )


def _evolve(child: ChildRun, event: Event, at: str) -> ChildRun:
    replace = msgspec.structs.replace
    match event:
        case WorktreePrepared():
            foundation = event.foundation or event.base
            begun = replace(
                child,
                base=foundation,
                head=event.base,
                has_changes=event.base.tree != foundation.tree,
                worktree_path=event.worktree_path,
                conflicts=event.conflicts,
            )
            return begun if child.status != "pending" else replace(begun, status="in_progress")
        case SessionOpened():
            return _with_session(child, event)
        case TurnOpened():
            turn = Turn(
                turn_id=event.turn_id,
                number=event.number,
                directive_ids=event.directive_ids,
                prompt=event.prompt,
                parent=event.parent,
                opened_at=at,
                tells=event.tells,
            )
            return replace(child, turn=turn, interruptions=0, rebuilt=False)
        case TurnInterrupted():
            requests = asking.ask_again(child.requests, event.turn_id)
            again = replace(child, interruptions=child.interruptions + 1, requests=requests)
            if event.workplace is None:
                return again
            return replace(_with_turn(again, stop_reason=None, lost=event.workplace), session_gone=True, cleared=False)
        case TurnStarted():
            # One turn without a box is enough for its work to be no more to be trusted than that turn.
            isolation = "none" if child.isolation == "none" else event.isolation or child.isolation
            started = _with_turn(child, started=True)
            heard = child.heard.union(child.turn.directive_ids, child.turn.tells) if child.turn else child.heard
            return replace(started, briefed=True, session_briefed=True, isolation=isolation, heard=heard)
        case TurnEnded():
            return _with_turn(child, stop_reason=event.stop_reason)
        case TreeCommitted():
            changed = event.commit.tree != child.base.tree if child.base else event.has_changes
            committed = replace(
                _with_turn(child, committed=True),
                head=event.commit,
                previous=child.head,
                has_committed=child.has_committed or event.has_changes,
                in_work=child.heard if _finishes(child, event) else child.in_work,
            )
            return replace(committed, has_changes=changed, unfinished=event.unfinished)
        case BaseRebuilt():
            return replace(
                child,
                base=event.base,
                head=event.commit,
                previous=child.head,
                has_changes=event.commit.tree != event.base.tree,
                conflicts=event.conflicts,
                rebuilt=True,
            )
        case PauseBegun():
            return replace(_with_turn(child, paused=True), status="pausing")
        case Paused():
            return replace(child, status="paused", paused=event)
        case Resumed():
            return replace(child, status="in_progress" if child.base else "pending", paused=None)
        case AssembleReady():
            return replace(child, status="assemble_ready", ready=event.commit_hash)
        case RunCompleted():
            return replace(child, status="completed")
        case RunFailed():
            return replace(child, status="failed", failure=event)
        case RunCancelled():
            discarded = child.discarded or event.reason == "base_conflict"
            return replace(child, status="failed", cancelled=event.reason, discarded=discarded)
        case _:
            granted = grants(child.grants, child.requests, event)
            return replace(child, requests=asking.evolve(child.requests, event), grants=granted)


def _finishes(child: ChildRun, event: TreeCommitted) -> bool:
    """Whether a commit is what an agent came to that had done what it was told: no turn that was cut short, or ended badly."""
    finished = child.turn is not None and child.turn.stop_reason == FINISHED
    return finished and event.has_changes and not event.unfinished


def _with_session(child: ChildRun, event: SessionOpened) -> ChildRun:
    fresh = event.session_id != child.session_id
    if fresh and child.session_id is not None and child.turn is not None:
        child = _with_turn(child, lost=child.turn.lost or "session")
    return msgspec.structs.replace(
        child,
        session_id=event.session_id,
        capabilities=event.capabilities,
        session_briefed=child.session_briefed and not fresh,
        session_gone=False,
    )


def _with_turn(child: ChildRun, **changes: object) -> ChildRun:
    if child.turn is None:
        return child
    return msgspec.structs.replace(child, turn=msgspec.structs.replace(child.turn, **changes))
