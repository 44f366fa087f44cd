"""Let whoever owns the files of a workplace read them: git keeps no such rights, and its author may have taken them away."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from .shell import answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run(request: Any) -> None:
    """On return every file of the workplace that is one's own can be read, and every directory be looked into."""
    left = [os.fsencode(request["workplace"])]
    while left:
        # What cannot be changed is somebody else's: whoever reads it says so.
        with suppress(OSError), os.scandir(left.pop()) as found:
            for item in found:
                mode = item.stat(follow_symlinks=False).st_mode
                if stat.S_ISREG(mode):
                    _give(item.path, mode, 0o400)
                elif stat.S_ISDIR(mode):
                    _give(item.path, mode, 0o500)
                    left.append(item.path)
    answer({})


def _give(path: bytes, mode: int, right: int) -> None:
    if mode & right != right:
        with suppress(OSError):
            os.chmod(path, stat.S_IMODE(mode) | right)
