"""A child's workplace and branch: asked about before each use, and never ahead of the log."""

import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

import structlog

from ...domain.facts.bad_ends import BadEnd
from ...domain.facts.child_run import ChildRun, Turn
from ...domain.facts.run import CoordinatorRun
from ...domain.git import Commit
from ..ports.agents import AgentFailed
from ..ports.git import CommitFailed, GitConflict, RepositoryUnusable, WorkplaceLost, WorkplaceState
from .workshop import Workshop

COMMIT_ATTEMPTS = 3

log = structlog.get_logger(__name__)


class NotNow(Exception):
    """The child was paused meanwhile: its files stay as they are until it goes on."""


class ChildWorkplace:
    """The workplace of one child run."""

    def __init__(self, root: str, child_run_id: str, shop: Workshop) -> None:
        self._root = root
        self._id = child_run_id
        self._shop = shop

    def path(self, child: ChildRun) -> Path:
        """Return where it is, as the log says, or where it will be."""
        return Path(str(child.worktree_path)) if child.head is not None else self._shop.worktree(self._id)

    def make(self, run: CoordinatorRun, child: ChildRun, base: Commit) -> None:
        """Make it anew, with the files of *base*. No agent may be at work in it. Raises WorkplaceUnmade."""
        self._shop.repositories.make_workplace(self._shop.repository(run), self.path(child), base.commit)

    def look(self, run: CoordinatorRun, child: ChildRun) -> WorkplaceState:
        """Return what stands there."""
        return self._shop.repositories.look_at(self._shop.repository(run), self.path(child))

    def count_ignored(self, run: CoordinatorRun, child: ChildRun) -> int:
        """Return how many of its files git ignores, 0 where it is not whole."""
        return self._shop.repositories.count_ignored(self._shop.repository(run), self.path(child))

    def point_branch(self, run: CoordinatorRun, child: ChildRun) -> None:
        """Move the child's branch to the last recorded commit; it may be there already. Raises GitConflict."""
        if child.head is None:
            return
        old = child.previous.commit if child.previous is not None else None
        self._shop.repositories.point_branch(self._shop.repository(run), child.branch, old, child.head.commit)

    def commit(self, run: CoordinatorRun, child: ChildRun, turn: Turn, let_go: Callable[[], None]) -> Commit:
        """
        Commit what is in the workplace, with the agent's processes stopped meanwhile; *let_go* ends them if that fails.

        Tried again a few times. Raises CommitFailed, WorkplaceLost, NotNow.
        """
        subtask = run.part_of(self._id)
        title = str(subtask.title) if subtask else "Work"
        message = f"{title}\n\nSteersman-Run: {self._id}\nSteersman-Turn: {turn.turn_id}\n"
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            try:
                return self._commit_stopped(run, child, turn, message)
            except AgentFailed:
                # Its processes could not be stopped, or not continued: without them nobody writes.
                let_go()
            except CommitFailed:
                if attempt == COMMIT_ATTEMPTS:
                    raise
                time.sleep(self._shop.timings.commit_again * 2 ** (attempt - 1))
        return self._commit(run, child, turn, message)

    def keep(self, run: CoordinatorRun, child: ChildRun, end: BadEnd) -> Commit | None:
        """Commit what a turn that ended badly had half done, if anything; nobody is at work there any more."""
        turn = child.turn
        if end.way.kept == "nothing" or turn is None or turn.committed or child.head is None:
            return None
        subtask = run.part_of(self._id)
        title = f"Unfinished: {subtask.title if subtask else 'Work'}"
        why = f"{end.way.said}, so this is what it had half done."
        trailers = f"Steersman-Run: {self._id}\nSteersman-Turn: {turn.turn_id}\nSteersman-Unfinished: {end.code}\n"
        try:
            commit = self._commit(run, child, turn, f"{title}\n\n{why}\n\n{trailers}")
        except (CommitFailed, WorkplaceLost) as failed:
            log.warning("half-done work could not be kept", run=self._id, error=str(failed))
            return None
        return None if commit.tree == child.head.tree else commit

    def _commit_stopped(self, run: CoordinatorRun, child: ChildRun, turn: Turn, message: str) -> Commit:
        with self._shop.halting(self._id) as session:
            if self._shop.runs.run(self._root).children[self._id].status == "paused":
                raise NotNow
            if session is None:
                return self._commit(run, child, turn, message)
            session.stop_processes()
            try:
                return self._commit(run, child, turn, message)
            finally:
                session.continue_processes()

    def _commit(self, run: CoordinatorRun, child: ChildRun, turn: Turn, message: str) -> Commit:
        # The same commit at every try, also after a crash: parent, time and trailers come from the turn's fact.
        at = datetime.fromisoformat(turn.opened_at)
        return self._shop.repositories.commit_workplace(
            self._shop.repository(run), self.path(child), turn.parent.commit, at, message
        )


def point_branches(run: CoordinatorRun, children: Iterable[ChildRun], shop: Workshop) -> None:
    """Move the branches of children that ended before that was done; one that somebody else moved stays where it is."""
    for child in children:
        if child.previous is None:
            continue
        try:
            ChildWorkplace(run.run_id, child.run_id, shop).point_branch(run, child)
        except (GitConflict, RepositoryUnusable) as failed:
            log.warning("the branch of a child run could not be moved", run=child.run_id, error=str(failed))
