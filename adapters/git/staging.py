"""
Stage a worktree as `git add -A` does: every file as it is, ignored and submodules' ones left alone.

Other repositories below, which an agent made or cloned, are staged file by file: git would record no more of one than
the name of a commit that goes when the worktree does.
"""

import os
import stat
from collections.abc import Iterator
from io import BytesIO

from dulwich.config import ConfigFile, parse_submodules
from dulwich.index import IndexEntry
from dulwich.objects import ObjectID

from .checkout import Files, check_path, is_content
from .filters import Filters, Ignored
from .index import CheckoutIndex, fresh_entry
from .objects import Objects, is_gitlink


class Staging:
    """One pass over the files of a worktree."""

    def __init__(
        self,
        files: Files,
        index: CheckoutIndex,
        objects: Objects,
        filters: Filters,
        ignored: Ignored,
        recorded: ObjectID,
    ) -> None:
        """Prepare it; what is a submodule in the tree *recorded* stays one."""
        self._recorded = recorded
        self._files = files
        self._index = index
        self._objects = objects
        self._filters = filters
        self._ignored = ignored
        self._tracked = {*index.entries, *index.unmerged}
        self._tracked_directories = {
            b"/".join(names[:depth])
            for names in (path.split(b"/") for path in self._tracked)
            for depth in range(1, len(names))
        }
        links = [path for path, entry in index.entries.items() if is_gitlink(entry.mode)]
        registered = self._registered() if links else frozenset[bytes]()
        self._submodules = {
            path for path in links if path in registered or self._is_recorded(path) or not self._is_repository(path)
        }

    def stage(self) -> dict[bytes, IndexEntry]:
        """Return the index that the files make; new contents wait in the objects."""
        staged: dict[bytes, IndexEntry] = {
            path: entry for path, entry in self._index.entries.items() if entry.skip_worktree
        }
        for path, found in self._walk(b"", only_tracked=False):
            check_path(path)
            known = self._index.entries.get(path)
            if known and self._files.is_current(self._index, known, found):
                staged[path] = known
            else:
                staged[path] = self._read(path, found, known.mode if known else None)
        for path in self._submodules:
            # It is its own repository: which of its commits is recorded is not ours to change.
            if os.path.isdir(self._files.at(path)):
                staged[path] = self._index.entries[path]
        return staged

    def _walk(self, directory: bytes, *, only_tracked: bool) -> Iterator[tuple[bytes, os.stat_result]]:
        with os.scandir(self._files.at(directory) if directory else self._files.root) as found:
            names = sorted(found, key=lambda item: item.name)
        for item in names:
            path = directory + b"/" + item.name if directory else item.name
            if item.name == b".git":
                continue
            if item.is_dir(follow_symlinks=False):
                yield from self._walk_below(path, only_tracked=only_tracked)
            elif path in self._tracked or not (only_tracked or self._ignored.ignores(path)):
                # Before the content is read: what is written later must look changed to whoever comes next.
                state = item.stat(follow_symlinks=False)
                if is_content(state):
                    yield path, state

    def _walk_below(self, path: bytes, *, only_tracked: bool) -> Iterator[tuple[bytes, os.stat_result]]:
        if path in self._submodules:
            return
        if path not in self._tracked_directories:
            if only_tracked or self._ignored.prunes(path):
                return
            if self._is_repository(path) and self._is_recorded(path):
                return  # The agent took it out of the index, not its files.
        yield from self._walk(path, only_tracked=only_tracked or self._ignored.prunes(path))

    def _registered(self) -> frozenset[bytes]:
        """Return where `.gitmodules` says that submodules are; one that cannot be understood says nothing."""
        found = self._files.lstat(b".gitmodules")
        if found is None or not stat.S_ISREG(found.st_mode):
            return frozenset()
        try:
            with BytesIO(self._files.read(b".gitmodules", found)) as file:
                return frozenset(path for path, _, _ in parse_submodules(ConfigFile.from_file(file)))
        except (OSError, ValueError):
            return frozenset()

    def _is_recorded(self, path: bytes) -> bool:
        entry = self._objects.find(self._recorded, path)
        return entry is not None and is_gitlink(entry[0])

    def _is_repository(self, path: bytes) -> bool:
        inner = self._files.at(path) + b"/.git"
        return os.path.isfile(inner) or os.path.isfile(inner + b"/HEAD")

    def _read(self, path: bytes, found: os.stat_result, before: int | None) -> IndexEntry:
        content = self._files.read(path, found)
        if stat.S_ISREG(found.st_mode):
            content = self._filters.to_repository(path, content)
        return fresh_entry(found, self._files.mode(found, before), self._objects.add_blob(content))
