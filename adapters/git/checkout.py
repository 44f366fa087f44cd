"""The files of one checkout: compared, written and removed, never through a symbolic link and never outside of it."""

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress

from dulwich.index import IndexEntry
from dulwich.objects import Blob, ObjectID

from .filters import Filters
from .index import CheckoutIndex, fresh_entry
from .objects import Entry, Objects, is_gitlink
from .refs import MayMove

#: Names that git accepts in no tree, whatever their case.
FORBIDDEN = frozenset([b"", b".", b"..", b".git", b"git~1"])


class ForbiddenPath(Exception):
    """A path that no git checkout may hold."""


def check_path(path: bytes) -> None:
    """Raise ForbiddenPath for what would lead out of the checkout or into its git directory."""
    if any(name.lower() in FORBIDDEN for name in path.split(b"/")) or b"\0" in path:
        raise ForbiddenPath(os.fsdecode(path))


def remove_tree(path: bytes | str) -> None:
    """Remove a directory and what is in it, also where its own permissions forbid that. Absent is fine."""
    root = os.fsencode(path)
    if not os.path.isdir(root) or os.path.islink(root):
        return
    try:
        shutil.rmtree(root)
    except PermissionError:
        os.chmod(root, stat.S_IRWXU)
        for directory, names, _ in os.walk(root):
            for inner in (os.path.join(directory, name) for name in names):
                if not os.path.islink(inner):
                    os.chmod(inner, stat.S_IRWXU)
        shutil.rmtree(root)


