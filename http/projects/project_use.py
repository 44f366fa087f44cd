"""What the runs of a project may use together, and where their work goes."""

from litestar import Response, post, put
from litestar.params import FromPath, JSONBody

from ...application.commands.set_project_budget import let_begin
from ...domain.projects import project_changes
from ...domain.work.budget import changed as changed_budget
from ...projections import waiting
from ..request.budgets import BudgetRequest, changes_of
from ..request.deliveries import DeliveryRequest, delivery_of
from ..request.idempotency import Asks
from ..request.problems import NO_CONTENT, refusals
from .project_changes import changed

REFUSALS = refusals(403, 404, 409, 413, 422)
#: In how many runs turns begin again at once; the others are found by the sweep.
MAX_RELEASED = 1_000


@post("/api/projects/{project_id:str}/budget", status_code=204, sync_to_thread=True, responses=NO_CONTENT | REFUSALS)
def put_project_budget(project_id: FromPath[str], data: JSONBody[BudgetRequest], asking: Asks) -> Response[None]:
    """
    Say what the agents of all the project's runs may use together from now on, with what they have used already. What is
    left out stays as it is. Runs that waited for it go on.
    """
    changes = changes_of(data)
    response = changed(
        asking,
        project_id,
        lambda project: project_changes.set_budget(project, changed_budget(project.budget, changes)),
        own=True,
    )
    services = asking.services
    # If we crash here, or miss one, the sweep of whoever drives it finds that it may go on.
    rows = services.views.list(waiting.VIEW.name, project_id, limit=MAX_RELEASED)
    let_begin([waiting.VIEW.decode(row.body).run_id for row in rows], services.runs)
    return response


@put("/api/projects/{project_id:str}/delivery", status_code=204, sync_to_thread=True, responses=NO_CONTENT | REFUSALS)
def put_delivery(project_id: FromPath[str], data: JSONBody[DeliveryRequest], asking: Asks) -> Response[None]:
    """Say where the work of the project's runs goes that do not say, from the next run on."""
    delivery = delivery_of(data)
    assert delivery is not None, "there is a body"
    return changed(asking, project_id, lambda project: project_changes.set_delivery(project, delivery), own=True)
