"""
Stage a working tree as `git add -A` does, into an index and objects of our own: nothing in the tree or its `.git` is changed.

Files of repositories that an agent made or cloned below are staged one by one: git would record no more of one than the
name of a commit that goes when the workplace does. Submodules stay at the commit that is recorded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from .changes import LINK, NOTHING, Change, differing
from .index import MOST_BYTES, Plain, is_whole, plain, read
from .limits import TOO_MUCH, Weighing
from .pipes import holds_files_alone, look_for_pipes
from .shell import Call, Failed, Git, answer, lstat, make_git_directory, parts, quoted, shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
EMPTY_BLOB = b"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
#: Stands in a repository below until its own files do: git then takes it for a directory like others.
PLACEHOLDER = b".steersman-is-no-submodule"
#: How deep repositories may lie in each other.
ROUNDS = 30
SETTINGS = {
    "core.quotePath": "false",
    "core.looseCompression": "0",
    "core.fsync": "none",
    "core.splitIndex": "false",
    "fastimport.unpackLimit": "0",
}


def run(request: Any) -> None:
    """Answer with the tree that the files make, and hand over its commit with what is new in it."""
    tree, commit = _staged(request)
    parent = request["parent_tree"]
    if request["strict"] and tree == EMPTY_TREE and parent != EMPTY_TREE:
        raise Failed("workplace_emptied", "every file is gone from it")
    hashed = ""
    if request["hashes"]:
        from .hashing import workspace_hash

        hashed = workspace_hash(request["workplace"])
    git = _git(request, "git")
    hands_over = request["hands_over"] and tree != parent
    large: list[tuple[str, int, str]] = []
    if hands_over and request["large"] is not None:
        from .large import found

        places = [os.path.join(request["room"], "git/lfs"), os.path.join(request["workplace"], ".git/lfs")]
        large = found(git, parent, tree, places, [request["large"]])
        Weighing(git, request).check_total(sum(size for _, size, _ in large))
    listed = ("ls-files", "--others", "--ignored", "--exclude-standard", "-z")
    ignored = len(git.records(*listed)) if request["ignored"] else 0
    named = [(name, size) for name, size, _ in large]
    answer({"tree": tree, "workspace_hash": hashed, "ignored": ignored, "large": named})
    if large:
        from .large import hand_over

        hand_over(large)
    if hands_over:
        wanted = b"".join(name + b"\n" for name in {commit.encode(), *_new(git, parent, tree)})
        git.hand_over("pack-objects", "--stdout", "-q", "--window=0", "--compression=1", given=wanted)


def _new(git: Git, parent: str, tree: str) -> set[bytes]:
    """Return the objects of a tree that are elsewhere than in the parent's, and not where it has something else."""
    changes = [change for change in differing(git, "diff-tree", "-r", "-t", parent, tree) if change.after != LINK]
    new = {change.new for change in changes if change.after != NOTHING}
    return {tree.encode(), *new} - {change.old for change in changes}


def _staged(request: Any) -> tuple[str, str]:
    objects = os.path.join(request["workplace"], ".git", "objects")
    try:
        if holds_files_alone(objects):
            _prepare(request, [*request["lends"], objects])
            if (index := _take_index(request)) is not None:
                return _Staging(request, index).staged()
    except Failed as failed:
        if failed.code in TOO_MUCH:
            raise
    # What it has made of its git is of no use: its files are staged on what was committed last.
    _prepare(request, request["lends"])
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(request["room"], "git", "index"))
    _git(request, "git").output("read-tree", request["parent_tree"])
    return _Staging(request, _plain_index(request)).staged()


def _git(request: Any, name: str) -> Git:
    directory = os.path.join(request["room"], name)
    places = {"GIT_DIR": directory, "GIT_WORK_TREE": request["workplace"]}
    git = Git(request["git"], {**request["nothing_runs"], **SETTINGS}, **places)
    git.when_slow = lambda: look_for_pipes(request["workplace"])
    return git


def _prepare(request: Any, borrowed: list[str]) -> None:
    make_git_directory(os.path.join(request["room"], "git"), request["files"], borrowed, request["parent"])


def _take_index(request: Any) -> Plain | None:
    """
    Make our copy of the workplace's index, without what only speeds git up: in what others wrote it may say anything.

    None: there is none that is whole and not too large.
    """
    directory, own = os.path.join(request["workplace"], ".git"), os.path.join(request["room"], "git")
    with suppress(OSError):
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            return None
        found = read(os.path.join(directory, "index"))
        if (taken := plain(found.content)) is not None:
            found.write(os.path.join(own, "index"), taken.content)
            return taken
        # Of another version, or in several files: git makes one of it that is understood here.
        files, left = {"index": found}, MOST_BYTES - len(found.content)
        for name in os.listdir(directory):
            if name.startswith("sharedindex."):
                files[name] = read(os.path.join(directory, name), left)
                left -= len(files[name].content)
        if all(is_whole(file.content) for file in files.values()):
            for name, file in files.items():
                file.write(os.path.join(own, name))
            return _plain_index(request)
    return None


