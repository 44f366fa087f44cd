"""Many workers at once: one receipt for each, one batch id, and every refusal told without harm to the rest."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from litestar import Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery
from msgspec import Meta

from ...application.ports.log import EventLog, Undecodable
from ...domain.facts.child_run import ChildRun, work_id
from ...domain.facts.held import WaitsFor
from ...domain.facts.run import CoordinatorRun
from ...domain.facts.work_plan import Subtask
from ...domain.steering.worker_command import check
from ...domain.work.agent_requests import waits_for_person
from ...projections import open_runs
from ..request.idempotency import REPLAYED, Asks
from ..request.problems import refusals
from ..request.reading import Reads
from .fleet_batch import NotSteered, batch_of, decoded, place, refuse_all_forbidden
from .worker_steering import WorkerReceipt, as_command, with_effects


class FleetReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each target."""

    batch_id: str
    receipts: Sequence[WorkerReceipt]
    refused: Sequence[NotSteered]


class UnderWay(msgspec.Struct, frozen=True, kw_only=True):
    """A correction that has not come to its end."""

    directive_id: str
    kind: str
    status: str


class HeldBody(msgspec.Struct, frozen=True, kw_only=True):
    """Why a worker does not get on, since when, and who can mend it."""

    error_code: str
    message: str | None
    waits_for: WaitsFor
    since: str


class FleetWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, what it is doing, and what is under way for it."""

    task_id: str
    coordinator_run_id: str
    subtask_id: int
    title: str | None
    agent: str
    model_id: str
    status: str
    session_id: str | None
    since: str
    #: When it last said or did anything that is on its feed; null where that cannot be read.
    last_sign_of_life: Annotated[str | None, Meta(extra_json_schema={"format": "date-time"})]
    directives: Sequence[UnderWay]
    #: What stands in its way, if its work failed several times in a row.
    held: HeldBody | None = None
    #: What its agent asks of somebody, the oldest first: tool, shell, question.
    waiting: Sequence[str] = ()


@post(
    "/api/fleet/steer",
    sync_to_thread=True,
    responses={201: ResponseSpec(FleetReceipt, description="One receipt per target", generate_examples=False)}
    | refusals(403, 404, 409, 413, 422),
)
def steer_fleet(asking: Asks) -> Response[FleetReceipt]:
    """Steer many workers. 201 when there was a target, whatever became of each: look at `refused`."""
    request = decoded(asking.body)
    check(as_command(request, "any"))
    with asking.held():
        batch, replayed = batch_of(asking, request)
        tried = [place(asking, target, request, batch.batch_id) for target in batch.targets]
    # All receipts before the first wait for an effect: the last worker is to be stopped as soon as the first one.
    placed = [one.placed for one in tried if one.placed is not None]
    refused = [*batch.refused, *(one.refused for one in tried if one.refused is not None)]
    if not placed:
        refuse_all_forbidden(refused)
    body = FleetReceipt(batch_id=batch.batch_id, receipts=with_effects(asking, placed), refused=refused)
    headers = {"Steersman-Position": str(asking.services.log.head())}
    if replayed and all(one.replayed for one in tried):
        headers[REPLAYED] = "true"
    return Response(body, status_code=201, headers=headers)


@get("/api/fleet", sync_to_thread=True, responses=refusals(403, 404))
def list_fleet(reading: Reads, run: FromQuery[str | None] = None) -> Sequence[FleetWorker]:
    """List the workers that the caller may see: who runs, is paused or waits, since when, and what is under way for them."""
    roots = [reading.access.run(reading.principal, run).root] if run is not None else _open_roots(reading)
    services = reading.services
    return [worker for root in roots for worker in _workers(services.runs.run(root), services.log)]


def _open_roots(reading: Reads) -> Sequence[str]:
    rows = [row for _, row in reading.rows(open_runs.VIEW, open_runs.GROUP)]
    return [row.run_id for row in rows if reading.access.may_see(reading.principal, row.run_id)]


def _status(part: Subtask, child: ChildRun) -> str:
    # One that was paused before it had its place waits for nobody but whoever resumes it.
    waits = part.status == "dispatched" and child.status not in ("pausing", "paused")
    return "waiting_for_place" if waits else child.status


def _held(run: CoordinatorRun, child: ChildRun) -> HeldBody | None:
    held = run.held.get(work_id(child.run_id))
    if held is None:
        return None
    return HeldBody(error_code=held.error_code, message=held.message.value, waits_for=held.waits_for, since=held.since)


def _last_sign(log: EventLog, run_id: str) -> str | None:
    try:
        newest = log.read_run(run_id, log.run_head(run_id) - 1, limit=1)
    except Undecodable:
        return None
    return newest[-1].at.isoformat() if newest else None


def _workers(run: CoordinatorRun, log: EventLog) -> Sequence[FleetWorker]:
    workers: list[FleetWorker] = []
    for part in run.plan.subtasks.values() if run.plan else ():
        child = run.children.get(part.child_run_id or "")
        if child is None or not part.in_flight:
            continue
        under_way = [d for d in run.open_directives() if child.run_id in d.targets]
        workers.append(
            FleetWorker(
                task_id=child.run_id,
                coordinator_run_id=run.run_id,
                subtask_id=part.subtask_id,
                title=part.title.value,
                agent=child.agent_name,
                model_id=child.model_id,
                status=_status(part, child),
                session_id=child.session_id,
                since=child.turn.opened_at if child.turn else child.created_at,
                last_sign_of_life=_last_sign(log, child.run_id),
                directives=[UnderWay(directive_id=d.directive_id, kind=d.verb, status=d.status) for d in under_way],
                held=_held(run, child),
                waiting=[
                    *dict.fromkeys(
                        r.kind for r in child.requests.values() if waits_for_person(run, child.run_id, r.request_id)
                    )
                ],
            )
        )
    return workers
