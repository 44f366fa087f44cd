"""What every agent was told, in its own words: its sessions are gone with its home, so they are read while they are there."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

#: Between two looks. A session lives for longer than this; one that did not was asked nothing.
LOOK_SECONDS = 0.2
SESSIONS = "*/.steersman/rehearsal/*/history.jsonl"


class Histories:
    """Holds every session's history open from when it is first seen: what is removed later can still be read."""

    def __init__(self, homes: Path) -> None:
        self._homes = homes
        self._files: dict[str, BinaryIO] = {}
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look_again, name="histories", daemon=True)

    def start(self) -> None:
        """From now on what is written is seen."""
        self._watch.start()

    def prompts(self) -> Mapping[str, list[str]]:
        """Stop looking; return, by session, what its agent was told, in order."""
        self._over.set()
        self._watch.join()
        self._look()
        found: dict[str, list[str]] = {}
        for session, file in self._files.items():
            with file:
                lines = [json.loads(line) for line in file.read().splitlines()]
            found[session] = [line["text"] for line in lines if line["speaker"] == "user"]
        return found

    def _look_again(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        for path in self._homes.glob(SESSIONS):
            if path.parent.name not in self._files:
                try:
                    self._files[path.parent.name] = path.open("rb")
                except FileNotFoundError:
                    continue  # cleared away between the two looks, with its run
