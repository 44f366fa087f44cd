"""What a handler may ask for; app.py provides it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Literal, Protocol, TypeAlias

import msgspec
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from ...application.driving.rounds import Round
from ...application.ports.agents import Agents
from ...application.ports.git import Repositories
from ...application.ports.leases import Holder
from ...application.ports.log import EventLog
from ...application.ports.outside import Clock, Views
from ...application.ports.proofs import Receipt
from ...application.ports.tenure import Alone, Tenure
from ...application.writer.run_log import RunLog
from ...domain.event import Fact
from .findings import Findings

Scope = Literal["viewer", "operator"]


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who sent a request, and what their token lets them do at most."""

    user: str
    scope: Scope


class Tokens(Protocol):
    """The bearer tokens of this installation. Only digests are kept."""

    def authenticate(self, raw: str) -> tuple[str, Scope] | None:
        """Return the user and scope of a token that is issued and not revoked, else None."""
        ...


class FeedFrame(Protocol):
    """One fact as it is sent on a feed, encoded at most once however many clients get it."""

    @property
    def fact(self) -> Fact:
        """The fact that the frame shows."""
        ...

    @property
    def of_run(self) -> bytes:
        """The frame on the feed of its run: its id is the run_sequence."""
        ...

    @property
    def of_log(self) -> bytes:
        """The frame on the feed of the whole log: its id is the position."""
        ...


class Subscription(Protocol):
    """One client's live frames, in order and without a gap from the moment of subscribing until it is cut."""

    @property
    def is_cut(self) -> bool:
        """Whether the client read too slowly: nothing more arrives, and what it did not take is dropped."""
        ...

    def take(self) -> Sequence[FeedFrame]:
        """Return, and forget, what has arrived. Never blocks."""
        ...

    def close(self) -> None:
        """Take no more frames. Closing twice is no fault."""
        ...


class CommandTimer(Protocol):
    """What measures commands."""

    def command(self) -> AbstractContextManager[None]:
        """Measure what is done in the block, unless an error ends it."""
        ...


class SkippedFact(Protocol):
    """A fact that cannot be decoded; the feed goes on behind it."""

    @property
    def position(self) -> int:
        """Where the fact stands in the log."""
        ...

    @property
    def run(self) -> str | None:
        """The run that is to be let go of."""
        ...

    @property
    def reason(self) -> str:
        """Why it cannot be decoded."""
        ...


class Feed(Protocol):
    """The log as it grows, read once for all clients of this process."""

    @property
    def position(self) -> int:
        """The position up to which the log has been handed to subscribers."""
        ...

    @property
    def quarantined(self) -> Sequence[SkippedFact]:
        """The facts that could not be decoded."""
        ...

    @property
    def subscribers(self) -> int:
        """How many clients of this process listen."""
        ...

    def admit(self, client: object) -> bool:
        """
        Count a client among those that this process serves; False if there is no room for it.

        It counts until it is dismissed, or nobody refers to it any more.
        """
        ...

    def dismiss(self, client: object) -> None:
        """Count a client no more. Twice is no fault."""
        ...

    def subscribe(self, run: str | None, wake: Callable[[], None]) -> Subscription:
        """
        Return a subscription to a run's facts, or to all.

        Every fact above `position` is delivered. *wake* is called from another thread whenever there is
        something to take, or the subscription is cut; it must neither block nor raise.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ApiSettings:
    """The knobs of the API; tests turn some of them."""

    #: A comment line is sent on a silent feed this often.
    keepalive_seconds: float = 15.0
    #: How long a read waits for its view to reach `Steersman-Min-Position`.
    min_position_seconds: float = 2.0
    #: How long an answer waits for what was decided to be done, so that it can tell of it.
    effect_seconds: float = 5.0
    #: How long a read waits for the first draft of an outcome spec.
    draft_seconds: float = 3.0
    max_body_bytes: int = 1024 * 1024
    version: str = "0.1.0"


LeaseState = Literal["held", "stale"]
#: A lease is held by this process, or its owner, whichever that was, gave no sign of life for too long.
NO_LEASES: Mapping[LeaseState, int] = {"held": 0, "stale": 0}


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What only whoever wires the process can count; asked whenever somebody reads the metrics, so each is cheap."""

    #: How many agents this process has running.
    agents: Callable[[], int] = lambda: 0
    #: How many leases there are in each state. May raise LogUnavailable.
    leases: Callable[[], Mapping[LeaseState, int]] = lambda: NO_LEASES


RedisState = Literal["ok", "unavailable"]


@dataclass(frozen=True, kw_only=True)
class Services:
    """Everything that the API stands on; `ops` wires it, tests put twins in."""

    log: EventLog
    runs: RunLog
    clock: Clock
    views: Views
    repositories: Repositories
    agents: Agents
    tokens: Tokens
    feed: Feed
    data_dir: Path
    settings: ApiSettings = field(default_factory=ApiSettings)
    counts: Counts = field(default_factory=Counts)
    #: Whether wake-ups go between processes now; None where there is one process, or the others find out by polling.
    redis: Callable[[], RedisState | None] = lambda: None
    #: Which runs this process drives.
    tenure: Tenure = field(default_factory=Alone)
    #: Who drives a run; None: nobody does now. May raise LogUnavailable.
    holder: Callable[[str], Holder | None] = lambda _: None
    #: What this process came to when it last looked at every open run, the newest first.
    rounds: Callable[[], Sequence[Round]] = lambda: ()
    #: What requests found wrong with the log.
    findings: Findings = field(default_factory=Findings)
    #: Set when the process is about to end: it takes no new work.
    draining: Event = field(default_factory=Event)

    def receipts(self, positions: Iterable[int]) -> Mapping[int, Receipt]:
        """Return the receipt of each of these facts, of which somebody knows that they are there. Raises LogDamaged."""
        asked = list(positions)
        found = self.log.receipts(asked)
        for position in asked:
            with self.findings.watching(position):
                if position not in found:
                    raise LookupError(f"the fact at position {position} is gone")
        return found


Given: TypeAlias = NamedDependency[SkipValidation[Services]]
