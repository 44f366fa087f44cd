"""GET /api/runs/{id}/graph: the shape of a run's work, for clients that draw it."""

from litestar import get
from litestar.params import FromPath

from ...projections import graph, work_plan_view
from ...projections.graph import GraphDescriptor
from ..request.one_run import run_row
from ..request.problems import refusals
from ..request.reading import Reads


@get("/api/runs/{run_id:str}/graph", sync_to_thread=True, responses=refusals(403, 404))
def show_graph(run_id: FromPath[str], reading: Reads) -> GraphDescriptor:
    """Return the graph of a run: of a coordinator the one of its plan, as soon as it has one."""
    row = run_row(reading, run_id)
    is_child = row.parent_run_id is not None
    return graph.of_run(is_child=is_child, plan=None if is_child else reading.row(work_plan_view.VIEW, row.run_id))
