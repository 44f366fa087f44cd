"""The rehearsal agent's sessions on disk: what was said, and exactly how far the turn has come."""

import json
import os
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: The file of a session that names the directory in which it works.
WORKS_IN = "works_in"


@dataclass
class TurnProgress:
    """
    How far a turn has come. It is on disk *before* a step touches a file, so that a crash loses and doubles nothing.

    `step` is the step to do next, `part` the part of it (an append's number). `size` is what the file of that part
    had before it was touched; what is beyond it belongs to the part and is cut off before the part is done again.
    """

    turn_id: str = ""
    prompt: str = ""
    steps: list[Any] = field(default_factory=list[Any])
    step: int = 0
    part: int = 0
    size: int | None = None

    @property
    def is_open(self) -> bool:
        return self.step < len(self.steps)


class StoredSession:
    """
    One session's directory: its progress, replaced atomically, its history, only ever appended to, and where it works.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.session_id = directory.name
        self.progress = TurnProgress()

    @classmethod
    def create(cls, home: Path, cwd: Path) -> "StoredSession":
        """Return a new session, which is on disk."""
        directory = home / f"rehearsal-{uuid.uuid4().hex}"
        directory.mkdir(parents=True)
        session = cls(directory)
        # First, so that whatever a crash leaves behind is found by the place that it belongs to.
        (directory / WORKS_IN).write_bytes(os.fsencode(cwd))
        session.save()
        sync_directory(home)
        return session

    @classmethod
    def load(cls, home: Path, session_id: str) -> "StoredSession | None":
        """Return a session as it was left, None if there is none."""
        if not is_id(session_id):
            return None
        directory = home / session_id
        try:
            stored = json.loads((directory / "progress.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        session = cls(directory)
        session.progress = TurnProgress(**stored)
        return session

    @staticmethod
    def those_in(home: Path, cwd: str | None) -> list[dict[str, str]]:
        """Return the sessions, or those that work in one directory, as the protocol shows them."""
        found: list[dict[str, str]] = []
        for place in sorted(home.glob(f"*/{WORKS_IN}")):
            # Another process may delete a session meanwhile.
            with suppress(FileNotFoundError):
                found.append({"sessionId": place.parent.name, "cwd": os.fsdecode(place.read_bytes())})
        return [session for session in found if cwd is None or session["cwd"] == cwd]

    def save(self) -> None:
        """On return the progress is durable."""
        new = self._directory / "progress.json.new"
        with new.open("w", encoding="utf-8") as file:
            json.dump(asdict(self.progress), file)
            file.flush()
            os.fsync(file.fileno())
        # If we die before this line the old progress stands, after it the new one: never half of one.
        os.replace(new, self._directory / "progress.json")
        sync_directory(self._directory)

    def add_history(self, speaker: str, text: str) -> None:
        """On return the words are durable."""
        line = json.dumps({"speaker": speaker, "text": text}).encode() + b"\n"
        with (self._directory / "history.jsonl").open("ab+") as file:
            cut_torn_line(file)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def history(self) -> list[tuple[str, str]]:
        """Return (speaker, text) in the order in which it was said; speaker is user or agent."""
        try:
            lines = (self._directory / "history.jsonl").read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        entries = [json.loads(line) for line in lines]
        return [(entry["speaker"], entry["text"]) for entry in entries]


def is_id(name: str) -> bool:
    """Return whether this may name a session; a path never does."""
    return name.replace("-", "").isalnum()


def cut_torn_line(file: Any) -> None:
    """Remove the beginning of a line that a crash left at the file's end."""
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)


def sync_directory(directory: Path) -> None:
    """On return the names in the directory are durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
