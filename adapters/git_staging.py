"""Stage a worktree as `git add -A` does: every file as it is, ignored and nested repositories' ones left alone."""

import os
import stat
from collections.abc import Iterator

from dulwich.index import IndexEntry

from .git_checkout import Files, check_path, is_content
from .git_filters import Filters, Ignored
from .git_index import CheckoutIndex, fresh_entry
from .git_objects import Objects, is_gitlink


class Staging:
    """One pass over the files of a worktree."""

    def __init__(
        self, files: Files, index: CheckoutIndex, objects: Objects, filters: Filters, ignored: Ignored
    ) -> None:
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
        for path, entry in self._index.entries.items():
            # A submodule is its own repository: which of its commits is recorded is not ours to change.
            if is_gitlink(entry.mode) and os.path.isdir(self._files.at(path)):
                staged[path] = entry
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
        holds_tracked = path in self._tracked_directories
        known = self._index.entries.get(path)
        if known and is_gitlink(known.mode):
            return
        if not holds_tracked and (only_tracked or self._ignored.prunes(path) or self._is_repository(path)):
            return
        yield from self._walk(path, only_tracked=only_tracked or self._ignored.prunes(path))

    def _is_repository(self, path: bytes) -> bool:
        inner = self._files.at(path) + b"/.git"
        return os.path.isfile(inner) or os.path.isfile(inner + b"/HEAD")

    def _read(self, path: bytes, found: os.stat_result, before: int | None) -> IndexEntry:
        content = self._files.read(path, found)
        if stat.S_ISREG(found.st_mode):
            content = self._filters.to_repository(path, content)
        return fresh_entry(found, self._files.mode(found, before), self._objects.add_blob(content))
