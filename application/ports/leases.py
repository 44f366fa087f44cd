"""Who drives which run, where several processes share one log."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from .effect_state import EffectState


class LeaseStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica learns when it says that it is alive."""

    #: The runs that are leased to it, and under which epoch.
    held: Mapping[str, int]
    #: How many runs each live replica that drives holds, itself included unless it is draining.
    loads: Mapping[str, int]
    #: The runs that are leased to other live replicas.
    elsewhere: frozenset[str]
    #: How many runs nobody alive holds.
    free: int


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who drives a run."""

    replica: str
    epoch: int
    #: Whether it has shown a sign of life in time.
    alive: bool
    #: How the run's effects stand there, as the holder last said it.
    effects: tuple[EffectState, ...]


class Leases(Protocol):
    """
    A run is leased to one replica at a time. The store's clock decides who is alive, and no other.

    A lease ends with its holder: it may be claimed by another as soon as its holder has not renewed for
    `stale_seconds`. Each claim raises the run's epoch, and the log refuses facts under an older one, so a holder that
    does not know yet that it lost the run can store nothing. Every method raises LogUnavailable when the store is away.
    """

    @property
    def stale_seconds(self) -> float:
        """How long a replica may be silent before others take its runs."""
        ...

    def enter(self, replica: str) -> None:
        """Take up an id that was never used before; the replica is alive from now on."""
        ...

    def renew(self, replica: str, *, draining: bool) -> LeaseStanding | None:
        """Show that the replica is alive. None: it was silent for too long, its runs are anybody's, its id is used up."""
        ...

    def claim(self, replica: str, roots: Sequence[str]) -> Mapping[str, int]:
        """Lease those of the runs that nobody alive holds; return them with their new epochs."""
        ...

    def claim_free(self, replica: str, limit: int, declined: Sequence[str]) -> Mapping[str, int]:
        """Lease runs whose holders are gone, at most *limit* and none of *declined*; return them with their new epochs."""
        ...

    def release(self, replica: str, roots: Sequence[str], *, closed: bool = False) -> None:
        """Let go of runs, for others to claim; closed ones are claimed by name only."""
        ...

    def leave(self, replica: str) -> None:
        """Let go of every run and of the id."""
        ...

    def report(self, replica: str, effects: Mapping[str, bytes]) -> None:
        """Keep, for whoever asks, how the effects stand (JSON) in each of these runs that the replica holds."""
        ...

    def holder(self, root: str) -> Holder | None:
        """Return who drives a run, None if nobody does."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return how many runs there are: `held` by live replicas, and `free`."""
        ...


class Driven(Protocol):
    """Who drives what is leased."""

    def wake(self, root: str) -> None:
        """Look at a run again: it is this process's now."""
        ...

    def busy(self) -> frozenset[str]:
        """Return the runs in which something is under way here."""
        ...

    def leave_all(self) -> None:
        """Cut short whatever is under way. On return nothing is."""
        ...

    def forget(self, roots: Iterable[str]) -> None:
        """Let nothing of these runs wait here any more: others drive them."""
        ...

    def states(self) -> Mapping[str, Sequence[EffectState]]:
        """Return, by run, how its effects stand."""
        ...
