"""What the demo shows while agents work: a table that moves on a terminal, plain lines anywhere else."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..commands.event_words import in_words
from ..output import plain

SHOWN_EVENTS = 8
COLOURS = {"running": "yellow", "assemble_ready": "green", "completed": "green", "failed": "red", "blocked": "red"}


class Screen(Protocol):
    """Where the demo is shown."""

    def show(self, who: str, topic: str, payload: Mapping[str, Any]) -> None:
        """Show one event of the run or of one of its children."""
        ...

    def say(self, words: str) -> None:
        """Show words of our own."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def screen() -> Screen:
    """Return the screen that fits standard output."""
    console = Console()
    return LiveTable(console) if console.is_terminal else PlainLines(console)


class PlainLines:
    """One line an event."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, who: str, topic: str, payload: Mapping[str, Any]) -> None:
        """Print the event."""
        self.say(_line(who, topic, payload))

    def say(self, words: str) -> None:
        """Print the words."""
        self._console.print(Text(words), soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left open."""


class LiveTable:
    """The plan as a table that follows its subtasks, and the newest events below it."""

    def __init__(self, console: Console) -> None:
        self._subtasks: dict[int, dict[str, Any]] = {}
        self._events: deque[str] = deque(maxlen=SHOWN_EVENTS)
        self._live = Live(console=console, get_renderable=self._picture, refresh_per_second=8)

    def show(self, who: str, topic: str, payload: Mapping[str, Any]) -> None:
        """Take the event into the picture."""
        if topic == "coordinator.work_plan":
            self._subtasks = {part["subtaskId"]: dict(part) for part in payload["subtasks"]}
            for part in self._subtasks.values():
                part["status"] = "pending"
        elif topic.startswith("subtask."):
            self._subtasks[payload["subtaskId"]] |= {"status": payload["status"]}
        self._events.append(_line(who, topic, payload))

    def say(self, words: str) -> None:
        """Print the words above the picture."""
        self._live.console.print(Text(words), soft_wrap=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last picture standing."""
        self._live.stop()

    def _picture(self) -> Group:
        table = Table("#", "subtask", "agent", "status", expand=True)
        for number, part in self._subtasks.items():
            status = part["status"]
            row = (str(number), Text(str(part["title"])), Text(part["assignedAgent"]))
            table.add_row(*row, Text(status, style=COLOURS.get(status, "dim")))
        return Group(table, *(Text(event, style="dim", overflow="ellipsis", no_wrap=True) for event in self._events))


def _line(who: str, topic: str, payload: Mapping[str, Any]) -> str:
    return plain(f"  {who:<20} {in_words(topic, payload)}")
