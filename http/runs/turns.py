"""GET /api/runs/{id}/turns: what an agent did, turn by turn."""

from litestar import get
from litestar.params import FromPath

from ...domain.facts.run import counted_stream
from ...domain.facts.spending import TurnCounted
from ...projections.turns import FeedTurns, TurnView
from ..request.problems import refusals
from ..request.reading import Reads

PAGE = 500


@get("/api/runs/{run_id:str}/turns", sync_to_thread=True, responses=refusals(403, 404))
def list_turns(run_id: FromPath[str], reading: Reads) -> list[TurnView]:
    """
    List the turns of a run's own agents, the oldest first: what each meant to do, which tools it called with what, who let
    it, and what it has used. Those of a coordinator's children are listed by each of them.
    """
    reading.await_log()
    place = reading.access.run(reading.principal, run_id)
    log = reading.services.log
    turns, after = FeedTurns(), 0
    while facts := log.read_run(place.run_id, after, PAGE):  # ends: what is stored when it is read to its end
        for fact in facts:
            turns.add(fact)
        after = facts[-1].run_sequence or 0
    counted, after = list[TurnCounted](), 0
    while facts := log.read_stream(counted_stream(place.root), after, PAGE):  # ends: in the same way
        found = (fact.event for fact in facts)
        counted += [event for event in found if isinstance(event, TurnCounted) and event.run_id == place.run_id]
        after = facts[-1].version
    return list(turns.shown(counted))
