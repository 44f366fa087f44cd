"""Die at every step with git, before it is done or right after: the branch follows the log, and nothing is lost or doubled."""

from collections.abc import Callable
from typing import Any

import pytest

from steersman.domain.facts.child_run import BaseRebuilt, TreeCommitted, WorktreePrepared
from steersman.tests.application.service import MAX_ROUNDS, Service, part

#: What git is asked to change for the children of the story.
STEPS = ("make_workplace", "commit_workplace", "point_branch")
CALLS = 18


class Dying(Service):
    """A service that dies at the n-th step, before it is done or after; and whose branches are looked at at every step."""

    def __init__(self, dies_at: int | None, *, done: bool) -> None:
        self.calls = 0
        super().__init__()
        for name in STEPS:
            setattr(self.git, name, self._step(getattr(self.git, name), dies_at, done=done))

    def _step(self, step: Callable[..., Any], dies_at: int | None, *, done: bool) -> Callable[..., Any]:
        def stepped(*args: Any) -> Any:
            self.calls += 1
            dies = self.calls == dies_at
            if dies and not done:
                raise KeyboardInterrupt
            result = step(*args)
            self._branches_are_not_ahead_of_the_log()
            if dies:
                raise KeyboardInterrupt
            return result

        return stepped

    def _branches_are_not_ahead_of_the_log(self) -> None:
        recorded = {e.commit.commit for e in self.events if isinstance(e, TreeCommitted | BaseRebuilt)}
        recorded |= {e.base.commit for e in self.told(WorktreePrepared)}
        for child in self.run.children.values():
            assert self.git.branches.get(child.branch) in {None, *recorded}

    def drive_on(self) -> None:
        """Drive, and start again after a death."""
        for _ in range(MAX_ROUNDS):
            try:
                self.drive()
                return
            except KeyboardInterrupt:
                self.restart()


def tell_the_story(dies_at: int | None, *, done: bool) -> Dying:
    """Two parts, the second on the first, which is sent back at the gate so that the second is rebuilt; then a merge."""
    service = Dying(dies_at, done=done)
    service.start(part("One"), part("Two", 0))
    service.drive_on()
    service.request_changes("d", f"{service.child(1).run_id[:8]}.txt")
    service.drive_on()
    for child in service.run.children.values():
        assert child.head is not None
        assert service.git.branches[child.branch] == child.head.commit
    service.approve()
    service.drive_on()
    return service


def test_the_story_has_as_many_steps_as_are_died_at_below() -> None:
    assert tell_the_story(None, done=False).calls == CALLS


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("dies_at", range(1, CALLS + 1))
def test_a_death_at_any_step_changes_nothing_about_the_end(dies_at: int, done: bool) -> None:
    service = tell_the_story(dies_at, done=done)
    run, files = service.run, service.merged()
    assert (run.status, run.worktrees_removed) == ("completed", True)
    assert len(run.children) == 2
    for child in run.children.values():
        lines = files[f"{child.run_id[:8]}.txt"].splitlines()
        assert len(lines) == len(set(lines)) == 2
    assert not service.git.workplaces
    assert not service.git.taken
    assert set(service.git.branches) == {"main"}
