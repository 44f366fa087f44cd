"""
Take a child run from its worktree to its end: one step at a time, each decided from the log.

Every pass of the loop reads the run anew and does the one thing that it calls for, so a fresh process that starts
here after a crash does exactly what the dead one would have done next.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime

import msgspec

from ...domain.event import Draft
from ...domain.facts.bad_ends import BRANCH_MOVED, STALLED, UNCOMMITTED, BadEnd, code_of
from ...domain.facts.child_run import CLEARED, ENDED, ChildRun, Turn
from ...domain.facts.run import CoordinatorRun
from ...domain.facts.work_plan import Subtask
from ...domain.process.effects import WorkOnSubtask
from ...domain.work import budget, child_ends, turns
from ...domain.work.budget import Reported
from ...domain.work.turns import MAX_MESSAGE_CHARACTERS, InterruptedTooOften, Overtaken
from ..ports.agents import AgentFailed, AgentSession, SessionRequest, TurnEnd
from ..ports.git import CommitFailed, GitConflict, WorkplaceLost, WorkplaceUnmade
from .child_workplace import ChildWorkplace, NotKept, NotNow, point_branches
from .contributions import conflict_of, first_base, rebuilt_base
from .record_child_turn import ChildTurnRecorder
from .record_turn import MAX_LAST_WORDS, reported_since
from .watch_stall import StallWatch
from .workshop import Closing, Workshop

#: How long a paused child's thread waits before it looks again; the log wakes it earlier.
PAUSE_SECONDS = 3_600.0
#: More passes than any child run needs; a loop that does not get on is a fault, not work.
MAX_PASSES = 10_000


def work_on_subtask(effect: WorkOnSubtask, shop: Workshop) -> None:
    """On return the child run has ended, or is no longer this subtask's. Raises Closing when the service goes down."""
    end = _worked(effect, shop)
    if end is not None:
        _end_badly(effect, shop, end)


def _worked(effect: WorkOnSubtask, shop: Workshop) -> BadEnd | None:
    """Return how the child's turn ended badly, if it did. Nothing of its agent is alive on return."""
    try:
        with ExitStack() as processes:
            _Work(effect, shop, processes).to_the_end()
    except Overtaken:
        # Somebody else ended the run; what was left to do here is no longer wanted.
        return None
    except _EndedBadly as ended:
        return ended.end
    except InterruptedTooOften as given_up:
        return BadEnd(code=given_up.code, message=str(given_up))
    except CommitFailed as failed:
        return BadEnd(code=UNCOMMITTED, message=str(failed))
    except WorkplaceUnmade as unmade:
        return BadEnd(code=unmade.code, message=str(unmade))
    except GitConflict as moved:
        # Somebody else moved the child's branch: nothing of theirs or of the agent's is overwritten.
        return BadEnd(code=BRANCH_MOVED, message=str(moved), retryable=False)
    except AgentFailed as failed:
        if shop.leaves(effect.run_id):
            raise Closing from failed
        return BadEnd(code=failed.code, message=str(failed), retryable=failed.retryable)
    return None


def _end_badly(effect: WorkOnSubtask, shop: Workshop, end: BadEnd) -> None:
    """
    Keep what can be kept, and let the log say how it ended. If we crash before it does, the turn is taken up again as
    after any crash.
    """
    child_id, run = effect.child_run_id, shop.runs.run(effect.run_id)
    try:
        child, _ = turns.child_at_work(run, child_id)
        place = ChildWorkplace(effect.run_id, child_id, shop)
        try:
            kept = None if turns.is_being_stopped(run, child_id) else place.keep(run, child, end)
        except NotKept as lost:
            words = f"What it had half done could not be kept: {lost}"[:MAX_LAST_WORDS]
            kept, end = None, msgspec.structs.replace(end, message=_with_line(end.message, words))
        shop.decide(effect.run_id, lambda run: child_ends.end_badly(run, child_id, shop.now(), end, kept))
    except Overtaken:
        # The run was ended before its agent's end was noticed: the reason that was given first stands.
        return
    # If we crash here, whoever goes on from it does this first.
    point_branches(run := shop.runs.run(effect.run_id), [run.children[child_id]], shop)


class _EndedBadly(Exception):
    """The agent's turn is over, and is no end of its work."""

    def __init__(self, end: BadEnd) -> None:
        super().__init__(end.message)
        self.end = end


class _Unwanted(Exception):
    """Something else is wanted since the log was last read, so no agent is started for this step."""


