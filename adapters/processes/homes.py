"""The homes of agents: one for each run that an agent works for, kept as long as the run may go on."""

import io
import os
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from ...application.ports.agents import AgentFailed
from ..removal import remove_tree
from .box import Box, CommandTooLong, Inside, Mount, run

UNPACKER = Path(__file__).with_name("unpack_here.py")
#: Logins and settings; a copy of more is made before every start by mistake.
MOST_COPIED_BYTES = 64 * 1024 * 1024
COPY_SECONDS = 60.0


class Homes:
    """
    The homes below one directory. What is in one is its agent's: the service opens nothing there.

    No agent of a run is alive while its home is made, filled or removed.
    """

    def __init__(self, directory: Path, box: Box) -> None:
        self._directory = directory
        self._box = box

    def of(self, run_id: str) -> Path:
        """Return where the home of a run's agent is, or would be."""
        if not run_id or run_id.startswith(".") or "/" in run_id or "\0" in run_id:
            raise ValueError(f"{run_id!r} can name no home")
        return self._directory / run_id

    def make(self, run_id: str) -> Path:
        """On return the home is there, as it was left, and belongs to the user that agents run as."""
        home = self.of(run_id)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._box.give(home)
        return home

    def copy_into(self, run_id: str, copies: Sequence[tuple[Path, Path]]) -> None:
        """
        On return the home holds each source at its place, relative to the home, whatever stood there.

        They go in through a pipe and are written inside a box: a link that an agent left in its home leads nowhere
        else. Raises AgentFailed (agent_not_installed).
        """
        if not copies:
            return
        home = self.of(run_id)
        inside = Inside(cwd=home, env={"PATH": os.defpath}, mounts=(Mount(source=home, writable=True),), network="none")
        command = [sys.executable, "-I", "-S", str(UNPACKER), str(home)]
        try:
            ended = run(self._box, command, inside, given=_packed(copies), timeout_seconds=COPY_SECONDS)
        except (OSError, CommandTooLong, tarfile.TarError) as error:
            raise AgentFailed("agent_not_installed", f"`mounts` of agents.toml: {error}", retryable=False) from error
        if ended.code != 0:
            raise AgentFailed("agent_not_installed", f"`mounts` of agents.toml: {ended.words}", retryable=False)

    def forget(self, run_ids: Sequence[str]) -> None:
        """On return there is nothing left of these homes."""
        for run_id in run_ids:
            remove_tree(self.of(run_id))


def _packed(copies: Sequence[tuple[Path, Path]]) -> bytes:
    buffer = io.BytesIO()
    total = 0

    def taken(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal total
        total += entry.size
        if total > MOST_COPIED_BYTES:
            raise OSError(f"more than {MOST_COPIED_BYTES} bytes would be copied before every start")
        return entry if entry.isfile() or entry.isdir() or entry.issym() else None

    with tarfile.open(fileobj=buffer, mode="w", dereference=False) as archive:
        for source, place in copies:
            # What is named itself may be a link, as some keep all their settings elsewhere.
            archive.add(os.path.realpath(source, strict=True), str(place), filter=taken)
    return buffer.getvalue()
