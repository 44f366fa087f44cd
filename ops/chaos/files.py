"""The faults that hurt files: what git itself does to a project's repository, and what becomes of workplaces."""

import random
import shutil
import stat
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from .disks import Disk

GIT_SECONDS = 60.0
LONGEST_AWAY_SECONDS = 3.0


class Files:
    """Hurts repositories and workplaces. A repository is whole again afterwards; a workplace need not be."""

    def __init__(self, repositories: Sequence[Path], workplaces: Path, disks: Sequence[Disk]) -> None:
        self._repositories = repositories
        self._workplaces = workplaces
        #: One fault at a time on repositories: two that move the same one away would lose it.
        self._lock = threading.Lock()
        self.choices: Sequence[tuple[str, float, Callable[[random.Random], None]]] = (
            ("git gc --prune=now of a repository", 4, self._collect),
            ("git repack -ad of a repository", 3, self._repack),
            ("a repository moved away, and back", 2, self._move_away),
            ("a repository that cannot be written for a while", 2, self._close_repository),
            ("an object that is gone for a while", 2, self._take_object),
            ("rm -rf of a workplace", 3, self._delete),
            ("a workplace replaced by something else", 2, self._replace),
            ("a workplace that cannot be written for a while", 2, self._close),
            *((f"a full disk under the {disk.path.name}", 2, disk.fill_for_a_while) for disk in disks),
            # What is only the files' mode does not stop a service that is root.
            *((f"a read-only disk under the {disk.path.name}", 2, disk.close_for_a_while) for disk in disks),
        )

    def _collect(self, chance: random.Random) -> None:
        self._git(chance, "gc", "--quiet", "--prune=now")

    def _repack(self, chance: random.Random) -> None:
        self._git(chance, "repack", "-a", "-d", "--quiet")

    def _git(self, chance: random.Random, *words: str) -> None:
        repository = chance.choice(self._repositories)
        with self._lock:
            # It may well fail, where a lock of ours is in its way: then nothing is hurt.
            subprocess.run(
                ["git", "-C", str(repository), *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=GIT_SECONDS,
                check=False,
            )

    def _move_away(self, chance: random.Random) -> None:
        repository = chance.choice(self._repositories)
        away = repository.with_name(f"{repository.name}-away")
        with self._lock:
            repository.rename(away)
            try:
                time.sleep(chance.uniform(0.1, LONGEST_AWAY_SECONDS))
            finally:
                # Nobody may have made anything in its place.
                away.rename(repository)

    def _close_repository(self, chance: random.Random) -> None:
        repository = chance.choice(self._repositories)
        with self._lock:
            self._closed_for_a_while(repository / ".git" / "objects", chance)

    def _take_object(self, chance: random.Random) -> None:
        repository = chance.choice(self._repositories)
        with self._lock:
            loose = sorted((repository / ".git" / "objects").glob("[0-9a-f][0-9a-f]/*"))
            if not loose:
                return
            taken = chance.choice(loose)
            aside = repository.with_name(f"{repository.name}-{taken.name}")
            taken.rename(aside)
            try:
                time.sleep(chance.uniform(0.1, LONGEST_AWAY_SECONDS))
            finally:
                taken.parent.mkdir(exist_ok=True)
                aside.rename(taken)

    def _delete(self, chance: random.Random) -> None:
        if (workplace := self._one(chance)) is not None:
            shutil.rmtree(workplace, ignore_errors=True)

    def _replace(self, chance: random.Random) -> None:
        if (workplace := self._one(chance)) is not None:
            shutil.rmtree(workplace, ignore_errors=True)
            workplace.mkdir()
            (workplace / "stranger.txt").write_text(f"{uuid.UUID(int=chance.getrandbits(128))}\n", encoding="utf-8")

    def _close(self, chance: random.Random) -> None:
        if (workplace := self._one(chance)) is not None:
            self._closed_for_a_while(workplace, chance)

    def _one(self, chance: random.Random) -> Path | None:
        """Return a workplace, None if there is none now."""
        found = sorted(path for path in self._workplaces.glob("[0-9a-f]*") if path.is_dir())
        return chance.choice(found) if found else None

    @staticmethod
    def _closed_for_a_while(directory: Path, chance: random.Random) -> None:
        """Let nobody but root write in a directory for a while. It may be gone afterwards."""
        before = stat.S_IMODE(directory.stat().st_mode)
        directory.chmod(before & ~0o222)
        try:
            time.sleep(chance.uniform(0.1, LONGEST_AWAY_SECONDS))
        finally:
            if directory.exists():
                directory.chmod(before)
