"""
Take a child run from its worktree to its end: one step at a time, each decided from the log.

Every pass of the loop reads the run anew and does the one thing that it calls for, so a fresh process that starts
here after a crash does exactly what the dead one would have done next.
"""

import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from ...domain import child_ends, turns
from ...domain.child_run import ENDED, ChildRun, Turn
from ...domain.effects import WorkOnSubtask
from ...domain.git import Commit
from ...domain.prompts import continue_prompt
from ...domain.run import Run
from ...domain.turns import InterruptedTooOften, Overtaken
from ...domain.work_plan import Subtask
from ..agent_port import AgentFailed, AgentSession, SessionRequest
from ..driving.watch_stall import StallWatch
from ..git_port import CommitFailed, GitConflict
from .contributions import conflict_of, first_base, rebuilt_base
from .record_child_turn import ChildTurnRecorder
from .workshop import Closing, Workshop

COMMIT_ATTEMPTS = 3
COMMIT_BACK_OFF_SECONDS = 0.5
#: How long a paused child's thread waits before it looks again; the log wakes it earlier.
PAUSE_SECONDS = 3_600.0
#: More passes than any child run needs; a loop that does not get on is a fault, not work.
MAX_PASSES = 10_000


def work_on_subtask(effect: WorkOnSubtask, shop: Workshop) -> None:
    """On return the child run has ended, or is no longer this subtask's. Raises Closing when the service goes down."""
    try:
        with ExitStack() as processes:
            _Work(effect, shop, processes).to_the_end()
    except Overtaken:
        # Somebody else ended the run; what was left to do here is no longer wanted.
        return
    except InterruptedTooOften as given_up:
        _fail(effect, shop, given_up.code, str(given_up), retryable=True)
    except CommitFailed as failed:
        _fail(effect, shop, "commit_failed_persistent", str(failed), retryable=True)
    except GitConflict as moved:
        # Somebody else moved the child's branch: nothing of theirs or of the agent's is overwritten.
        _fail(effect, shop, "branch_moved", str(moved), retryable=False)
    except AgentFailed as failed:
        if shop.leaves(effect.run_id):
            raise Closing from failed
        _fail(effect, shop, failed.code, str(failed), retryable=failed.retryable)


