"""Who asks for something, and how the asking is recognised when it comes again."""

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from ...domain.event import Draft
from ..ports.log import Append, Fence, Idempotency

#: The name under which the service itself decides.
SERVICE = "coordinator"
#: The name under which what agents say and do is recorded.
AGENT = "agent"
#: Names in the log that are nobody's: no person may have one of them, however it is written.
RESERVED = frozenset({SERVICE, AGENT, "autopilot", "log", "steersman"})
#: Automated gates decide under a name of this kind.
RESERVED_PREFIX = "gate:"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a client is told; stored with the facts when the client gave an idempotency key."""

    status: int
    body: bytes


class IdempotencyKey(msgspec.Struct, frozen=True, kw_only=True):
    """The request that a client means to be carried out once."""

    method: str
    path: str
    key: str
    #: SHA-256 of the request's body, in hex.
    body_digest: str


def is_reserved(user: str) -> bool:
    """Return whether a name could be taken for the service's own in the log."""
    plain = unicodedata.normalize("NFKC", user).strip().casefold()
    return plain in RESERVED or plain.startswith(RESERVED_PREFIX)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The authenticated principal of one command."""

    principal: str
    #: Whether it is the service itself. Its name alone proves nothing.
    is_service: bool = False
    command_id: str
    traceparent: str | None = None
    key: IdempotencyKey | None = None
    #: Of the service itself, when it drives a run that others could drive as well.
    fence: Fence | None = None

    def append(
        self, drafts: Sequence[Draft], expected: Mapping[str, int], at: datetime, answer: Answer | None = None
    ) -> Append:
        """Return the append that stores these drafts, and the answer that the caller gets, together."""
        return Append(
            drafts=tuple(drafts),
            expected=expected,
            at=at,
            principal=self.principal,
            command_id=self.command_id,
            traceparent=self.traceparent,
            idempotency=self._remembering(answer),
            fence=self.fence,
        )

    def _remembering(self, answer: Answer | None) -> Idempotency | None:
        if self.key is None or answer is None:
            return None
        return Idempotency(
            principal=self.principal,
            method=self.key.method,
            path=self.key.path,
            key=self.key.key,
            body_digest=self.key.body_digest,
            status=answer.status,
            answer=answer.body,
        )


def service(command_id: str, fence: Fence | None = None) -> Caller:
    """Return the service itself as a caller."""
    return Caller(principal=SERVICE, is_service=True, command_id=command_id, fence=fence)
