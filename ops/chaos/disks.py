"""Small disks of a campaign's own, under its repositories and its workplaces, that can be full, or read-only, for a while."""

import contextlib
import os
import random
import subprocess
import time
from pathlib import Path

SIZE_MIB = 96
#: Written at once; what is left then is filled byte by byte.
CHUNKS = (1 << 20, 4096, 1)
LONGEST_SECONDS = 3.0
#: How often it is tried to make a disk read-only: who writes at that moment keeps it from being.
TRIES = 20
SECONDS_BETWEEN_TRIES = 0.05


class Disk:
    """A small file system in memory, which only root can mount."""

    def __init__(self, path: Path) -> None:
        """Mount it. Raises CalledProcessError where that is not allowed."""
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        _mount("-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=0755", "none", path)

    def fill_for_a_while(self, chance: random.Random) -> None:
        """Let there be no room for another byte for a while."""
        filler = self.path / ".filler"
        try:
            with filler.open("ab", buffering=0) as file:
                for size in CHUNKS:
                    with contextlib.suppress(OSError):
                        while file.write(b"\0" * size):
                            pass
            time.sleep(chance.uniform(0.1, LONGEST_SECONDS))
        finally:
            filler.unlink(missing_ok=True)

    def close_for_a_while(self, chance: random.Random) -> None:
        """Let nobody, root neither, write here for a while. Raises CalledProcessError where somebody always writes."""
        for number in range(TRIES):
            try:
                _mount("-o", "remount,ro", self.path)
                break
            except subprocess.CalledProcessError:
                if number == TRIES - 1:
                    raise
                time.sleep(SECONDS_BETWEEN_TRIES)
        try:
            time.sleep(chance.uniform(0.1, LONGEST_SECONDS))
        finally:
            _mount("-o", "remount,rw", self.path)

    def end(self) -> None:
        """Take it away, whoever still uses it."""
        subprocess.run(["umount", "--lazy", self.path], check=True)


def mounted(*paths: Path) -> list[Disk]:
    """Return a disk at each of these paths; none where that is not allowed."""
    if os.getuid() != 0:
        return []
    made = list[Disk]()
    for path in paths:
        try:
            made.append(Disk(path))
        except (OSError, subprocess.CalledProcessError):
            # Root in a container, perhaps: no faults of disks then, and nothing is left half mounted.
            for disk in made:
                disk.end()
            return []
    return made


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)
