"""Put the children's work together on the integration branch."""

from collections.abc import Sequence
from datetime import datetime

from ...domain.event import Text
from ...domain.facts.assembly import ConflictAutoResolved
from ...domain.facts.run import CoordinatorRun
from ...domain.git import Commit, integration_branch
from ...domain.process.effects import AssembleChildren
from ...domain.runs import review
from ...domain.steering.gate_signals import Touched
from ...domain.work.turns import Overtaken
from ..looking.touched_files import touched_files
from ..ports.git import PathConflict, RepositoryUnusable
from .contributions import contributions
from .workshop import Workshop


def assemble_children(effect: AssembleChildren, shop: Workshop) -> None:
    """On return the assembled tree is on the integration branch, and the gates are to look at exactly that tree."""
    run = shop.runs.run(effect.run_id)
    try:
        _, begun = review.assembling(run)
        plan, assembly = review.to_integrate(run, begun.round)
        repository = shop.repository(run)
        integrated = shop.repositories.integrate(
            repository,
            run.run_id,
            run.base.commit,
            contributions(run, plan.in_order()),
            datetime.fromisoformat(assembly.started_at),
            f"Assemble: {summary(run)}\n\nSteersman-Run: {run.run_id}\nSteersman-Round: {assembly.round}\n",
        )
        # Git can take long: what was asked for meanwhile goes into another round, and that one has the branch.
        review.to_integrate(shop.runs.run(effect.run_id), assembly.round)
        # The branch may stand where a round was left that nobody was told of, so the log alone cannot name its place.
        shop.repositories.point_branch(repository, assembly.branch, _tip(run, shop), integrated.commit)
        # If we crash here, the redo makes the same commit and finds the branch where it belongs.
        conflicts = _shown(run, plan.work_plan_id, integrated.conflicts, shop)
        assembled = Commit(commit=integrated.commit, tree=integrated.tree)
        shop.decide(
            effect.run_id,
            lambda run: review.integrate(
                run,
                assembled,
                of_round=assembly.round,
                has_changes=integrated.has_changes,
                conflicts=conflicts,
            ),
        )
    except Overtaken:
        return


def summary(run: CoordinatorRun) -> str:
    """Return the run's goal in a line, for the commits that bring its work together."""
    return (str(run.goal).strip().splitlines() or ["the work of a run"])[0][:100]


def _tip(run: CoordinatorRun, shop: Workshop) -> str | None:
    try:
        return shop.repositories.tip(shop.repository(run), integration_branch(run.run_id)).commit
    except RepositoryUnusable as unusable:
        if unusable.code != "no_commit":
            raise
        return None


def _shown(
    run: CoordinatorRun, work_plan_id: str, found: Sequence[PathConflict], shop: Workshop
) -> Sequence[ConflictAutoResolved]:
    touched: Touched = touched_files(run, shop.repositories) if found else {}
    return [
        ConflictAutoResolved(
            work_plan_id=work_plan_id,
            conflicting_branch=conflict.branch,
            conflicting_files=tuple(Text(path) for path in conflict.paths),
            strategy="accept_child",
            ref=conflict.ref,
            subtask_id=conflict.subtask_id,
            other_subtask_ids=tuple(
                subtask_id
                for subtask_id, paths in touched.items()
                if subtask_id != conflict.subtask_id and not paths.isdisjoint(conflict.paths)
            ),
            replaced=conflict.replaced,
        )
        for conflict in found
    ]
