"""GET /api/runs/{id}/explain: what a run waits for, and for whom."""

from litestar import get
from litestar.params import FromPath

from ...application.queries.explain_run import Explanation, explain
from ...domain.runs.retry import successor
from ..request.problems import refusals
from ..request.reading import Reads


@get("/api/runs/{run_id:str}/explain", sync_to_thread=True, responses=refusals(403, 404))
def explain_run(run_id: FromPath[str], reading: Reads) -> Explanation:
    """
    Say what a coordinator run waits for: outstanding effects with their last error and next try, who drives it, who holds
    the places that it waits for, and what only a person can do. Of a child run its coordinator is explained.
    """
    root = reading.access.run(reading.principal, run_id).root
    again = successor(root)
    return explain(
        reading.services.runs.run(root),
        reading.services.holder(root),
        lambda other: reading.access.may_see(reading.principal, other),
        again if reading.services.log.read_run(again, limit=1) else None,
    )