class _Work:
    """One process's part in a child run."""

    def __init__(self, effect: WorkOnSubtask, shop: Workshop, processes: ExitStack) -> None:
        self._root = effect.run_id
        self._id = effect.child_run_id
        self._shop = shop
        self._processes = processes
        self._session: AgentSession | None = None
        self._place = ChildWorkplace(self._root, self._id, shop)
        #: The commit that the branch was moved to here.
        self._pointed: str | None = None
        #: The turns that need no interruption to be asked here, and those that the present session was asked.
        self._opened_here: set[str] = set()
        self._asked_here: set[str] = set()

    def to_the_end(self) -> None:
        """Do what the log calls for, until the child has nothing left to do."""
        for _ in range(MAX_PASSES):
            run = self._shop.runs.run(self._root)
            self._point_branch(run)
            child, subtask = turns.child_at_work(run, self._id)
            if budget.rests(run, child):
                # Nothing is called for here until somebody has let turns begin again. Its agent's session is kept.
                return
            if not self._may_go_on(run):
                self._shop.wait_until(self._root, self._may_go_on, PAUSE_SECONDS)
            elif child.head is None:
                self._prepare(run, child, subtask)
            elif child.turn is not None and not child.turn.committed:
                self._go_on(run, child, child.turn)
            elif subtask.outdated:
                self._rebuild(run, child, subtask)
            elif subtask.status == "dispatched":
                self._shop.decide(self._root, lambda run: turns.take_up(run, self._id, self._shop.now()))
            elif not self._open_turn() and self._settled():
                return
        raise RuntimeError(f"child run {self._id} does not get on")

    def _go_on(self, run: CoordinatorRun, child: ChildRun, turn: Turn) -> None:
        """Take the newest turn one step further: to its end, or into a commit."""
        if turn.stop_reason is not None:
            # One that was recorded as cancelled was cut short by us.
            code = code_of(turn.stop_reason) if turn.stop_reason != "cancelled" else None
            if code is not None:
                raise _EndedBadly(BadEnd(code=code, message=f"The agent ended its turn with {turn.stop_reason}."))
            self._commit(run, child, turn)
        elif turns.is_cut_short(run, self._id):
            # Nobody works on it now, and something else is wanted by now.
            self._shop.decide(self._root, lambda run: turns.end_turn(run, self._id, "cancelled"))
        else:
            self._take_turn(run, child, turn)

    def _point_branch(self, run: CoordinatorRun) -> None:
        """Move the branch to what is recorded, before anything else is done: the fact came first, and we may have died."""
        child = run.children[self._id]
        # While a turn is under way it was done; the first release moved it before the fact of that turn's commit.
        if child.head is None or child.head.commit == self._pointed or (child.turn and not child.turn.committed):
            return
        self._place.point_branch(run, child)
        self._pointed = child.head.commit

    def _may_go_on(self, run: CoordinatorRun) -> bool:
        """Whether there may be a step to take: not for a paused child, nor while somebody ends it."""
        child = run.children[self._id]
        if run.ended or child.status in ENDED:
            return True
        waits = child.status == "paused" or (child.status == "pausing" and not _in_turn(child))
        return not waits and not turns.is_being_stopped(run, self._id)

    def _settled(self) -> bool:
        run = self._shop.runs.run(self._root)
        child, _ = turns.child_at_work(run, self._id)
        ignored = 0 if child.has_changes else self._place.count_ignored(run, child)
        return self._shop.decide(
            self._root, lambda run: child_ends.settle_child(run, self._id, self._shop.now(), ignored)
        )

    def _prepare(self, run: CoordinatorRun, child: ChildRun, subtask: Subtask) -> None:
        # What another run left is where it was found to be when this one was started.
        if (before := run.children.get(child.prior_run_id or "")) is not None:
            point_branches(run, [before], self._shop)
        base = first_base(run, child, subtask, self._shop)
        conflicts = [conflict_of(found) for found in base.conflicts]
        self._place.make(run, child, base.commit)
        # If we crash here it is made anew, from what its producers have made by then. The branch comes after the fact:
        # so it is never at another base than the recorded one.
        path = str(self._place.path(child))
        self._shop.decide(
            self._root,
            lambda run: turns.prepare_worktree(
                run, self._id, base.commit, path, self._shop.now(), base.foundation, conflicts
            ),
        )

    def _rebuild(self, run: CoordinatorRun, child: ChildRun, subtask: Subtask) -> None:
        """Take what the producers made anew into the child's branch, under its own work."""
        assert child.head is not None, "only what was committed can be outdated"
        base, now = rebuilt_base(run, child, subtask, self._shop), self._shop.now()
        if not base.clean:
            self._shop.decide(self._root, lambda run: child_ends.dispatch_outdated_afresh(run, self._id, now))
            return
        self._let_go()
        conflicts = [conflict_of(found) for found in base.conflicts]
        # If we crash behind this, it is made anew once more; the branch comes after the fact.
        self._place.make(run, child, base.commit)
        self._shop.decide(
            self._root, lambda run: turns.rebuild_base(run, self._id, base.foundation, base.commit, now, conflicts)
        )

    def _open_turn(self) -> bool:
        opened = self._shop.decide(self._root, lambda run: turns.open_turn(run, self._id, self._shop.project(run)))
        if opened:
            child, _ = turns.child_at_work(self._shop.runs.run(self._root), self._id)
            self._opened_here.add(child.turn.turn_id if child.turn else "")
        return opened

    def _take_turn(self, run: CoordinatorRun, child: ChildRun, turn: Turn) -> None:
        try:
            # Who let its place go while a person was waited for, and was not answered, takes it again before it works on.
            self._shop.go_on(self._root, self._id, self._still_wanted)
            session, kept = self._ready(run, child, turn)
        except _Unwanted:
            return
        asked = False
        if turn.turn_id not in self._opened_here:
            asked = kept and (turn.turn_id in session.history or turn.turn_id in self._asked_here)
            self._count_lost(child, turn)
            self._shop.decide(
                self._root,
                lambda run: turns.interrupt_turn(run, self._id, found_in_history=asked, session_kept=kept),
            )
            self._opened_here.add(turn.turn_id)
        prompt = turns.prompt_now(self._shop.runs.run(self._root), self._id, asked=asked)
        observer = ChildTurnRecorder(self._shop, self._root, child, turn)
        watch = StallWatch(session, observer, self._shop.stall_seconds, self._is_paused)
        self._asked_here.add(turn.turn_id)
        try:
            # Inside the session's block: whoever waits for its end finds that nothing more is said.
            with observer, watch:
                ended = session.prompt(prompt, observer)
        except AgentFailed as failed:
            self._count(turn, observer.reported, ended=False)
            if watch.stalled and not self._shop.leaves(self._root):
                if self._has_lost():
                    return
                raise self._stalled() from failed
            self._after_failure(failed, observer.last_words)
            return
        self._end_turn(turn, ended, observer)

    def _count(self, turn: Turn, reported: Reported, *, ended: bool, until: datetime | None = None) -> None:
        """Store what the turn has used. If we crash before, whoever takes it up finds what the feed has of it."""
        if self._shop.leaves(self._root):
            # Whoever drives the run now does so.
            return
        self._shop.decide(self._root, lambda run: self._counted(run, turn, reported, ended=ended, until=until))

    def _counted(
        self, run: CoordinatorRun, turn: Turn, reported: Reported, *, ended: bool, until: datetime | None = None
    ) -> Sequence[Draft]:
        at = until or self._shop.now()
        return budget.count_turn(run, self._id, turn.turn_id, reported, at, ended=ended)

    def _count_lost(self, child: ChildRun, turn: Turn) -> None:
        """Store what a process that is gone had a turn use, as far as it came to say so."""
        reported, last = reported_since(self._shop.runs, self._id, turn.turn_id, child.counted_at)
        if last is not None:
            self._count(turn, reported, ended=False, until=last)

    def _end_turn(self, turn: Turn, ended: TurnEnd, observer: ChildTurnRecorder) -> None:
        """Record what the turn has used, and how the agent ended it, if that is an end of the work, or was asked for."""
        code, reported, is_over = code_of(ended.stop_reason), observer.reported, ended.stop_reason != "cancelled"
        if code is None:
            try:
                self._shop.decide(
                    self._root,
                    lambda run: (
                        *self._counted(run, turn, reported, ended=is_over),
                        *turns.end_turn(run, self._id, ended.stop_reason),
                    ),
                )
            except Overtaken:
                # Somebody else ended it; what it has used it has used.
                self._count(turn, reported, ended=is_over)
                raise
            return
        self._count(turn, reported, ended=is_over)
        run = self._shop.runs.run(self._root)
        turns.child_at_work(run, self._id)
        if turns.is_cut_short(run, self._id):
            # Something else is wanted by now; why the agent left this is of no matter.
            self._shop.decide(self._root, lambda run: turns.end_turn(run, self._id, "cancelled"))
        elif ended.stop_reason == "cancelled" and turns.may_be_our_cancel(run, self._id):
            # Whoever asked for it has been answered since, so the agent goes on where it stopped.
            self._opened_here.discard(turn.turn_id)
        elif not self._has_lost():
            message = _with_words(f"The agent ended its turn with {ended.stop_reason}.", observer.last_words)
            raise _EndedBadly(BadEnd(code=code, message=message, stop_reason=ended.stop_reason))

    def _is_paused(self) -> bool:
        return self._shop.runs.run(self._root).children[self._id].status in ("pausing", "paused")

    def _stalled(self) -> _EndedBadly:
        seconds = int(self._shop.stall_seconds)
        words = f"The agent showed no sign of work for {seconds} seconds."
        return _EndedBadly(BadEnd(code=STALLED, message=words, stall_seconds=seconds))

    def _after_failure(self, failed: AgentFailed, last_words: str) -> None:
        """The agent is gone. A cut-short turn is over with it; a correction that never began is tried again."""
        if self._shop.leaves(self._root):
            raise Closing from failed
        self._let_go()
        run = self._shop.runs.run(self._root)
        child, _ = turns.child_at_work(run, self._id)
        if child.status == "paused" or turns.is_being_stopped(run, self._id):
            # A stopped process has died: the turn is taken up again after the resume. Or whoever ends it goes on.
            self._opened_here.clear()
            return
        if turns.is_cut_short(run, self._id):
            self._shop.decide(self._root, lambda run: turns.end_turn(run, self._id, "cancelled"))
            return
        self._opened_here.clear()
        if self._has_lost():
            return
        code, message = failed.code, str(failed)
        if not self._shop.decide(self._root, lambda run: turns.fail_execution(run, self._id, code, message)):
            message = _with_words(message, last_words)
            raise _EndedBadly(BadEnd(code=code, message=message, retryable=failed.retryable)) from failed

    def _has_lost(self) -> bool:
        """Whether a turn that went wrong has lost its workplace under it: that is why, and it is asked again."""
        run = self._shop.runs.run(self._root)
        child, _ = turns.child_at_work(run, self._id)
        state = self._place.look(run, child)
        if state == "whole" or child.turn is None or turns.is_being_stopped(run, self._id):
            return False
        self._lose(run, child, child.turn, state)
        return True

    def _let_go(self) -> None:
        """End the agent, if there is one; its session can be loaded again."""
        self._session = None
        self._asked_here.clear()
        self._processes.close()

    def _ready(self, run: CoordinatorRun, child: ChildRun, turn: Turn) -> tuple[AgentSession, bool]:
        """Return the open session, and whether it is the one that the child has had so far."""
        state = self._place.look(run, child)
        if state != "whole":
            self._lose(run, child, turn, CLEARED if child.cleared and state == "vanished" else state)
            run = self._shop.runs.run(self._root)
            child, _ = turns.child_at_work(run, self._id)
        if self._session is not None:
            return self._session, True
        kept = child.session_id is not None and not child.session_gone
        request = SessionRequest(
            model_id=child.model_id,
            run_id=self._id,
            cwd=self._place.path(child),
            reads=self._shop.lent(run),
            session_id=child.session_id if kept else None,
        )
        try:
            session = self._processes.enter_context(self._shop.session(request, self._still_wanted))
        except AgentFailed as failed:
            if failed.code != "session_not_found" or not kept:
                raise
            kept = False
            # The new session knows nothing of what the lost one did, so its half-done files must not be there either.
            self._place.make(run, child, turn.parent)
            fresh = msgspec.structs.replace(request, session_id=None)
            session = self._processes.enter_context(self._shop.session(fresh, self._still_wanted))
        if session.session_id != child.session_id:
            self._shop.decide(
                self._root, lambda run: turns.open_session(run, self._id, session.session_id, session.capabilities)
            )
        self._session = session
        return session, kept

    def _lose(self, run: CoordinatorRun, child: ChildRun, turn: Turn, state: str) -> None:
        """The workplace is not the one that was made: its session is lost, and the turn is asked again from its parent."""
        self._let_go()
        # Before it is made anew: if we crash in between, nobody loads a session that knows of other files.
        self._shop.decide(self._root, lambda run: turns.lose_workplace(run, self._id, state))
        self._opened_here.add(turn.turn_id)
        self._place.make(run, child, turn.parent)

    def _still_wanted(self) -> None:
        run = self._shop.runs.run(self._root)
        turns.child_at_work(run, self._id)
        if not self._may_go_on(run) or turns.is_cut_short(run, self._id):
            raise _Unwanted

    def _commit(self, run: CoordinatorRun, child: ChildRun, turn: Turn) -> None:
        try:
            commit = self._place.commit(run, child, turn, self._let_go)
        except NotNow:
            return
        except WorkplaceLost as lost:
            self._lose(run, child, turn, lost.state)
            return
        # If we crash here, the redo makes the same commit; behind the fact, the branch is moved before anything else.
        self._shop.decide(self._root, lambda run: turns.commit_tree(run, self._id, commit))


def _with_words(message: str, last_words: str) -> str:
    """Return why a turn ended, and what its agent said last."""
    if not last_words.strip():
        return message
    return _with_line(message, f"It said last: {last_words.strip()}")


def _with_line(message: str, line: str) -> str:
    """Return the message with one more line, within what is kept of it."""
    return f"{message[: MAX_MESSAGE_CHARACTERS - len(line) - 1]}\n{line}"


def _in_turn(child: ChildRun) -> bool:
    """Whether the child's agent has not yet ended its turn."""
    return child.turn is not None and child.turn.stop_reason is None
