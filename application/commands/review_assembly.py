"""Decide at the human gate over a run's assembled work."""

from collections.abc import Sequence
from pathlib import Path

from ...domain.event import Fact
from ...domain.rejected import Rejected
from ...domain.runs.review import ReviewAssembly, review
from ..looking.look import looked
from ..ports.git import Repositories
from ..writer.caller import Caller
from ..writer.run_log import Answering, RunLog

#: What may be done about an obstacle, for people.
CLEAN_UP = "Commit, stash or finish what is under way there"
ADVICE = {
    "checkout_missing": "Move it back, tell git where it is with `git worktree repair`, or that it is gone with "
    "`git worktree prune`"
}


class RepositoryDirty(Rejected):
    """The originating branch cannot be moved now, so nothing was stored and the gate stays open."""

    code = "repository_dirty"
    retryable = True


def review_assembly(
    root: str,
    command: ReviewAssembly,
    by: Caller,
    runs: RunLog,
    repositories: Repositories,
    answer: Answering | None = None,
) -> Sequence[Fact]:
    """
    Store the decision; an approval is followed by the merge.

    Raises:
        RunNotFound, NoReviewPending, HeadMoved: see the decision.
        RepositoryDirty: an approval would be blocked by the state of the checkout. (It can still become dirty
            after this look; then the merge itself moves nothing and opens the gate again.)
    """
    run = runs.run(root)
    review(run, command)
    if command.approved and run.delivery.mode == "merge":
        obstacle = looked(lambda: repositories.obstacle(Path(str(run.repository)), run.branch))
        if obstacle is not None:
            raise RepositoryDirty(
                f"The checkout of {run.branch!r} cannot be moved ({obstacle}). Nothing was stored. "
                f"{ADVICE.get(obstacle, CLEAN_UP)}, then approve again.",
                reason=obstacle,
            )
    return runs.decide(root, lambda found: review(found, command), by, answer)
