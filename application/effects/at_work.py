"""The places of a process, as its agents' work sees them: let go of while a person is waited for, and taken again."""

from collections.abc import Callable
from typing import Protocol


class AtWork(Protocol):
    """Who may be at work in this process at once. Effects are named by their ids."""

    def rest(self, effect_id: str) -> None:
        """On return the effect holds no place: others work meanwhile. Its agent may stay where it is."""
        ...

    def go_on(self, effect_id: str, still_wanted: Callable[[], None]) -> None:
        """
        Return when the effect has a place, at once if it has one: whoever rested goes before what is new.

        *still_wanted* is asked from time to time, and raises to leave the line.
        """
        ...


class NoBounds:
    """Places without end, where nobody counts them."""

    def rest(self, effect_id: str) -> None:
        """Return."""

    def go_on(self, effect_id: str, still_wanted: Callable[[], None]) -> None:
        """Return: there is a place."""
