"""Forget a deleted run: nothing of it stays in its repository, among our files, or in any text of the log."""

from ...domain.facts.gates import ORDER
from ...domain.facts.run import CoordinatorRun
from ...domain.process.effects import EraseRun
from ...domain.runs.records import confirm_erased
from ...domain.work.turns import Overtaken
from ..looking.cause import StillAlive
from .answer_question import answering_branch, answering_name
from .pause_worker import PAUSE, SHUTDOWN
from .places import ROLES, places_of
from .workshop import Workshop


class StillAtWork(StillAlive):
    """An agent of the run has not quite ended, and could still say something."""


def erase_run(effect: EraseRun, shop: Workshop) -> None:
    """
    On return the run's worktrees, homes and branches are gone, its words and their salts are erased, and the log says so.

    Raises StillAtWork: the driver tries again a little later.
    """
    run = shop.runs.run(effect.run_id)
    tree = (run.run_id, *run.children)
    places = places_of(run)
    for place in places:
        shop.kill(place)
    if any(shop.opened_session_of(place) is not None for place in places):
        raise StillAtWork(f"an agent of run {run.run_id} is just ending")
    shop.tenure.check()
    shop.agents.forget(places)
    # The place of the repository is one of the texts, so it is cleared before they go; a redo finds both gone.
    if run.repository.value is not None:
        _clear_repository(run, shop)
    _clear_signals(run, shop)
    texts = shop.runs.log.erase_texts(tree)
    # If we crash here, the redo erases nothing more and records that.
    shop.runs.forget(run.run_id)
    try:
        shop.decide(effect.run_id, lambda found: confirm_erased(found, texts))
    except Overtaken:
        return


def _clear_repository(run: CoordinatorRun, shop: Workshop) -> None:
    repository = shop.repository(run)
    for child in run.children.values():
        shop.repositories.remove_workplace(repository, shop.worktree(child.run_id), child.branch)
        name, branch = answering_name(child.run_id), answering_branch(child.run_id)
        shop.repositories.remove_workplace(repository, shop.worktree(name), branch)
    integration = run.assembly.branch if run.assembly is not None else None
    shop.repositories.remove_workplace(repository, shop.worktree(run.run_id), integration)
    shop.repositories.remove_conflicts(repository, run.run_id)
    shop.repositories.remove_merged(repository, run.run_id)
    # What a planner, a writer or a gate that was killed in the middle could not take away.
    for role in ROLES:
        name = f"{run.run_id}-{role}"
        shop.repositories.remove_workplace(repository, shop.worktree(name), f"steersman/{role}/{run.run_id}")
    for kind in ORDER:
        shop.repositories.remove_workplace(
            repository, shop.worktree(f"{run.run_id}-{kind}"), f"steersman/gate/{run.run_id}/{kind}"
        )


def _clear_signals(run: CoordinatorRun, shop: Workshop) -> None:
    for child in run.children.values():
        if child.session_id is not None:
            shop.signals.clear(child.session_id, PAUSE)
            shop.signals.clear(child.session_id, SHUTDOWN)
