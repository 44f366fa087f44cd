"""Many workers at once: one receipt for each, one batch id, and every refusal told without harm to the rest."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias
from uuid import uuid4

import msgspec
from litestar import Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery
from msgspec import Meta

from ..domain.child_run import ChildRun
from ..domain.rejected import Forbidden, Invalid, Rejected
from ..domain.run import Run
from ..domain.work_plan import Subtask
from ..domain.worker_command import check
from ..projections import open_runs
from .idempotency import Asking, Asks
from .problems import refusals
from .reading import Reads
from .worker_steering import (
    Placed,
    Target,
    WorkerReceipt,
    WorkerSteerRequest,
    as_command,
    checked,
    put,
    target_of,
    with_effects,
)

MAX_TARGETS = 1_000
#: The longest name of a task is a run's id, a colon and a number.
MAX_TASK_CHARACTERS = 64

Task: TypeAlias = Annotated[str, Meta(max_length=MAX_TASK_CHARACTERS)]


class Selector(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Every child of a run that is in this state."""

    run: Annotated[str, Meta(max_length=64)]
    status: Literal["running", "paused", "active"] = "running"


class FleetSteerRequest(WorkerSteerRequest, kw_only=True, forbid_unknown_fields=True):
    """One command for many workers: name them, or say which."""

    tasks: Annotated[tuple[Task, ...], Meta(max_length=MAX_TARGETS)] = ()
    selector: Selector | None = None


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was not steered, and why."""

    task_id: str
    status: int
    error: str
    message: str
    retryable: bool


class FleetReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each target."""

    batch_id: str
    receipts: Sequence[WorkerReceipt]
    refused: Sequence[Refused]


class UnderWay(msgspec.Struct, frozen=True, kw_only=True):
    """A correction that has not come to its end."""

    directive_id: str
    kind: str
    status: str


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
    directives: Sequence[UnderWay]


@post(
    "/api/fleet/steer",
    sync_to_thread=True,
    responses={201: ResponseSpec(FleetReceipt, description="One receipt per target", generate_examples=False)}
    | refusals(403, 404, 409, 413, 422),
)
def steer_fleet(asking: Asks) -> Response[FleetReceipt]:
    """Steer many workers. 201 when there was a target, whatever became of each: look at `refused`."""
    request = _decoded(asking.body)
    check(as_command(request, "any"))
    batch_id = str(uuid4())
    targets, refused = _targets(asking, request)
    placed: list[Placed] = []
    # All receipts before the first wait for an effect: the last worker is to be stopped as soon as the first one.
    for target in targets:
        try:
            placed.append(_place(asking, target, request, batch_id))
        except Rejected as refusal:
            refused.append(_told(target.task_id, refusal))
    if refused and not placed and all(found.status == 403 for found in refused):
        raise Forbidden(refused[0].message)
    body = FleetReceipt(batch_id=batch_id, receipts=with_effects(asking, placed), refused=refused)
    return Response(body, status_code=201, headers={"Steersman-Position": str(asking.services.log.head())})


@get("/api/fleet", sync_to_thread=True, responses=refusals(403, 404))
def list_fleet(reading: Reads, run: FromQuery[str | None] = None) -> Sequence[FleetWorker]:
    """List the workers that the caller may see: who runs, is paused or waits, since when, and what is under way for them."""
    roots = [reading.access.run(reading.principal, run).root] if run is not None else _open_roots(reading)
    return [worker for root in roots for worker in _workers(reading.services.runs.run(root))]


def _decoded(body: bytes) -> FleetSteerRequest:
    try:
        request = msgspec.json.decode(body, type=FleetSteerRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"The body is not a fleet command: {error}") from error
    if bool(request.tasks) == (request.selector is not None):
        raise Invalid("Send either `tasks` or a `selector`.")
    return request


def _targets(asking: Asking, request: FleetSteerRequest) -> tuple[Sequence[Target], list[Refused]]:
    """Return whom the command is for, each once however often and by which names it is asked for, and who is refused."""
    targets: dict[str, Target] = {}
    refused: list[Refused] = []
    for task_id in dict.fromkeys(request.tasks if request.selector is None else _selected(asking, request.selector)):
        try:
            target = target_of(asking, task_id)
        except Rejected as refusal:
            refused.append(_told(task_id, refusal))
        else:
            targets.setdefault(target.child_run_id, target)
    return list(targets.values()), refused


def _place(asking: Asking, target: Target, request: FleetSteerRequest, batch_id: str) -> Placed:
    part = asking.part(target.child_run_id)
    wanted = checked(part, target, request, batch_id)
    response = part.once(lambda attempt: put(part, target, wanted, attempt))
    return Placed(target=target, directive_id=msgspec.json.decode(response.content)["directiveId"])


def _told(task_id: str, refusal: Rejected) -> Refused:
    return Refused(
        task_id=task_id,
        status=refusal.status,
        error=refusal.code,
        message=str(refusal),
        retryable=refusal.retryable,
    )


def _selected(asking: Asking, selector: Selector) -> Sequence[str]:
    root = asking.access.run(asking.principal, selector.run).root
    states = {"running": ("in_progress",), "paused": ("pausing", "paused")}.get(
        selector.status, ("pending", "in_progress", "pausing", "paused")
    )
    run = asking.services.runs.run(root)
    parts = run.plan.subtasks.values() if run.plan else ()
    children = [part.child_run_id for part in parts if part.in_flight and part.child_run_id is not None]
    found = [child for child in children if run.children[child].status in states]
    if not found:
        raise Invalid(f"No child of this run is {selector.status} now.")
    return found


def _open_roots(reading: Reads) -> Sequence[str]:
    rows = [row for _, row in reading.rows(open_runs.VIEW, open_runs.GROUP)]
    return [row.run_id for row in rows if reading.access.may_see(reading.principal, row.run_id)]


def _status(part: Subtask, child: ChildRun) -> str:
    # One that was paused before it had its place waits for nobody but whoever resumes it.
    waits = part.status == "dispatched" and child.status not in ("pausing", "paused")
    return "waiting_for_place" if waits else child.status


def _workers(run: Run) -> Sequence[FleetWorker]:
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
                directives=[UnderWay(directive_id=d.directive_id, kind=d.verb, status=d.status) for d in under_way],
            )
        )
    return workers
