"""What entitles this process to drive a run: asked before whatever it does in the run's name."""

from typing import Protocol

from .log import Fence


class LeaseLost(Exception):
    """Another process may drive the run by now. What was being done is left as it stands; the other goes on from there."""


class Tenure(Protocol):
    """Which runs this process drives, and until when it may."""

    def holds(self, root: str) -> bool:
        """Whether this process drives the run now."""
        ...

    def fence(self, root: str) -> Fence | None:
        """Return what an append in the run's name must be let in under; None where there is no other process. Raises LeaseLost."""
        ...

    def check(self) -> None:
        """Return if this process may touch what it has in hand outside the log. Raises LeaseLost."""
        ...

    def offer(self, root: str) -> None:
        """Take note of a run with news that is not driven here: if nobody drives it, somebody has to."""
        ...

    def close(self, root: str) -> None:
        """Let go of a run in which nothing is left to do."""
        ...

    def decline(self, root: str) -> None:
        """Let go of a run that this release does not understand, for a newer one to take."""
        ...


class Alone:
    """The tenure of the only process that there is: it drives everything, for as long as it lives."""

    def holds(self, root: str) -> bool:
        """Whether this process drives the run: always."""
        return True

    def fence(self, root: str) -> Fence | None:
        """Return nothing: there is nobody to be kept out."""
        return None

    def check(self) -> None:
        """Return."""

    def offer(self, root: str) -> None:
        """Return: there is no run that is not driven here."""

    def close(self, root: str) -> None:
        """Return: nobody waits for it."""

    def decline(self, root: str) -> None:
        """Return: there is nobody else."""


class Absent(Alone):
    """The tenure of a process that drives nothing: it takes commands, and others carry them out."""

    def holds(self, root: str) -> bool:
        """Whether this process drives the run: never."""
        return False

    def fence(self, root: str) -> Fence | None:
        """Refuse. Raises LeaseLost."""
        raise LeaseLost("this process drives no runs")

    def check(self) -> None:
        """Refuse. Raises LeaseLost."""
        raise LeaseLost("this process drives no runs")
