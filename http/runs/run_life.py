"""What becomes of a run's record: cancelled, put aside, tried again, or deleted for good."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import msgspec
from litestar import Response, delete, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath

from ...application.commands.end_run import archive_run, cancel_run, delete_run
from ...application.commands.retry_run import Ids, retry_run
from ...domain.event import Draft, Fact
from ...domain.facts.run import CoordinatorRun
from ...domain.runs.retry import RETRYABLE
from ...domain.steering.steering import RunNotSteerable
from ..request.idempotency import Asks, Command, directive_id
from ..request.one_run import coordinator, settled
from ..request.problems import NO_CONTENT, refusals


class CancelledBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a cancellation came to. While agents are still being ended the status is what it was."""

    run_id: str
    status: str
    cancelled: bool
    already_terminal: bool


class ArchivedBody(msgspec.Struct, frozen=True, kw_only=True):
    """When the run was put aside."""

    run_id: str
    archived_at: str


class RetriedBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run that goes on: a new one, or (`resumed`) the same."""

    run_id: str
    retried_from: str | None
    status: str
    resumed: bool = False


RETRIED = {
    200: ResponseSpec(RetriedBody, description="The run goes on", generate_examples=False),
    201: ResponseSpec(RetriedBody, description="A new run", generate_examples=False),
}


@post(
    "/api/runs/{run_id:str}/cancel",
    status_code=200,
    sync_to_thread=True,
    responses={200: ResponseSpec(CancelledBody, description="What it came to", generate_examples=False)}
    | refusals(403, 404, 409, 413, 422),
)
def cancel(run_id: FromPath[str], asking: Asks) -> Response[bytes]:
    """Stop everything that is at work for a run, and keep its record. A run that has ended is left as it is."""
    place = coordinator(asking, run_id)
    runs = asking.services.runs

    def carry_out(command: Command) -> Sequence[Fact]:
        ended = runs.run(place.root).ended
        told = command.tell(200, {"cancelled": not ended, "already_terminal": ended})
        if ended:
            return ()
        try:
            return cancel_run(place.root, directive_id(), command.by, runs, lambda _, __: told)
        except RunNotSteerable:
            # Somebody stops it already: this comes to the same.
            return ()

    response = asking.once(carry_out)
    answer = msgspec.json.decode(response.content)
    run = settled(asking, place.root, lambda run: run.ended)
    response.content = msgspec.json.encode(CancelledBody(run_id=place.root, status=run.status, **answer))
    return response


@post(
    "/api/runs/{run_id:str}/archive",
    status_code=200,
    sync_to_thread=True,
    responses={200: ResponseSpec(ArchivedBody, description="When it was put aside", generate_examples=False)}
    | refusals(403, 404, 409, 413, 422),
)
def archive(run_id: FromPath[str], asking: Asks) -> Response[bytes]:
    """Put a run aside. One that was put aside before keeps its time."""
    place = coordinator(asking, run_id)
    runs = asking.services.runs

    def carry_out(command: Command) -> Sequence[Fact]:
        told = command.tell(200, {"run_id": place.root})
        return archive_run(place.root, command.by, runs, lambda _, __: told)

    response = asking.once(carry_out)
    at = runs.run(place.root).archived_at or ""
    response.content = msgspec.json.encode(ArchivedBody(run_id=place.root, archived_at=at))
    return response


@post("/api/runs/{run_id:str}/retry", sync_to_thread=True, responses=RETRIED | refusals(403, 404, 409, 413, 422))
def retry(run_id: FromPath[str], asking: Asks) -> Response[bytes]:
    """
    Try a failed run again: where it stood (200), or as a new run (201); the failed one stays as it is.

    In a run that has not failed, what is `held` (it failed several times in a row, and waits for somebody to mend the cause)
    is tried again at once (200), instead of within a minute.
    """
    place = coordinator(asking, run_id)
    services = asking.services
    ids = Ids(str(uuid4()), directive_id())

    def carry_out(command: Command) -> Sequence[Fact]:
        def told(new_run: str | None) -> Any:
            if new_run is None:
                status = services.runs.run(place.root).status
                goes_on = "in_progress" if status in RETRYABLE else status
                return command.tell(
                    200, RetriedBody(run_id=place.root, retried_from=None, status=goes_on, resumed=True)
                )
            return command.tell(201, RetriedBody(run_id=new_run, retried_from=place.root, status="in_progress"))

        return retry_run(
            place.root,
            ids,
            command.by,
            services.runs,
            services.repositories,
            services.agents,
            told,
        )

    return asking.once(carry_out, "/api/runs/{run_id}")


@delete(
    "/api/runs/{run_id:str}",
    status_code=204,
    sync_to_thread=True,
    responses=NO_CONTENT | refusals(403, 404, 409, 413, 422),
)
def delete_one(run_id: FromPath[str], asking: Asks) -> Response[None]:
    """Delete a run, its children and every word of them. What is at work is stopped; from now on all of it is 404."""
    place = coordinator(asking, run_id)

    def carry_out(command: Command) -> Sequence[Fact]:
        def told(_: CoordinatorRun, __: Sequence[Draft]) -> Any:
            return command.tell(204, None)

        return delete_run(place.root, command.by, asking.services.runs, told)

    position = asking.once(carry_out).headers["Steersman-Position"]
    return Response(None, status_code=204, headers={"Steersman-Position": position})