def _fail(effect: WorkOnSubtask, shop: Workshop, code: str, message: str, *, retryable: bool) -> None:
    child_id, at = effect.child_run_id, shop.now()
    try:
        shop.decide(
            effect.run_id,
            lambda run: child_ends.fail_child(run, child_id, at, error_code=code, message=message, retryable=retryable),
        )
    except Overtaken:
        # The run was ended before its agent's end was noticed: the reason that was given first stands.
        return


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
        self._opened_here: set[str] = set()

    def to_the_end(self) -> None:
        """Do what the log calls for, until the child has nothing left to do."""
        for _ in range(MAX_PASSES):
            run = self._shop.runs.run(self._root)
            child, subtask = turns.child_at_work(run, self._id)
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

    def _go_on(self, run: Run, child: ChildRun, turn: Turn) -> None:
        """Take the newest turn one step further: to its end, or into a commit."""
        if turn.stop_reason is not None:
            if refused := child_ends.refusal_of(turn.stop_reason):
                raise AgentFailed(refused, f"The agent ended its turn with {turn.stop_reason}.", retryable=True)
            self._commit(run, child, turn)
        elif turns.is_cut_short(run, self._id):
            # Nobody works on it now, and something else is wanted by now.
            self._shop.decide(self._root, lambda run: turns.end_turn(run, self._id, "cancelled"))
        else:
            self._take_turn(run, child, turn)

    def _may_go_on(self, run: Run) -> bool:
        """Whether there may be a step to take: not for a paused child, nor while somebody ends it."""
        child = run.children[self._id]
        if run.ended or child.status in ENDED:
            return True
        waits = child.status == "paused" or (child.status == "pausing" and not _in_turn(child))
        return not waits and not turns.is_being_stopped(run, self._id)

    def _settled(self) -> bool:
        return self._shop.decide(self._root, lambda run: child_ends.settle_child(run, self._id, self._shop.now()))

    def _prepare(self, run: Run, child: ChildRun, subtask: Subtask) -> None:
        base = first_base(run, child, subtask, self._shop)
        path = self._shop.worktree(self._id)
        self._shop.repositories.ensure_worktree(self._shop.repository(run), path, child.branch, base.commit.commit)
        conflicts = [conflict_of(found) for found in base.conflicts]
        # If we crash here, the same base is computed again and the worktree is found as it is.
        self._shop.decide(
            self._root,
            lambda run: turns.prepare_worktree(
                run, self._id, base.commit, str(path), self._shop.now(), base.foundation, conflicts
            ),
        )

    def _rebuild(self, run: Run, child: ChildRun, subtask: Subtask) -> None:
        """Take what the producers made anew into the child's branch, under its own work."""
        assert child.head is not None, "only what was committed can be outdated"
        base, now = rebuilt_base(run, child, subtask, self._shop), self._shop.now()
        if not base.clean:
            self._shop.decide(self._root, lambda run: child_ends.dispatch_outdated_afresh(run, self._id, now))
            return
        path = self._shop.worktree(self._id)
        self._shop.repositories.ensure_worktree(self._shop.repository(run), path, child.branch, child.head.commit)
        # If we crash between the two, the same commit is made again and the branch is there already.
        self._shop.repositories.reset_worktree(self._shop.repository(run), path, child.branch, base.commit.commit)
        conflicts = [conflict_of(found) for found in base.conflicts]
        self._shop.decide(
            self._root, lambda run: turns.rebuild_base(run, self._id, base.foundation, base.commit, now, conflicts)
        )

    def _open_turn(self) -> bool:
        opened = self._shop.decide(self._root, lambda run: turns.open_turn(run, self._id))
        if opened:
            child, _ = turns.child_at_work(self._shop.runs.run(self._root), self._id)
            self._opened_here.add(child.turn.turn_id if child.turn else "")
        return opened

    def _take_turn(self, run: Run, child: ChildRun, turn: Turn) -> None:
        try:
            session, kept = self._ready(run, child, turn)
        except _Unwanted:
            return
        prompt = str(turn.prompt)
        if turn.turn_id not in self._opened_here:
            asked = kept and turn.turn_id in session.history
            self._shop.decide(
                self._root,
                lambda run: turns.interrupt_turn(run, self._id, found_in_history=asked, session_kept=kept),
            )
            self._opened_here.add(turn.turn_id)
            prompt = continue_prompt(turn.turn_id) if asked else prompt
        if not kept and child.session_id is not None:
            # The new session knows nothing of what the lost one was told.
            prompt = turns.prompt_anew(self._shop.runs.run(self._root), self._id)
        observer = ChildTurnRecorder(self._shop, self._root, child, turn)
        watch = StallWatch(session, observer, self._shop.stall_seconds, self._is_paused)
        try:
            # Inside the session's block: whoever waits for its end finds that nothing more is said.
            with observer, watch:
                ended = session.prompt(prompt, observer)
        except AgentFailed as failed:
            if watch.stalled and not self._shop.leaves(self._root):
                self._give_up_stalled()
            self._after_failure(failed)
            return
        self._shop.decide(self._root, lambda run: turns.end_turn(run, self._id, ended.stop_reason))

    def _is_paused(self) -> bool:
        return self._shop.runs.run(self._root).children[self._id].status in ("pausing", "paused")

    def _give_up_stalled(self) -> None:
        """End the child run; what comes next finds it ended, and leaves."""
        seconds, now = int(self._shop.stall_seconds), self._shop.now()
        self._shop.decide(self._root, lambda run: child_ends.give_up_stalled(run, self._id, now, seconds))

    def _after_failure(self, failed: AgentFailed) -> None:
        """The agent is gone. A cut-short turn is over with it; a correction that never began is tried again."""
        if self._shop.leaves(self._root):
            raise Closing from failed
        self._processes.close()
        self._session = None
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
        code, message = failed.code, str(failed)
        if not self._shop.decide(self._root, lambda run: turns.fail_execution(run, self._id, code, message)):
            raise failed

    def _ready(self, run: Run, child: ChildRun, turn: Turn) -> tuple[AgentSession, bool]:
        """Return the open session, and whether it is the one that the child has had so far."""
        if self._session is not None:
            return self._session, True
        request = SessionRequest(
            model_id=child.model_id,
            run_id=self._id,
            cwd=Path(str(child.worktree_path)),
            session_id=child.session_id,
        )
        self._shop.repositories.ensure_worktree(
            self._shop.repository(run), Path(str(child.worktree_path)), child.branch, turn.parent.commit
        )
        kept = child.session_id is not None
        try:
            session = self._processes.enter_context(self._shop.session(request, self._still_wanted))
        except AgentFailed as failed:
            if failed.code != "session_not_found":
                raise
            kept = False
            session = self._anew(run, child, turn, request)
        if session.session_id != child.session_id:
            self._shop.decide(
                self._root, lambda run: turns.open_session(run, self._id, session.session_id, session.capabilities)
            )
        self._session = session
        return session, kept

    def _anew(self, run: Run, child: ChildRun, turn: Turn, request: SessionRequest) -> AgentSession:
        # The new session knows nothing of what the lost one did, so its half-done files must not be there either.
        self._shop.repositories.reset_worktree(
            self._shop.repository(run), Path(str(child.worktree_path)), child.branch, turn.parent.commit
        )
        fresh = SessionRequest(model_id=request.model_id, run_id=request.run_id, cwd=request.cwd)
        return self._processes.enter_context(self._shop.session(fresh, self._still_wanted))

    def _still_wanted(self) -> None:
        run = self._shop.runs.run(self._root)
        turns.child_at_work(run, self._id)
        if not self._may_go_on(run) or turns.is_cut_short(run, self._id):
            raise _Unwanted

    def _commit(self, run: Run, child: ChildRun, turn: Turn) -> None:
        subtask = run.plan.of_child(self._id) if run.plan else None
        title = str(subtask.title) if subtask else "Work"
        message = f"{title}\n\nSteersman-Run: {self._id}\nSteersman-Turn: {turn.turn_id}\n"
        commit = self._committed(run, child, turn, message)
        # If we crash here, the redo makes the same commit: parent, time and trailer come from the turn's fact.
        self._shop.decide(self._root, lambda run: turns.commit_tree(run, self._id, commit))

    def _committed(self, run: Run, child: ChildRun, turn: Turn, message: str) -> Commit:
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            try:
                return self._shop.repositories.commit_worktree(
                    self._shop.repository(run),
                    Path(str(child.worktree_path)),
                    child.branch,
                    turn.parent.commit,
                    datetime.fromisoformat(turn.opened_at),
                    message,
                )
            except CommitFailed:
                if attempt == COMMIT_ATTEMPTS:
                    raise
                time.sleep(COMMIT_BACK_OFF_SECONDS * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")


def _in_turn(child: ChildRun) -> bool:
    """Whether the child's agent has not yet ended its turn."""
    return child.turn is not None and child.turn.stop_reason is None
