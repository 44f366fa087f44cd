"""
Move the files of a user's checkout from one commit to another, with an index beside the user's own.

Whether anything stands in the way is git's to say. Cut short and done again, it goes on from any state between the two.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress

from . import index
from .changes import LINK, NOTHING, Change, differing
from .shell import Failed, Git, answer, lstat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SETTINGS = {
    "core.quotePath": "false",
    "core.splitIndex": "false",
    "checkout.workers": "0",
    "core.fsync": "none",
    # A merge of git's leaves the files of submodules alone, too, whatever is configured.
    "submodule.recurse": "false",
}
#: Ends the word for a failure after which files may have moved.
HALF_WAY = ":half_way"
#: What git says when it will not begin.
BEFORE = ("not uptodate", "would be overwritten", "would be removed", "would lose untracked", "annot merge")


def run(request: Any) -> None:
    """Answer with nothing, or with what stands in the way."""
    landing = _Landing(request)
    if request["mode"] == "check":
        landing.check()
    elif request["mode"] == "move":
        landing.check()
        landing.move()
    else:
        landing.finish()
    answer({})


class _Landing:
    def __init__(self, request: Any) -> None:
        self._request = request
        self._root = os.fsencode(request["root"])
        os.chdir(self._root)
        self._old, self._new = request["old"], request["new"]
        places = {
            "GIT_DIR": request["control"],
            "GIT_WORK_TREE": request["root"],
            "GIT_INDEX_FILE": request["copy"],
            "GIT_CONFIG_GLOBAL": request["users"],
        }
        self._git = Git(request["git"], {**request["nothing_runs"], **SETTINGS}, **places)
        with suppress(FileNotFoundError):
            os.unlink(request["copy"] + ".lock")
        with suppress(FileNotFoundError):
            index.read(os.path.join(request["control"], "index")).write(request["copy"])
        self._changes = differing(self._git, "diff-tree", "-r", self._old, self._new)
        self._modes = self._git.try_("config", "--type=bool", "core.fileMode")[1].strip() != b"false"

    def _refresh(self) -> bool:
        """Look at every file that may have changed; return whether all of them are as the index says."""
        return self._git.try_("update-index", "--ignore-submodules", "--refresh")[0] == 0

    def check(self) -> None:
        """Raise Failed if anything stands in the way that can be told before git moves files."""
        if not self._refresh():
            raise Failed("repository_dirty", "there are changes or conflicts that are not committed")
        code, _ = self._git.try_("diff-index", "--cached", "--quiet", "--ita-visible-in-index", self._old)
        if code > 1:
            raise Failed("git_failed", self._git.words)
        if code:
            raise Failed("repository_dirty", "there are staged changes")
        if self._changes:
            self._check_free()
            self._adopt()
            self._try_filters()

    def _check_free(self) -> None:
        """Raise Failed where something untracked, ignored or not, stands in the way: git would write over what is ignored."""
        changed = {change.path: change for change in self._changes}
        coming = [change for change in self._changes if change.after != NOTHING]
        here = [change.path for change in coming if change.before == NOTHING]
        found = self._contents(here)
        for change in coming:
            above = change.path
            while above := above.rpartition(b"/")[0]:
                if self._bars(above, changed):
                    raise Failed("untracked_would_be_overwritten", os.fsdecode(above))
            becomes_file = change.before == LINK != change.after
            if change.before != NOTHING and not becomes_file:
                continue
            if found.get(change.path, (b"", b""))[1] != change.new and self._is_taken(change, changed):
                raise Failed("untracked_would_be_overwritten", os.fsdecode(change.path))

    def _bars(self, path: bytes, changed: dict[bytes, Change]) -> bool:
        """Return whether what stands at a path neither is a directory to write in nor makes room for one."""
        found = lstat(path)
        if found is None:
            return False
        if path in changed and changed[path].before == LINK:
            # A submodule's files are its own repository's, and git does not see ours among them.
            return not stat.S_ISDIR(found.st_mode) or any(_files(path))
        return not stat.S_ISDIR(found.st_mode) and path not in changed

    def _is_taken(self, change: Change, changed: dict[bytes, Change]) -> bool:
        found = lstat(change.path)
        if found is None:
            return False
        if change.after == LINK or not stat.S_ISDIR(found.st_mode):
            return True
        return any(path not in changed for path in _files(change.path))

    def _try_filters(self) -> None:
        """Run the filters of the new files aside. What fails must fail before anything moves."""
        paths = b"".join(change.path + b"\0" for change in self._changes if change.after.startswith(b"100"))
        if not paths or not self._git.try_("config", "--get-regexp", r"^filter\.")[1]:
            return
        lists = any(change.path.rpartition(b"/")[2] == b".gitattributes" for change in self._changes)
        if not lists and not _filtered(self._git.records("check-attr", "-z", "--stdin", "filter", given=paths)):
            return
        aside = self._git.with_environment(GIT_INDEX_FILE=os.path.join(self._request["room"], "index-of-new"))
        aside.output("read-tree", self._new)
        filtered = _filtered(aside.records("check-attr", "--cached", "-z", "--stdin", "filter", given=paths))
        if filtered:
            prefix = os.path.join(self._request["room"], "tried") + "/"
            given = b"".join(path + b"\0" for path in filtered)
            code, _ = aside.try_("checkout-index", "-f", f"--prefix={prefix}", "-z", "--stdin", given=given)
            if code or any(not os.path.lexists(os.fsencode(prefix) + path) for path in filtered):
                raise Failed("filter_failed", aside.words)

    def _adopt(self) -> None:
        """Take untracked files that are the new ones already into the index as they are."""
        coming = {change.path: change for change in self._changes if change.before == NOTHING}
        found = self._contents(list(coming))
        self._edit([change for path, change in coming.items() if self._is(found.get(path), change.after, change.new)])

    def _edit(self, edited: Iterable[Change]) -> None:
        """Have the index say what the new commit says of these."""
        ordered = sorted(edited, key=lambda change: change.after != NOTHING)
        given = b"".join(b"%s %s\t%s\0" % (change.after, change.new, change.path) for change in ordered)
        if given:
            self._git.output("update-index", "-z", "--index-info", given=given)
            self._refresh()

    def _is(self, found: tuple[bytes, bytes] | None, mode: bytes, name: bytes) -> bool:
        return found is not None and found[1] == name and (found[0] == mode or not self._modes)

    def finish(self) -> None:
        """
        Bring files that were moved in part to the new commit, and the index with them.

        A file that is neither the old nor the new one was edited after the move began: it stays, as a change.
        """
        left_out = {record[2:] for record in self._git.records("ls-files", "-t", "-z") if record.startswith(b"S ")}
        files = [change for change in self._changes if not change.is_link and change.path not in left_out]
        found = self._contents([change.path for change in files])
        old = [change for change in files if self._is(found.get(change.path), change.before, change.old)]
        # Deletions first: a file may have to make room for a directory.
        for change in old:
            if change.after == NOTHING:
                _remove(change.path)
        self._edit(self._changes)
        kept = b"".join(
            change.path + b"\0" for change in self._changes if change.path in left_out and change.after != NOTHING
        )
        if kept:
            self._git.output("update-index", "--skip-worktree", "-z", "--stdin", given=kept)
        coming = [change for change in files if change.after != NOTHING]
        written = [change.path for change in coming if change in old or self._is_free(change.path)]
        if written:
            given = b"".join(path + b"\0" for path in written)
            code, _ = self._git.try_("checkout-index", "-f", "-u", "-q", "-z", "--stdin", given=given)
            if code or any(not os.path.lexists(path) for path in written):
                raise Failed(_reason(self._git.words) + HALF_WAY, self._git.words)
        self._refresh()

    def _is_free(self, path: bytes) -> bool:
        """Return whether nothing stands at a path, or on the way to it; empty directories make room."""
        above = path
        while above := above.rpartition(b"/")[0]:
            found = lstat(above)
            if found is not None and not stat.S_ISDIR(found.st_mode):
                return False
        found = lstat(path)
        if found is not None and stat.S_ISDIR(found.st_mode) and not any(_files(path)):
            for directory, _, _ in os.walk(path, topdown=False):
                os.rmdir(directory)
            return True
        return found is None

    def _contents(self, paths: list[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
        """Return the mode and name that git would give to what stands at these paths; what is no file is left out."""
        found, files = dict[bytes, tuple[bytes, bytes]](), list[tuple[bytes, bytes]]()
        for path in paths:
            with suppress(OSError):
                if os.path.realpath(os.path.dirname(os.path.join(self._root, path))) != os.path.dirname(
                    os.path.join(os.path.realpath(self._root), path)
                ).rstrip(b"/"):
                    continue  # Behind a link: nothing of the checkout.
                state = os.lstat(path)
                if stat.S_ISLNK(state.st_mode):
                    found[path] = (b"120000", _name(os.readlink(path)))
                elif stat.S_ISREG(state.st_mode):
                    files.append((path, b"100755" if state.st_mode & 0o100 else b"100644"))
        if files:
            given = b"".join(b'"' + b"".join(b"\\%03o" % byte for byte in path) + b'"\n' for path, _ in files)
            names = self._git.output("hash-object", "--stdin-paths", given=given).split()
            found |= {path: (mode, name) for (path, mode), name in zip(files, names, strict=True)}
        return found

    def move(self) -> None:
        """On return the files and the index are those of the new commit. A failure says whether files may have moved."""
        code, _ = self._git.try_("read-tree", "-m", "-u", self._old, self._new)
        if code:
            # git looks at all of them before it moves the first.
            is_half_way = not any(words in self._git.words for words in BEFORE)
            raise Failed(_reason(self._git.words) + (HALF_WAY if is_half_way else ""), self._git.words)
        code, _ = self._git.try_("diff-index", "--cached", "--quiet", self._new)
        coming = [change.path for change in self._changes if change.after not in (NOTHING, LINK)]
        absent = {path for path in coming if not os.path.lexists(path)}
        if absent:
            absent -= {record[2:] for record in self._git.records("ls-files", "-t", "-z") if record.startswith(b"S ")}
        if code or absent:
            raise Failed("files_missing" + HALF_WAY, "git moved the files, and they are not those of the new commit")
        # git only warns of a file that it may not remove. Where case makes no difference, one that comes may look like it.
        names = {os.fsdecode(path).casefold() for path in coming}
        going = (change.path for change in self._changes if change.after == NOTHING and not change.is_link)
        if left := [path for path in going if _is_file(path) and os.fsdecode(path).casefold() not in names]:
            raise Failed("files_not_written" + HALF_WAY, f"git could not remove {os.fsdecode(left[0])}")


def _filtered(said: list[bytes]) -> list[bytes]:
    """Return the paths that have a filter."""
    triples = zip(said[::3], said[1::3], said[2::3], strict=True)
    return [path for path, _, value in triples if value not in (b"unspecified", b"unset")]


def _is_file(path: bytes) -> bool:
    """Return whether something that is no directory stands at a path, and not behind a link."""
    above = path
    while above := above.rpartition(b"/")[0]:
        if os.path.islink(above):
            return False
    found = lstat(path)
    return found is not None and not stat.S_ISDIR(found.st_mode)


def _remove(path: bytes) -> None:
    """Remove a file, and the directories that it leaves empty."""
    os.unlink(path)
    with suppress(OSError):
        while path := path.rpartition(b"/")[0]:
            os.rmdir(path)


def _files(directory: bytes) -> Iterator[bytes]:
    """Yield what stands below a directory and is no directory itself."""
    left = [directory]
    while left:
        with os.scandir(left.pop()) as found:
            for item in found:
                if item.is_dir(follow_symlinks=False):
                    left.append(item.path)
                else:
                    yield item.path


def _name(content: bytes) -> bytes:
    import hashlib  # Few checkouts have links, and it takes long.

    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest().encode()


def _reason(words: str) -> str:
    if "filter" in words:
        return "filter_failed"
    if "ntracked" in words:
        return "untracked_would_be_overwritten"
    # What git says before it begins is about the user's changes; later, the system has not let it write or remove a file.
    return "repository_dirty" if any(said in words for said in BEFORE) else "files_not_written"
