"""A project's webhooks: who else is told what waits for somebody and what has ended, and how far each has been told."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias

import msgspec
from litestar import Response, delete, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from ...application.commands.add_webhook import NewWebhook, add_webhook
from ...application.notifying.cloud_event import SECRET_BYTES, SECRET_PREFIX, is_secret, make_secret
from ...application.notifying.receiver_address import MAX_URL_CHARACTERS, origin_of
from ...application.ports.notices import Receiver, SigningSecret
from ...application.writer.randomness import RANDOMNESS
from ...domain.event import Draft, Fact
from ...domain.projects import webhooks
from ...domain.projects.project import Project
from ...domain.projects.webhook_facts import DisabledReason, NoticeKind, Webhook
from ...domain.projects.webhooks import webhook_of
from ...domain.rejected import Invalid
from ..request.idempotency import Asking, Asks, Command
from ..request.problems import NO_CONTENT, refusals
from ..request.reading import Reads
from .project_changes import REFUSALS, changed, told

KINDS: tuple[NoticeKind, ...] = ("waiting.began", "waiting.ended", "run.ended")
#: So long a secret that was replaced still signs, too: its receiver takes over in its own time.
BOTH_SECONDS = 86_400.0
Moment: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class WebhookRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whom to tell. What is sent is a CloudEvent in JSON, signed as Standard Webhooks has it."""

    url: Annotated[str, Meta(min_length=1, max_length=MAX_URL_CHARACTERS, examples=["https://hooks.example.org/fleet"])]
    kinds: Annotated[
        tuple[NoticeKind, ...], Meta(min_length=1, max_length=len(KINDS), description="What it is told of: everything.")
    ] = KINDS
    secret: Annotated[
        Annotated[str, Meta(max_length=100)] | None,
        Meta(description="`whsec_` and the base64 of 24 to 64 bytes. Without one, one is made."),
    ] = None


class EnableRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """From where on the receiver is told again."""

    skip: Annotated[bool, Meta(description="Leave out what happened meanwhile.")] = False


class WebhookBody(msgspec.Struct, frozen=True, kw_only=True):
    """
    A webhook, and how it stands: `active`, `failing` while what is to be told does not get there and is tried again, or
    `disabled` until it is enabled again.
    """

    webhook_id: str
    project_id: str
    #: Scheme and host of its address. The rest of it is not shown.
    receiver: str | None
    kinds: tuple[NoticeKind, ...]
    state: Literal["active", "failing", "disabled"]
    created_at: Moment
    disabled_at: Moment | None
    #: The receiver answered 410, nothing got there for days, or somebody asked for it.
    disabled_reason: DisabledReason | None
    #: How often in a row the next notice did not get there, and when it is sent again.
    failures: int
    next_try_at: Moment | None
    #: What came of the last try: `delivered`, or in a word what went wrong, such as `status_503` or `unreachable`.
    last_outcome: str | None
    last_try_at: Moment | None


class WebhookSecretBody(WebhookBody, frozen=True, kw_only=True):
    """A webhook, with what its receiver checks signatures with. It is not shown again."""

    secret: str


class WebhookAddressInvalid(Invalid):
    """Nothing can be sent to this address."""

    code = "webhook_address_invalid"


class WebhookSecretInvalid(Invalid):
    """A secret is `whsec_` and the base64 of 24 to 64 bytes."""

    code = "webhook_secret_invalid"


@post(
    "/api/projects/{project_id:str}/webhooks",
    sync_to_thread=True,
    responses={201: ResponseSpec(WebhookSecretBody, description="The webhook", generate_examples=False)} | REFUSALS,
)
def create_webhook(project_id: FromPath[str], data: JSONBody[WebhookRequest], asking: Asks) -> Response[bytes]:
    """Tell a receiver, from now on, what begins and ceases to wait for somebody, and what runs end as."""
    asking.access.project(asking.principal, project_id, change=True, own=True)
    if why := asking.services.refuses_receiver(data.url):
        raise WebhookAddressInvalid(why)
    if data.secret is not None and not is_secret(data.secret):
        raise WebhookSecretInvalid
    wanted = NewWebhook(
        webhook_id=RANDOMNESS.new_id(),
        url=data.url,
        receiver=origin_of(data.url),
        secret=data.secret or make_secret(RANDOMNESS.take(SECRET_BYTES)),
        kinds=tuple(kind for kind in KINDS if kind in data.kinds),
    )

    def carry_out(command: Command) -> Sequence[Fact]:
        # Neither the address nor the secret is kept with the answer.
        answer = command.tell(201, {"webhook_id": wanted.webhook_id})
        services = asking.services
        return add_webhook(project_id, wanted, services.receivers, command.by, services.log, command.clock, answer)

    response = asking.once(carry_out, f"/api/projects/{project_id}/webhooks/{{webhook_id}}")
    return _with_secret(asking, project_id, msgspec.json.decode(response.content)["webhook_id"], response)


@get("/api/projects/{project_id:str}/webhooks", sync_to_thread=True, responses=refusals(403, 404))
def list_webhooks(project_id: FromPath[str], reading: Reads) -> list[WebhookBody]:
    """List the project's webhooks, the oldest first, and how each stands."""
    reading.await_log()
    project = reading.access.project(reading.principal, project_id)
    return [_body(webhook, reading.services.receivers.get(webhook.webhook_id)) for webhook in project.webhooks.values()]


@get("/api/projects/{project_id:str}/webhooks/{webhook_id:str}", sync_to_thread=True, responses=refusals(403, 404))
def show_webhook(project_id: FromPath[str], webhook_id: FromPath[str], reading: Reads) -> WebhookBody:
    """Show how a webhook stands."""
    reading.await_log()
    project = reading.access.project(reading.principal, project_id)
    return _body(webhook_of(project, webhook_id), reading.services.receivers.get(webhook_id))


