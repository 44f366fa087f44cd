"""Ask an agent of the coordinator's own something that it answers in words: it looks, and changes nothing."""

import msgspec

from ...domain.facts.run import CoordinatorRun
from ...domain.git import Commit
from ..ports.agents import SessionRequest
from .coordinator_turn import coordinator_turn
from .workshop import Workshop


class CoordinatorQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent is asked, and where it looks."""

    #: What its process is known by in this service, so that it can be ended from elsewhere.
    name: str
    turn_id: str
    prompt: str
    #: The worktree's name, its branch, and the commit that it shows.
    worktree: str
    branch: str
    shows: Commit


def ask_coordinator(run: CoordinatorRun, question: CoordinatorQuestion, shop: Workshop) -> str:
    """Return what the agent says in one turn; what it says on the way is on the run's feed. Raises AgentFailed, Closing, Overtaken."""
    repository, worktree = shop.repository(run), shop.worktree(question.worktree)
    # Nobody takes anything from this workplace, and what an earlier try left behind in it is gone.
    shop.repositories.make_workplace(repository, worktree, question.shows.commit)
    try:
        request = SessionRequest(model_id=run.model_id, run_id=question.name, cwd=worktree, reads=shop.lent(run))
        with coordinator_turn(run, question.turn_id, request, shop) as ask:
            return ask(question.prompt)
    finally:
        shop.repositories.remove_workplace(repository, worktree, question.branch)
