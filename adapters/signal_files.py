"""Signals as files in the data directory, for agents and tools that look for them; the log is what decides."""

import hashlib
import os
import re
from pathlib import Path

_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


class SignalDirectory:
    """The port SignalFiles over a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, session_id: str, name: str, text: str) -> None:
        """Write `<session>/<name>`; a reader sees the whole text or none of it."""
        directory = self._of(session_id)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = directory / f".{name}.{os.getpid()}"
        draft.write_text(text, encoding="utf-8")
        draft.replace(directory / name)

    def clear(self, session_id: str, name: str) -> None:
        """Remove `<session>/<name>`, and the directory with the last of them."""
        directory = self._of(session_id)
        (directory / name).unlink(missing_ok=True)
        try:
            directory.rmdir()
        except OSError:
            # Another signal stands there, or nothing ever did.
            return

    def _of(self, session_id: str) -> Path:
        # The id comes from an agent; one that is a path must not lead out of the directory.
        plain = _PLAIN.fullmatch(session_id) is not None
        return self._directory / (session_id if plain else hashlib.sha256(session_id.encode()).hexdigest())
