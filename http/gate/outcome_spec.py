"""What a goal means: the draft of its outcome spec, which is confirmed or sent back before anything is planned."""

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import UNSET, Meta, UnsetType

from ...application.commands.agree_outcome import confirm_outcome, revise_outcome
from ...application.writer.caller import Caller
from ...application.writer.run_log import Answering, RunLog
from ...domain.event import Draft, Fact
from ...domain.facts.run import CoordinatorRun
from ...domain.rejected import NotFound
from ...projections import run_detail
from ..request.access import RunPlace
from ..request.given import Services
from ..request.idempotency import Asking, Asks, Command
from ..request.one_run import UseCoordinator
from ..request.problems import refusals
from ..request.reading import Reads

MAX_CHARACTERS = 65_536

Deciding = Callable[[str, Caller, RunLog, Answering], Sequence[Fact]]


class RevisionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the draft lacks."""

    feedback: Annotated[
        str, Meta(max_length=MAX_CHARACTERS, description="1 to 16384 bytes.", examples=["Tighten the scope."])
    ] = ""


class OutcomeSpecBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a goal means. While the first draft is being written there is only the goal."""

    goal: str | None
    desired_outcome: str | UnsetType | None = UNSET
    scope: str | UnsetType | None = UNSET
    assumptions: str | UnsetType | None = UNSET
    clarifying_questions: str | UnsetType | None = UNSET
    status: Annotated[str, Meta(description="drafting, awaiting_confirmation or confirmed.")]
    confirmed_by: str | UnsetType = UNSET


class OutcomeSpecNotFound(NotFound):
    """The run has no outcome spec: it was started directly, or it is a child run."""

    code = "outcome_spec_not_found"


SPEC = {200: ResponseSpec(OutcomeSpecBody, description="The outcome spec", generate_examples=False)}


@get("/api/runs/{run_id:str}/outcome-spec", sync_to_thread=True, responses=refusals(403, 404))
def show_outcome_spec(run_id: FromPath[str], reading: Reads) -> OutcomeSpecBody:
    """Return a coordinator run's outcome spec; a first draft that is being written is waited for, up to 3 seconds."""
    place = reading.access.run(reading.principal, run_id)
    reading.await_log()
    run = reading.services.runs.run(place.root)
    if run.outcome_spec is None or not place.is_coordinator:
        raise OutcomeSpecNotFound
    return _body(_with_draft(run, reading.services))


@post(
    "/api/runs/{run_id:str}/outcome-spec/confirm",
    status_code=200,
    sync_to_thread=True,
    responses=SPEC | refusals(403, 404, 409, 413, 422),
)
def confirm(run_id: FromPath[str], asking: Asks) -> Response[bytes]:
    """Confirm the draft; planning begins. It is confirmed once: whoever comes later is told so."""
    return _decide(asking, run_id, confirm_outcome)


@post(
    "/api/runs/{run_id:str}/outcome-spec/revise",
    status_code=200,
    sync_to_thread=True,
    responses=SPEC | refusals(403, 404, 409, 413, 422),
)
def revise(run_id: FromPath[str], data: JSONBody[RevisionRequest], asking: Asks) -> Response[bytes]:
    """Send the draft back to the writer, which drafts again with everything that was said so far."""
    return _decide(asking, run_id, lambda root, by, runs, told: revise_outcome(root, data.feedback, by, runs, told))


def _decide(asking: Asking, run_id: str, deciding: Deciding) -> Response[bytes]:
    """Carry a decision out, and return the spec as it stands then."""
    place = _coordinator(asking, run_id)
    runs = asking.services.runs

    def carry_out(command: Command) -> Sequence[Fact]:
        def told(_: CoordinatorRun, __: Sequence[Draft]) -> Any:
            # Words can be erased, so none are kept with the answer: it is filled in whenever it is given.
            return command.tell(200, {"runId": place.root})

        return deciding(place.root, command.by, runs, told)

    response = asking.once(carry_out)
    response.content = msgspec.json.encode(_body(runs.run(place.root)))
    return response


def _coordinator(asking: Asking, run_id: str) -> RunPlace:
    place = asking.access.run(asking.principal, run_id, change=True)
    if not place.is_coordinator:
        raise UseCoordinator(coordinator_run_id=place.root)
    return place


def _with_draft(run: CoordinatorRun, services: Services) -> CoordinatorRun:
    """Return the run as soon as it has a draft, or as it is when the time is over."""
    until = time.monotonic() + services.settings.draft_seconds
    while True:
        head = services.log.head()
        run = services.runs.run(run.run_id)
        left = until - time.monotonic()
        if run.outcome_spec is None or run.outcome_spec.draft is not None or run.ended or left <= 0:
            return run
        # A view that reaches what comes next says that there is something new to look at.
        services.views.wait(run_detail.VIEW.name, head + 1, left)


def _body(run: CoordinatorRun) -> OutcomeSpecBody:
    spec = run.outcome_spec
    if spec is None:
        raise OutcomeSpecNotFound
    body = OutcomeSpecBody(goal=run.goal.value, status=spec.status, confirmed_by=spec.confirmed_by or UNSET)
    if spec.draft is None:
        return body
    questions = spec.draft.clarifying_questions
    return msgspec.structs.replace(
        body,
        desired_outcome=spec.draft.desired_outcome.value,
        scope=spec.draft.scope.value,
        assumptions=spec.draft.assumptions.value,
        clarifying_questions=questions.value if questions is not None else UNSET,
    )
