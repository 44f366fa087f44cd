"""Remove what an ended run left in the repository."""

from ...domain.process.effects import ClearAway
from ...domain.runs import review
from ...domain.work.turns import Overtaken
from .answer_question import answering_branch, answering_name
from .child_workplace import point_branches
from .places import places_of
from .workshop import Workshop


def clear_away(effect: ClearAway, shop: Workshop) -> None:
    """
    On return the run's worktrees are gone, and its branches and its agents' homes too if their work is merged.

    Branches of a run that was declined or failed stay: they may hold the only copy of somebody's work.
    """
    run = shop.runs.run(effect.run_id)
    repository = shop.repository(run)
    merged = run.status == "completed"
    if not merged:
        # The commits stay reachable by their branches alone.
        point_branches(run, run.children.values(), shop)
    for child in run.children.values():
        branch = child.branch if merged else None
        shop.repositories.remove_workplace(repository, shop.worktree(child.run_id), branch)
        if any(request.kind == "question" for request in child.requests.values()):
            name, branch = answering_name(child.run_id), answering_branch(child.run_id)
            shop.repositories.remove_workplace(repository, shop.worktree(name), branch)
    if merged and run.assembly is not None:
        shop.repositories.remove_workplace(repository, shop.worktree(run.run_id), run.assembly.branch)
    # A planner or a writer that was killed in the middle could not take its own away.
    for role in ("plan", "outcome") if run.outcome_spec is not None else ("plan",):
        name = f"{run.run_id}-{role}"
        shop.repositories.remove_workplace(repository, shop.worktree(name), f"steersman/{role}/{run.run_id}")
    # Branches hold what is left of it.
    shop.repositories.remove_merged(repository, run.run_id)
    if merged:
        # Nothing is asked of these agents any more, so nobody needs what they kept.
        shop.tenure.check()
        shop.agents.forget(places_of(run))
    try:
        shop.decide(effect.run_id, review.remove_worktrees)
    except Overtaken:
        return