def _plain_index(request: Any) -> Plain:
    """Have git write our copy of the index anew, as one that is understood here."""
    path = os.path.join(request["room"], "git", "index")
    _git(request, "git").output("update-index", "--no-split-index", "--index-version", "2", "--force-write-index")
    found = read(path)
    if (taken := plain(found.content)) is None:
        raise Failed("git_failed", "the index cannot be understood")
    found.write(path, taken.content)
    return taken


class _Staging:
    """One pass over the files."""

    def __init__(self, request: Any, index: Plain) -> None:
        self._request = request
        self._index = index
        self._git = _git(request, "git")
        self._root = os.fsencode(request["workplace"])
        self._limits = Weighing(self._git, request)
        #: Submodules, which stay at the commit that is recorded.
        self._kept = set[bytes]()
        self._placeholders: list[bytes] = []

    def staged(self) -> tuple[str, str]:
        """Return the tree that the files make, and the commit of it."""
        self._unflag()
        self._settle_links(self._index.links)
        others = self._others()
        added, deleted = self._changed()
        added += self._untracked(others)
        weighed = self._limits.check_files(added)
        _edit(self._git, ((b"0", b"0" * 40, path) for path in (*deleted, *self._placeholders)))
        if added:
            self._git.output("update-index", "--add", "--replace", "-z", "--stdin", given=_joined(added))
            if self._request["strict"] and "Ignoring path" in self._git.words:
                raise Failed("forbidden_name", f"git takes no file of such a name: {shortened(self._git.words)}")
        changes = differing(self._git, "diff-index", "--cached", self._request["parent_tree"])
        # What was put into the index by others was not looked at as a file, and there may be none.
        self._limits.check_objects(change for change in changes if change.path not in weighed)
        return self._commit_of_entries(changes)

    def _commit_of_entries(self, changes: list[Change]) -> tuple[str, str]:
        """
        Commit the index's entries: the parent's, but for what differs.

        Made from the parent's tree, of which git then reads and writes only the directories that differ.
        """
        # Taken out of the index, not its files.
        kept = [change.path for change in changes if change.before == LINK != change.after]
        kept = [path for path in kept if self._is_repository(path)]
        changes = [each for each in changes if not any(_is_in(each.path, path) for path in kept)]
        lines = [b"D " + quoted(change.path) for change in changes if change.after == NOTHING]
        for change in changes:
            if change.after != NOTHING:
                _check_name(change.path)
                lines.append(b"M %s %s %s" % (change.after, change.new, quoted(change.path)))
        who, _, message = self._request["rest"].partition(b"\n\n")
        stream = [
            b"commit refs/heads/staged\nmark :1\n%s\ndata %d\n%s" % (who, len(message), message),
            b"from %s" % self._request["parent"].encode(),
            *lines,
            b'ls ""\n\nget-mark :1\ndone\n',
        ]
        # Names in a tree are bytes: it would find them by letters of either case, where that is configured for files.
        command = ("-c", "core.ignoreCase=false", "fast-import", "--quiet", "--done", "--force")
        said = self._git.output(*command, given=b"\n".join(stream)).split()
        # `040000 tree NAME`, then the commit.
        return said[2].decode(), said[3].decode()

    def _at(self, path: bytes) -> bytes:
        return os.path.join(self._root, path)

    def _unflag(self) -> None:
        """Take away flags by which files would not be looked at; what a sparse checkout leaves out is not deleted."""
        skipped = [path for path in self._index.skipped if lstat(self._at(path)) is not None]
        for flag, paths in (("--no-assume-unchanged", self._index.assumed), ("--no-skip-worktree", skipped)):
            if paths:
                self._git.output("update-index", flag, "-z", "--stdin", given=_joined(paths))

    def _settle_links(self, links: set[bytes]) -> None:
        """Tell submodules from repositories that were made below; the latter become directories."""
        recorded = self._recorded(links)
        registered = self._registered() if links - recorded else frozenset[bytes]()
        edits = list[tuple[bytes, bytes, bytes]]()
        for path in links:
            if path in recorded or path in registered or not self._is_repository(path):
                self._kept.add(path)
            else:
                edits += _as_directory(path)
        _edit(self._git, edits)
        if self._request["strict"]:
            self._check_empty()

    def _recorded(self, links: set[bytes]) -> set[bytes]:
        """Return which of the index's links are links in the parent's tree, too."""
        if not links:
            return set()
        changes = differing(self._git, "diff-index", "--cached", self._request["parent_tree"])
        return links - {change.path for change in changes if change.before != LINK}

    def _registered(self) -> frozenset[bytes]:
        """Return where `.gitmodules` says that submodules are; one that cannot be understood says nothing."""
        path = self._at(b".gitmodules")
        found = lstat(path)
        if found is None or not stat.S_ISREG(found.st_mode):
            return frozenset()
        arguments = (
            "config",
            "--file",
            os.fsdecode(path),
            "--no-includes",
            "-z",
            "--get-regexp",
            r"^submodule\..*\.path$",
        )
        code, said = self._git.try_(*arguments)
        return frozenset() if code else frozenset(entry.partition(b"\n")[2] for entry in said.split(b"\0") if entry)

    def _is_repository(self, path: bytes) -> bool:
        return lstat(os.path.join(self._at(path), b".git")) is not None

    def _check_empty(self) -> None:
        for path in self._kept:
            with suppress(OSError):
                if not self._is_repository(path) and (names := os.listdir(self._at(path))):
                    inner = ", ".join(repr(os.fsdecode(os.path.join(path, name))) for name in sorted(names)[:10])
                    raise Failed(
                        "submodule_written",
                        f"{os.fsdecode(path)!r} is a submodule that was never fetched; what was written in it would be"
                        f" lost: {inner}",
                    )

    def _changed(self) -> tuple[list[bytes], list[bytes]]:
        """Return the tracked files that may be changed, and those that are gone."""
        said = self._git.records("diff-files", "--raw", "-z", "--no-renames", "--ignore-submodules=dirty")
        added, deleted = dict[bytes, None](), dict[bytes, None]()
        for head, path in zip(said[::2], said[1::2], strict=True):
            found = lstat(self._at(path))
            if path in self._kept and found is not None and stat.S_ISDIR(found.st_mode):
                continue
            is_there = not head.endswith(b"D") and found is not None and _is_content(found)
            (added if is_there else deleted)[path] = None
        return list(added), [path for path in deleted if path not in added]

    def _others(self) -> Call:
        """Begin to look for what git does not track: it takes as long as to look at what it does."""
        return self._git.start("ls-files", "--others", "--exclude-standard", "-z")

    def _untracked(self, others: Call) -> list[bytes]:
        for number in range(ROUNDS):
            found = parts(self._git.answer(others))
            if self._request["strict"] and "could not open directory" in self._git.words:
                raise Failed("unreadable", shortened(self._git.words))
            inner = [path[:-1] for path in found if path.endswith(b"/")]
            if inner and number == 0:
                self._kept |= self._links_of_parent()
            inner = [path for path in inner if path not in self._kept]
            if not inner:
                return [path for path in found if not path.endswith(b"/")]
            for path in inner:
                edits = _as_directory(path)
                self._placeholders.append(edits[-1][2])
                _edit(self._git, edits[-1:])
            others = self._others()
        raise Failed("too_deep", f"repositories lie more than {ROUNDS} deep in each other")

    def _links_of_parent(self) -> set[bytes]:
        """Return the parent's submodules: one that was taken out of the index alone stays, and its files are its own."""
        said = self._git.records("ls-tree", "-r", "-z", "--full-tree", self._request["parent_tree"])
        return {record.partition(b"\t")[2] for record in said if record.startswith(LINK)}


def _edit(git: Git, entries: Iterable[tuple[bytes, bytes, bytes]]) -> None:
    given = b"".join(mode + b" " + name + b"\t" + path + b"\0" for mode, name, path in entries)
    if given:
        git.output("update-index", "--replace", "-z", "--index-info", given=given)


def _check_name(path: bytes) -> None:
    """Raise Failed for a name that git would not have let into an index: somebody has written that by hand."""
    if any(part.lower() in (b"", b".", b"..", b".git") for part in path.split(b"/")):
        raise Failed("forbidden_name", f"git takes no file of such a name: {os.fsdecode(path)!r}")


def _is_in(path: bytes, directory: bytes) -> bool:
    return path == directory or path.startswith(directory + b"/")


def _as_directory(path: bytes) -> list[tuple[bytes, bytes, bytes]]:
    return [(b"0", b"0" * 40, path), (b"100644", EMPTY_BLOB, path + b"/" + PLACEHOLDER)]


def _joined(paths: Iterable[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in paths)


def _is_content(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)
