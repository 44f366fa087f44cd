"""The coordinator's door to steering: POST /api/runs/{id}/steer, and what became of every directive."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from litestar import Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import UNSET, Meta, UnsetType

from ...application.commands.steer import resolve_directive, steer_run
from ...application.ports.log import EventLog
from ...application.ports.proofs import Receipt
from ...domain.event import Draft, Fact
from ...domain.facts.child_run import run_stream
from ...domain.facts.directive import DirectiveMoved, SteeringDirective, TargetScope, directive_stream
from ...domain.facts.run import CoordinatorRun
from ...domain.rejected import Forbidden, Invalid
from ...domain.steering.steering import DirectiveNotFound, SteeringInvalid, SteerRun
from ...projections.feeds.timeline import frame
from ..request.access import RunPlace
from ..request.decided import telling_the_winner
from ..request.etags import IfMatch, check
from ..request.given import Services
from ..request.idempotency import Asking, Asks, Command, directive_id
from ..request.one_run import UseCoordinator
from ..request.problems import refusals
from ..request.reading import Reads

KINDS = ("stop", "send", "redirect", "amend")
MAX_CHARACTERS = 65_536
#: What is stored here is decided about elsewhere.
DEFERRED = 202
PAGE = 500

Words: TypeAlias = Annotated[str, Meta(max_length=MAX_CHARACTERS)]


class SteerRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A correction of a run."""

    kind: Annotated[str, Meta(max_length=64, description="stop, send, redirect or amend.", examples=["send"])] = ""
    instruction: Annotated[Words, Meta(description="At most 16384 bytes. May be left out for stop and send.")] = ""
    target_child_run_id: Annotated[str, Meta(max_length=64)] | UnsetType | None = UNSET
    targetChildRunId: Annotated[str, Meta(max_length=64)] | UnsetType | None = UNSET


class ResolveRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What becomes of a directive that needs attention."""

    action: Literal["retry", "abandon"]


class KindRequired(Invalid):
    """`kind` must be one of stop, send, redirect and amend."""

    code = "kind_required"


class ReceiptBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a correction stands on the log, and what proves it: GET /api/receipts/{directiveId}."""

    position: int
    leaf_index: int
    payload_hash: str
    #: The MAC of its entry in the log's chain.
    receipt_hash: str


class DirectiveBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A directive, as it stands."""

    directive_id: str
    #: The same as directiveId.
    id: str
    coordinator_run_id: str
    kind: str
    target_child_run_id: str | None
    status: str
    instruction: str | None
    created_by: str
    created_at: str
    #: When it was handed to the first agent that goes on with it, or, where none does, decided. Null: not yet.
    relayed_at: str | None
    source: str
    severity: str
    target_scope: TargetScope
    decision: str | None
    rationale: str | None
    attempt: int
    subtask_ids: Sequence[int]
    targets: Mapping[str, str]
    batch_id: str | None
    receipt: ReceiptBody


class DirectiveStep(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about a directive."""

    position: int
    sequence: int | None
    type: str
    at: str
    principal: str
    payload: Mapping[str, Any]


class DirectiveDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A directive, and every fact about it in order."""

    directive: DirectiveBody
    #: Its receipt, decisions and markers, and the steps of its status.
    history: Sequence[DirectiveStep]


def directive_body(run: CoordinatorRun, directive: SteeringDirective, receipts: Mapping[int, Receipt]) -> DirectiveBody:
    """Return a directive as a client sees it."""
    return DirectiveBody(
        directive_id=directive.directive_id,
        id=directive.directive_id,
        coordinator_run_id=run.run_id,
        kind=directive.verb,
        target_child_run_id=directive.scope.child_run_id,
        status=directive.status,
        instruction=directive.feedback.value,
        created_by=directive.created_by,
        created_at=directive.received_at,
        relayed_at=directive.relayed_at,
        source=directive.source,
        severity=directive.severity,
        target_scope=directive.scope,
        decision=directive.action,
        rationale=directive.rationale or None,
        attempt=directive.attempt,
        subtask_ids=directive.subtask_ids,
        targets=dict(directive.targets),
        batch_id=directive.batch_id,
        receipt=ReceiptBody(
            position=directive.position,
            leaf_index=directive.position - 1,
            payload_hash=directive.payload_hash,
            receipt_hash=receipts[directive.position].receipt_hash,
        ),
    )


@post(
    "/api/runs/{run_id:str}/steer",
    sync_to_thread=True,
    responses={
        201: ResponseSpec(DirectiveBody, description="The directive", generate_examples=False),
        202: ResponseSpec(DirectiveBody, description="The directive; another process decides", generate_examples=False),
    }
    | refusals(403, 404, 409, 412, 413, 422, 429),
)
def steer(
    run_id: FromPath[str], data: JSONBody[SteerRequest], asking: Asks, if_match: IfMatch = None
) -> Response[bytes]:
    """
    Put a correction of a run on its log; 201 with the receipt, before anything is done about it. 202 says the same where
    another process drives the run.
    """
    kind = data.kind.strip().lower()
    place = _coordinator(asking, run_id)
    if kind not in KINDS:
        raise KindRequired
    wanted = SteerRun(
        directive_id=directive_id(),
        kind=kind,
        instruction=data.instruction,
        principal=asking.principal.user,
        target_child_run_id=_target(data),
    )
    services = asking.services

    def carry_out(command: Command) -> Sequence[Fact]:
        def told(run: CoordinatorRun, drafts: Sequence[Draft]) -> Any:
            check(if_match, run)
            return command.tell(_status_here(services, place.root), {"directiveId": wanted.directive_id})

        check(if_match, services.runs.run(place.root))
        return steer_run(place.root, wanted, command.by, services.runs, services.repositories, told)

    with telling_the_winner(asking.services, place.root):
        return with_directive(asking, place.root, asking.once(carry_out))


@get("/api/runs/{run_id:str}/steering", sync_to_thread=True, responses=refusals(403, 404))
def list_directives(run_id: FromPath[str], reading: Reads) -> Sequence[DirectiveBody]:
    """List every directive of a coordinator run, oldest first."""
    run = reading.services.runs.run(reading.access.run(reading.principal, run_id).root)
    receipts = reading.services.receipts(directive.position for directive in run.received())
    return [directive_body(run, directive, receipts) for directive in run.received()]


@get("/api/runs/{run_id:str}/steering/{directive:str}", sync_to_thread=True, responses=refusals(403, 404))
def show_directive(run_id: FromPath[str], directive: FromPath[str], reading: Reads) -> DirectiveDetail:
    """Return one directive: what was asked, what was decided and why, and how far it is for each target."""
    run = reading.services.runs.run(reading.access.run(reading.principal, run_id).root)
    found = run.directives.get(directive)
    if found is None:
        raise DirectiveNotFound
    facts = _history(reading.services.log, run, directive)
    receipts = reading.services.receipts([found.position])
    return DirectiveDetail(directive=directive_body(run, found, receipts), history=[_shown(fact) for fact in facts])


@post(
    "/api/runs/{run_id:str}/steering/{directive:str}/resolve",
    status_code=200,
    sync_to_thread=True,
    responses={200: ResponseSpec(DirectiveBody, description="The directive", generate_examples=False)}
    | refusals(403, 404, 409, 413, 422),
)
def resolve(
    run_id: FromPath[str], directive: FromPath[str], data: JSONBody[ResolveRequest], asking: Asks
) -> Response[bytes]:
    """Try a directive that needs attention again, or give it up."""
    place = _coordinator(asking, run_id)
    runs = asking.services.runs

    def carry_out(command: Command) -> Sequence[Fact]:
        def told(_: CoordinatorRun, __: Sequence[Draft]) -> Any:
            return command.tell(200, {"directiveId": directive})

        return resolve_directive(place.root, directive, data.action, command.by, runs, told)

    return with_directive(asking, place.root, asking.once(carry_out))


def with_directive(asking: Asking, root: str, response: Response[bytes]) -> Response[bytes]:
    """Put the directive, as it stands now, in place of the id that was stored as the answer."""
    run = asking.services.runs.run(root)
    directive = run.directives[msgspec.json.decode(response.content)["directiveId"]]
    receipts = asking.services.receipts([directive.position])
    body = directive_body(run, directive, receipts)
    if response.status_code == DEFERRED and directive.open and directive.action is None:
        body = msgspec.structs.replace(body, status="deferred")
    response.content = msgspec.json.encode(body)
    return response


def _status_here(services: Services, root: str) -> int:
    """Return 201 if this process drives the run, 202 if another one will decide about what is stored here."""
    return 201 if services.tenure.holds(root) else DEFERRED


def _coordinator(asking: Asking, run_id: str) -> RunPlace:
    """Return the coordinator run that may be steered by whoever asks; a refusal for want of rights is a fact."""
    try:
        place = asking.access.run(asking.principal, run_id, change=True)
    except Forbidden as forbidden:
        asking.deny(run_id, kind="steer", reason=str(forbidden))
        raise
    if not place.is_coordinator:
        raise UseCoordinator(coordinator_run_id=place.root)
    return place


def _target(data: SteerRequest) -> str | None:
    given = [found for found in (data.target_child_run_id, data.targetChildRunId) if found is not UNSET]
    if len(given) == 2:
        raise SteeringInvalid("`target_child_run_id` and `targetChildRunId` are the same member. Send one of them.")
    return given[0].lower() if given and given[0] else None


def _history(log: EventLog, run: CoordinatorRun, wanted: str) -> Sequence[Fact]:
    facts = [*_stream(log, directive_stream(wanted))]
    for fact in _stream(log, run_stream(run.run_id)):
        if isinstance(fact.event, DirectiveMoved) and fact.event.directive_id == wanted:
            facts.append(fact)
    return sorted(facts, key=lambda fact: fact.position)


def _stream(log: EventLog, stream: str) -> Sequence[Fact]:
    facts: list[Fact] = []
    while page := log.read_stream(stream, len(facts), PAGE):
        facts.extend(page)
        if len(page) < PAGE:
            break
    return facts


def _shown(fact: Fact) -> DirectiveStep:
    return DirectiveStep(
        position=fact.position,
        sequence=fact.run_sequence,
        type=fact.topic,
        at=fact.at.isoformat(),
        principal=fact.principal,
        payload=msgspec.json.decode(frame(fact).data),
    )
