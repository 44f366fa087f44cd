"""What sending notices needs from outside: where each receiver stands, and ways to reach it."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

#: The receiver that is a command of this installation's own, told of every project.
COMMAND_ID = "command"


class SigningSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that what is sent is signed with."""

    secret: str
    #: Until when, in seconds since 1970; None: until it is replaced.
    until: float | None = None


class Receiver(msgspec.Struct, frozen=True, kw_only=True):
    """How far somebody has been told. Times are seconds since 1970, by the clock of whoever wrote them."""

    id: str
    url: str
    secrets: tuple[SigningSecret, ...]
    created_at: float
    #: The number of the last notice that it has, or that was not for it.
    told: int = 0
    #: The position of the fact that enabled it, as far as that was heeded here.
    enabled_position: int = 0
    #: How often in a row a notice did not get there, and when it is tried again.
    failures: int = 0
    next_try: float = 0.0
    #: What came of the last try: `delivered`, or in a word what went wrong.
    last_outcome: str | None = None
    last_try: float | None = None


class Receivers(Protocol):
    """
    The receivers, in the store that all processes share. Each is held by one process at a time, so that one alone sends
    to it. Every method raises LogUnavailable when the store is away.
    """

    def add(self, receiver: Receiver) -> None:
        """Keep a receiver; one that is known stays as it is."""
        ...

    def get(self, receiver_id: str) -> Receiver | None:
        """Return a receiver as it stands now."""
        ...

    def every(self) -> Sequence[Receiver]:
        """Return all receivers."""
        ...

    def replace_secrets(self, receiver_id: str, secrets: Sequence[SigningSecret]) -> None:
        """Sign with these from now on."""
        ...

    def remove(self, receiver_id: str) -> None:
        """Forget a receiver, its address and its secrets."""
        ...

    def hold(self, receiver_id: str, holder: str, now: float, until: float) -> bool:
        """Return True if the holder has it until then, whoever had it before; False while another one has it."""
        ...

    def save(self, receiver: Receiver, holder: str) -> bool:
        """Keep how far it was told, but not its secrets; False if the holder has lost it meanwhile: nothing is kept."""
        ...

    def let_go(self, holder: str) -> None:
        """Let others hold what this one holds."""
        ...


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What came of sending one notice. `gone`: the receiver wants nothing more, ever."""

    state: Literal["delivered", "failed", "gone"]
    #: In a word: `delivered`, `status_503`, `unreachable`, `timed_out`, `refused_address`, `exit_1`, ...
    word: str
    #: How long the receiver asks to be left alone.
    retry_after_seconds: float | None = None


class Post(Protocol):
    """Sends to addresses that somebody else chose."""

    def send(self, url: str, headers: Mapping[str, str], body: bytes) -> Attempt:
        """Send once. On return the receiver has answered, or nothing more is sent; it takes a bounded time."""
        ...

    def close(self) -> None:
        """Break off what is being sent."""
        ...


class Tell(Protocol):
    """Tells a command of this installation's own."""

    def tell(self, body: bytes) -> Attempt:
        """Run it once with the body as its input. On return nothing that it started is alive; it takes a bounded time."""
        ...

    def close(self) -> None:
        """Break off what runs."""
        ...
