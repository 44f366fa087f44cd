"""How much one commit of an agent's may hold: by the files that it left, and by the objects that it put in place of files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from .changes import LINK, Change
from .shell import Failed, Git, lstat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The words for what exceeds a limit.
TOO_MUCH = ("file_too_large", "commit_too_large")


class Weighing:
    """What one commit has taken up so far, and the settings that it may not exceed."""

    def __init__(self, git: Git, request: Any) -> None:
        self._git = git
        self._root = os.fsencode(request["workplace"])
        self._limits = request["limits"]
        self._total = 0

    def check_files(self, paths: list[bytes]) -> set[bytes]:
        """
        Return those of the paths whose file is as large as what is stored of it.

        Raises Failed for a file that is too large or cannot be read, or if all of them are too much.
        """
        filtered = set[bytes]()
        for path in paths:
            found = lstat(os.path.join(self._root, path))
            size = 0 if found is None else found.st_size
            if found is not None and stat.S_ISREG(found.st_mode) and not os.access(self._at(path), os.R_OK):
                mode = found.st_mode & 0o777
                raise Failed("unreadable", f"{os.fsdecode(path)!r} cannot be read: its mode is {mode:03o}")
            if size > self._limits["file_bytes"]:
                # Of a file of LFS, say, no more than its name is stored: that is looked at when it is.
                if not self._is_filtered(path):
                    self._refuse(path, size)
                filtered.add(path)
            self._total += size
        self.check_total(0)
        return {path for path in paths if path not in filtered}

    def check_objects(self, changes: Iterable[Change]) -> None:
        """Raise Failed if one of the changes' objects is too large, or all of them are too much."""
        changes = [change for change in changes if change.after.startswith(b"1") and change.after != LINK]
        if not changes:
            return
        given = b"".join(change.new + b"\n" for change in changes)
        said = self._git.output("cat-file", "--batch-check=%(objectsize)", given=given).splitlines()
        for change, size in zip(changes, said, strict=True):
            # What is missing is missed when it is handed over.
            if size.isdigit():
                if int(size) > self._limits["file_bytes"]:
                    self._refuse(change.path, int(size))
                self._total += int(size)
        self.check_total(0)

    def check_total(self, more: int) -> None:
        """Raise Failed if this is too much, with what there is already."""
        if self._total + more > self._limits["commit_bytes"]:
            raise Failed(
                "commit_too_large",
                f"the changed files have {self._total + more} bytes; "
                f"{self._limits['commit_name']} allows {self._limits['commit_bytes']}",
            )

    def _refuse(self, path: bytes, size: int) -> None:
        limits = self._limits
        words = f"{os.fsdecode(path)!r} has {size} bytes; {limits['file_name']} allows {limits['file_bytes']}"
        raise Failed("file_too_large", words)

    def _at(self, path: bytes) -> bytes:
        return os.path.join(self._root, path)

    def _is_filtered(self, path: bytes) -> bool:
        """Return whether something else than its content is stored of a file: it has a filter, and there is such a one."""
        said = self._git.records("check-attr", "-z", "--stdin", "filter", given=path + b"\0")
        name = os.fsdecode(said[2])
        return any(self._git.try_("config", f"filter.{name}.{way}")[0] == 0 for way in ("clean", "process"))