class Files:
    """The files below one directory, by their paths in a tree."""

    def __init__(self, root: str, staging: str | None = None, *, trusts_modes: bool = True) -> None:
        """
        Args:
            root: the checkout's directory.
            staging: a name in the same file system through which files are written, so that each appears whole.
            trusts_modes: whether this file system keeps the executable bit (`core.fileMode`).
        """
        self._trusts_modes = trusts_modes
        self.root = os.fsencode(root)
        self._staging = os.fsencode(staging) if staging else None
        self._real_directories: set[bytes] = {b""}

    def at(self, path: bytes) -> bytes:
        """Return where a path of the tree lies."""
        return self.root + b"/" + path

    def _is_real(self, directory: bytes) -> bool:
        """Return whether a directory, and every one above it, is one and no link to one."""
        if directory in self._real_directories:
            return True
        if not self._is_real(directory.rpartition(b"/")[0]):
            return False
        with suppress(OSError):
            if stat.S_ISDIR(os.lstat(self.at(directory)).st_mode):
                self._real_directories.add(directory)
                return True
        return False

    def lstat(self, path: bytes) -> os.stat_result | None:
        """Return what is at a path, None if nothing is; what is behind a link is not at the path."""
        if not self._is_real(path.rpartition(b"/")[0]):
            return None
        try:
            return os.lstat(self.at(path))
        except OSError:
            return None

    def mode(self, found: os.stat_result, before: int | None) -> int:
        """Return the mode that git records for a file that it knew with another mode, or not, before."""
        if stat.S_ISLNK(found.st_mode):
            return stat.S_IFLNK
        if not self._trusts_modes:
            return before if before is not None and stat.S_ISREG(before) else stat.S_IFREG | 0o644
        return stat.S_IFREG | (0o755 if found.st_mode & stat.S_IXUSR else 0o644)

    def is_current(self, index: CheckoutIndex, entry: IndexEntry, found: os.stat_result) -> bool:
        """Return whether the file is known, unread, to be what the index says."""
        return is_content(found) and index.is_current(entry, found) and self.mode(found, entry.mode) == entry.mode

    def read(self, path: bytes, found: os.stat_result) -> bytes:
        """Return the content of a file or the target of a link."""
        if stat.S_ISLNK(found.st_mode):
            return os.readlink(self.at(path))
        # Not blocking: it may have become a pipe.
        with open(os.open(self.at(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read()

    def holds(self, path: bytes, entry: Entry | None, filters: Filters) -> bool:
        """Return whether exactly this entry (None: nothing) is at the path."""
        found = self.lstat(path)
        if entry is None or found is None:
            return entry is None and found is None
        if is_gitlink(entry[0]):
            return stat.S_ISDIR(found.st_mode)
        if not is_content(found) or self.mode(found, entry[0]) != entry[0]:
            return False
        content = self.read(path, found)
        if stat.S_ISREG(found.st_mode):
            content = filters.to_repository(path, content)
        return Blob.from_string(content).id == entry[1]

    def is_free(self, path: bytes) -> bool:
        """Return whether nothing is at the path, or nothing but directories."""
        found = self.lstat(path)
        return found is None or (stat.S_ISDIR(found.st_mode) and not any(contents(self.at(path))))

    def refreshed(self, path: bytes, entry: Entry) -> IndexEntry:
        """Return what the index says of an entry that is at its path."""
        return fresh_entry(os.lstat(self.at(path)), *entry)

    def write(self, path: bytes, entry: Entry, objects: Objects, filters: Filters, *, clear: bool) -> IndexEntry:
        """
        Put an entry at its path and return what the index says of it.

        What stands in the way is removed, directories with files in them only if *clear* says so.
        """
        mode, name = entry
        check_path(path)
        self._make_room(path, keep_directory=is_gitlink(mode), clear=clear)
        target = self.at(path)
        if is_gitlink(mode):
            os.makedirs(target, exist_ok=True)
        else:
            self._write_content(path, target, mode, objects.blob(name), filters)
        return fresh_entry(os.lstat(target), mode, name)

    def _write_content(self, path: bytes, target: bytes, mode: int, content: bytes, filters: Filters) -> None:
        through = self._staging or target
        if self._staging:
            with suppress(FileNotFoundError):
                os.unlink(through)
        if stat.S_ISLNK(mode):
            os.symlink(content, through)
        else:
            permissions = 0o777 if mode & 0o100 else 0o666
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(through, flags, permissions), "wb") as file:
                file.write(filters.to_checkout(path, content))
        if through != target:
            os.rename(through, target)

    def _make_room(self, path: bytes, *, keep_directory: bool, clear: bool) -> None:
        names = path.split(b"/")
        for depth in range(1, len(names)):
            directory = b"/".join(names[:depth])
            if directory in self._real_directories:
                continue
            found = self.lstat(directory)
            if found is None or not stat.S_ISDIR(found.st_mode):
                if found is not None:
                    os.unlink(self.at(directory))
                os.mkdir(self.at(directory))
            self._real_directories.add(directory)
        found = self.lstat(path)
        if found is None or (keep_directory and stat.S_ISDIR(found.st_mode)):
            return
        if stat.S_ISDIR(found.st_mode):
            self._forget(path)
            remove_tree(self.at(path)) if clear else _remove_empty_directories(self.at(path))
        elif not self._staging or keep_directory:
            os.unlink(self.at(path))

    def remove(self, path: bytes) -> None:
        """Remove a file, and the directories that are empty without it; a submodule with files in it stays, as in git."""
        found = self.lstat(path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            with suppress(OSError):
                os.rmdir(self.at(path))
        elif found is not None:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(self.at(path))
        with suppress(OSError):
            while path := path.rpartition(b"/")[0]:
                os.rmdir(self.at(path))
                self._forget(path)

    def _forget(self, directory: bytes) -> None:
        self._real_directories = {
            known for known in self._real_directories if known != directory and not known.startswith(directory + b"/")
        }


def is_content(found: os.stat_result) -> bool:
    """Return whether it is something that git stores: a file or a symbolic link."""
    return stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)


def contents(directory: bytes) -> Iterator[bytes]:
    """Yield where everything below lies that is no directory, links to one too; of one that cannot be read, its own."""
    try:
        with os.scandir(directory) as found:
            items = list(found)
    except OSError:
        yield directory
        return
    for item in items:
        if item.is_dir(follow_symlinks=False):
            yield from contents(item.path)
        else:
            yield item.path


def _remove_empty_directories(path: bytes) -> None:
    """Remove a directory that holds nothing but directories. Raises OSError if there is a file."""
    for directory, _, _ in os.walk(path, topdown=False):
        os.rmdir(directory)


def write_all(
    files: Files,
    wanted: Iterable[tuple[bytes, Entry]],
    objects: Objects,
    filters: Filters,
    index: CheckoutIndex,
    may_move: MayMove,
) -> dict[bytes, IndexEntry]:
    """Make every wanted entry be at its path, whatever is there; return the index that says so. Asked before each."""
    entries: dict[bytes, IndexEntry] = {}
    for path, (mode, name) in wanted:
        known = index.entries.get(path)
        found = files.lstat(path) if known else None
        if known and found and (known.mode, known.sha) == (mode, name) and files.is_current(index, known, found):
            entries[path] = known
        else:
            may_move()
            entries[path] = files.write(path, (mode, name), objects, filters, clear=True)
    return entries


def remove_all_but(files: Files, wanted: Iterable[bytes], may_move: MayMove) -> None:
    """Remove every file and directory that no wanted path needs, but for the checkout's own `.git`. Asked before each."""
    kept = set(wanted)
    needed = {
        b"/".join(names[:depth]) for names in (path.split(b"/") for path in kept) for depth in range(1, len(names))
    }

    def sweep(directory: bytes) -> None:
        with os.scandir(files.at(directory) if directory else files.root) as found:
            names = list(found)
        for item in names:
            path = directory + b"/" + item.name if directory else item.name
            if path in kept or path == b".git":
                continue
            may_move()
            if not item.is_dir(follow_symlinks=False):
                os.unlink(files.at(path))
            elif path in needed:
                sweep(path)
            else:
                remove_tree(files.at(path))

    sweep(b"")


def tree_entries(objects: Objects, tree: ObjectID) -> dict[bytes, Entry]:
    """Return every file of a tree by its path."""
    return dict(objects.files(tree))