@post(
    "/api/projects/{project_id:str}/webhooks/{webhook_id:str}/enable",
    status_code=200,
    sync_to_thread=True,
    responses={200: ResponseSpec(WebhookBody, description="The webhook", generate_examples=False)} | REFUSALS,
)
def enable_webhook(
    project_id: FromPath[str], webhook_id: FromPath[str], data: JSONBody[EnableRequest], asking: Asks
) -> Response[bytes]:
    """Tell the receiver again: everything from where it stopped, or only what happens from now on."""
    return _decided(
        asking, project_id, webhook_id, lambda project: webhooks.enable_webhook(project, webhook_id, skip=data.skip)
    )


@post(
    "/api/projects/{project_id:str}/webhooks/{webhook_id:str}/disable",
    status_code=200,
    sync_to_thread=True,
    responses={200: ResponseSpec(WebhookBody, description="The webhook", generate_examples=False)} | REFUSALS,
)
def disable_webhook(project_id: FromPath[str], webhook_id: FromPath[str], asking: Asks) -> Response[bytes]:
    """Send the receiver nothing until it is enabled again."""
    return _decided(
        asking, project_id, webhook_id, lambda project: webhooks.disable_webhook(project, webhook_id, "requested")
    )


@post(
    "/api/projects/{project_id:str}/webhooks/{webhook_id:str}/test",
    status_code=200,
    sync_to_thread=True,
    responses={200: ResponseSpec(WebhookBody, description="The webhook", generate_examples=False)} | REFUSALS,
)
def test_webhook(project_id: FromPath[str], webhook_id: FromPath[str], asking: Asks) -> Response[bytes]:
    """Send the receiver a test in its turn: `last_outcome` says what came of it."""
    return _decided(asking, project_id, webhook_id, lambda project: webhooks.send_test(project, webhook_id))


@post(
    "/api/projects/{project_id:str}/webhooks/{webhook_id:str}/secret",
    status_code=200,
    sync_to_thread=True,
    responses={200: ResponseSpec(WebhookSecretBody, description="The webhook", generate_examples=False)} | REFUSALS,
)
def replace_webhook_secret(project_id: FromPath[str], webhook_id: FromPath[str], asking: Asks) -> Response[bytes]:
    """Sign with a new secret from now on, and for a day with the one before as well."""
    receivers = asking.services.receivers
    fresh = SigningSecret(secret=make_secret(RANDOMNESS.take(SECRET_BYTES)))

    def decision(project: Project) -> Sequence[Draft]:
        drafts = webhooks.replace_webhook_secret(project, webhook_id)
        known, now = receivers.get(webhook_id), asking.services.clock.now().timestamp()
        if known is not None and known.secrets[0] != fresh:
            # Before the fact: if we crash here, the caller asks again, and nobody was told this one.
            receivers.replace_secrets(webhook_id, [fresh, _until(known.secrets[0], now + BOTH_SECONDS)])
        return drafts

    response = told(asking, project_id, decision, {"webhook_id": webhook_id}, own=True)
    return _with_secret(asking, project_id, webhook_id, response)


@delete(
    "/api/projects/{project_id:str}/webhooks/{webhook_id:str}",
    status_code=204,
    sync_to_thread=True,
    responses=NO_CONTENT | REFUSALS,
)
def remove_webhook(project_id: FromPath[str], webhook_id: FromPath[str], asking: Asks) -> Response[None]:
    """Tell the receiver no more, and forget its address and its secret."""
    response = changed(asking, project_id, lambda project: webhooks.remove_webhook(project, webhook_id), own=True)
    # If we crash here, whoever sends finds a receiver without a webhook, and forgets it.
    asking.services.receivers.remove(webhook_id)
    return response


def _decided(
    asking: Asking, project_id: str, webhook_id: str, decision: Callable[[Project], Sequence[Draft]]
) -> Response[bytes]:
    response = told(asking, project_id, decision, {"webhook_id": webhook_id}, own=True)
    project = asking.access.project(asking.principal, project_id)
    body = _body(webhook_of(project, webhook_id), asking.services.receivers.get(webhook_id))
    response.content = msgspec.json.encode(body)
    return response


def _with_secret(asking: Asking, project_id: str, webhook_id: str, response: Response[bytes]) -> Response[bytes]:
    project = asking.access.project(asking.principal, project_id)
    receiver = asking.services.receivers.get(webhook_id)
    body = _body(webhook_of(project, webhook_id), receiver)
    secret = receiver.secrets[0].secret if receiver else SECRET_PREFIX
    response.content = msgspec.json.encode(WebhookSecretBody(**msgspec.structs.asdict(body), secret=secret))
    return response


def _until(secret: SigningSecret, until: float) -> SigningSecret:
    return msgspec.structs.replace(secret, until=until)


def _body(webhook: Webhook, receiver: Receiver | None) -> WebhookBody:
    is_heeded = receiver is not None and receiver.enabled_position == webhook.enabled_position
    failures = receiver.failures if receiver is not None and is_heeded else 0
    return WebhookBody(
        webhook_id=webhook.webhook_id,
        project_id=webhook.project_id,
        receiver=webhook.receiver,
        kinds=webhook.kinds,
        state="disabled" if not webhook.enabled else "failing" if failures else "active",
        created_at=webhook.created_at,
        disabled_at=webhook.disabled_at,
        disabled_reason=webhook.disabled_reason,
        failures=failures,
        next_try_at=_moment(receiver.next_try) if receiver is not None and failures and webhook.enabled else None,
        last_outcome=receiver.last_outcome if receiver is not None else None,
        last_try_at=_moment(receiver.last_try) if receiver is not None else None,
    )


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
