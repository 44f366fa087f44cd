"""Forget a deleted run: nothing of it stays in its repository, among our files, or in any text of the log."""

from collections.abc import Sequence
from pathlib import Path

import structlog

from ...domain.effects import EraseRun
from ...domain.gates import ORDER
from ...domain.run import Run
from ...domain.run_records import confirm_erased
from ...domain.turns import Overtaken
from ..agent_port import AgentFailed
from ..cause import StillAlive
from .answer_question import answering_branch, answering_name
from .pause_worker import PAUSE, SHUTDOWN
from .workshop import Workshop

#: Who works for a coordinator in a worktree of their own before there is a plan.
ROLES = ("plan", "outcome")
#: An agent that dies this often while it forgets may keep what it has: nothing else waits for it.
FORGET_ATTEMPTS = 3

log = structlog.get_logger(__name__)


class StillAtWork(StillAlive):
    """An agent of the run has not quite ended, and could still say something."""


def erase_run(effect: EraseRun, shop: Workshop) -> None:
    """
    On return the run's worktrees and branches are gone, its words and their salts are erased, and the log says so.

    Raises StillAtWork: the driver tries again a little later.
    """
    run = shop.runs.run(effect.run_id)
    tree = (run.run_id, *run.children)
    places = (*tree, *(f"{run.run_id}-{part}" for part in (*ROLES, *ORDER)), *map(answering_name, run.children))
    for place in places:
        shop.kill(place)
    if any(shop.opened_session_of(place) is not None for place in places):
        raise StillAtWork(f"an agent of run {run.run_id} is just ending")
    keeping = _forget_sessions(run, places, shop)
    # The place of the repository is one of the texts, so it is cleared before they go; a redo finds both gone.
    if run.repository.value is not None:
        _clear_repository(run, shop)
    _clear_signals(run, shop)
    texts = shop.runs.log.erase_texts(tree)
    # If we crash here, the redo erases nothing more and records that.
    shop.runs.forget(run.run_id)
    try:
        shop.decide(effect.run_id, lambda found: confirm_erased(found, texts, keeping))
    except Overtaken:
        return


def _forget_sessions(run: Run, places: Sequence[str], shop: Workshop) -> tuple[str, ...]:
    """Let the agents forget what was said to them for this run; return the names of those that keep it."""
    models = {run.model_id, *(child.model_id for child in run.children.values()), *(g.model_id for g in run.gates)}
    # All models of an agent are one program with one memory.
    agents = {model.partition("/")[0]: model for model in sorted(filter(None, models))}
    worktrees = [shop.worktree(place) for place in places]
    return tuple(name for name, model in agents.items() if not _forgets(model, worktrees, shop))


def _forgets(model_id: str, worktrees: Sequence[Path], shop: Workshop) -> bool:
    shop.tenure.check()
    for _ in range(FORGET_ATTEMPTS):
        try:
            return shop.agents.forget(model_id, worktrees)
        except AgentFailed as failed:
            log.warning("an agent could not forget its sessions of a deleted run", agent=model_id, error=str(failed))
    return False


def _clear_repository(run: Run, shop: Workshop) -> None:
    repository = shop.repository(run)
    for child in run.children.values():
        shop.repositories.remove_worktree(repository, shop.worktree(child.run_id), child.branch)
        name, branch = answering_name(child.run_id), answering_branch(child.run_id)
        shop.repositories.remove_worktree(repository, shop.worktree(name), branch)
    integration = run.assembly.branch if run.assembly is not None else None
    shop.repositories.remove_worktree(repository, shop.worktree(run.run_id), integration)
    shop.repositories.remove_conflicts(repository, run.run_id)
    # What a planner, a writer or a gate that was killed in the middle could not take away.
    for role in ROLES:
        name = f"{run.run_id}-{role}"
        shop.repositories.remove_worktree(repository, shop.worktree(name), f"steersman/{role}/{run.run_id}")
    for kind in ORDER:
        shop.repositories.remove_worktree(
            repository, shop.worktree(f"{run.run_id}-{kind}"), f"steersman/gate/{run.run_id}/{kind}"
        )


def _clear_signals(run: Run, shop: Workshop) -> None:
    for child in run.children.values():
        if child.session_id is not None:
            shop.signals.clear(child.session_id, PAUSE)
            shop.signals.clear(child.session_id, SHUTDOWN)
