"""Take a turn of an agent of the coordinator's own: where it may begin, and counted when it has ended."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from ...domain.event import Draft
from ...domain.facts.run import CoordinatorRun
from ...domain.work import budget
from ...domain.work.budget import Reported
from ...domain.work.turns import Overtaken
from ..ports.agents import SessionRequest
from .record_turn import TurnRecorder, output_bytes
from .workshop import Workshop

#: Asks the agent something, and returns what it said.
AsksAgent = Callable[[str], str]


@contextmanager
def coordinator_turn(
    run: CoordinatorRun, turn_id: str, request: SessionRequest, shop: Workshop
) -> Generator[AsksAgent]:
    """
    Give an agent that answers in words; what it says on the way is on the run's feed. All that it was asked in the block is
    one turn.

    Raises AgentFailed, Closing; Overtaken where a budget keeps turns from beginning, which the log then says.
    """

    def begins(found: CoordinatorRun) -> Sequence[Draft]:
        if found.out_of is not None:
            raise Overtaken
        return budget.may_begin(found, shop.project(found))

    if shop.decide(run.run_id, begins):
        raise Overtaken
    used, began, reports = output_bytes(shop.runs, run.run_id), shop.now(), list[Reported]()
    recorder = TurnRecorder(
        shop.runs, shop.tenure, run.run_id, run.run_id, turn_id, request.model_id, used, shop.turn_bytes
    )

    def ask(prompt: str) -> str:
        # What an agent says of its tokens is said of one answer, what it says of its cost of the whole session.
        recorder.reported = Reported()
        try:
            return session.prompt(prompt, recorder).message
        finally:
            reports.append(recorder.reported)

    ended = False
    try:
        with shop.session(request) as session, recorder:
            yield ask
            ended = True
    finally:
        if reports and not shop.leaves(run.run_id):
            reported = budget.together(reports)
            shop.decide(
                run.run_id,
                lambda found: budget.count_coordinator_turn(
                    found, turn_id, request.model_id, reported, began, shop.now(), ended=ended
                ),
            )
