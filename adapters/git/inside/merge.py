"""
Merge commits one after the other, as git merges them, with the attributes of the tree that is merged into.

No driver is configured here, and there is no file of anybody's. On a path that conflicts the later side's version is
taken; what git keeps of both sides elsewhere stays.
"""

from __future__ import annotations

import os

from .shell import Failed, Git, answer, make_git_directory, parts, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SETTINGS = {"core.quotePath": "false", "core.looseCompression": "1", "core.fsync": "none"}
Entry = tuple[bytes, bytes]


def run(request: Any) -> None:
    """Answer with the commit that the merges end in, and hand over what is new below it."""
    merging = _Merging(request)
    start = present = request["onto"]
    steps: list[dict[str, Any]] = []
    for number, theirs in enumerate(request["commits"]):
        if merging.contains(present, theirs):
            continue
        if merging.contains(theirs, present):
            present = theirs
            continue
        made, paths = merging.merged(present, theirs)
        if paths and not request["resolves"]:
            answer({"commit": "", "steps": [_step(number, "", present, paths)]})
            return
        steps.append(_step(number, made, present, paths))
        present = made
    answer({"commit": present, "steps": steps})
    if steps:
        known = "".join(f"^{name}\n" for name in {start, *request["commits"]})
        arguments = ("--revs", "--stdout", "-q", "--thin", "--delta-base-offset", "--compression=1")
        merging.git.hand_over("pack-objects", *arguments, given=f"{present}\n{known}".encode())


def _step(number: int, made: str, before: str, paths: set[bytes]) -> dict[str, Any]:
    return {
        "number": number,
        "commit": made,
        "before": before,
        "paths": [path.decode("latin-1") for path in sorted(paths)],
    }


class _Merging:
    def __init__(self, request: Any) -> None:
        room = request["room"]
        self._request = request
        make_git_directory(os.path.join(room, "git"), request["files"], request["lends"], request["onto"])
        self.git = Git(request["git"], {**request["nothing_runs"], **SETTINGS}, GIT_DIR=os.path.join(room, "git"))

    def contains(self, newer: str, older: str) -> bool:
        """Return whether a commit is another one, or comes after it."""
        code, _ = self.git.try_("merge-base", "--is-ancestor", older, newer)
        if code > 1:
            raise Failed("git_failed", self.git.words)
        return code == 0

    def merged(self, ours: str, theirs: str) -> tuple[str, set[bytes]]:
        """Return the commit that merges the two, and the paths on which they conflict."""
        self._show_attributes(ours)
        arguments = ("--write-tree", "-z", "--no-messages", "--allow-unrelated-histories")
        code, said = self.git.try_("merge-tree", *arguments, ours, theirs)
        if code > 1:
            raise Failed("git_failed", self.git.words)
        tree, *records = parts(said)
        paths = set[bytes]()
        if code == 1:
            paths, edits = self._decided(tree.decode(), records, ours, theirs)
            tree = self._edited(tree.decode(), edits).encode()
        return self._commit(tree.decode(), ours, theirs), paths

    def _show_attributes(self, commit: str) -> None:
        """Have the attribute files of a commit, and nothing else, in the working tree, where git looks for them."""
        tree = os.path.join(self._request["room"], f"tree-{commit}")
        os.makedirs(tree)
        os.chdir(tree)
        self.git.environment["GIT_WORK_TREE"] = tree
        listed = self.git.output("ls-tree", "-r", "-z", "--full-tree", commit)
        # Most repositories have none, and a large one has very many other files.
        for record in parts(listed) if b".gitattributes\0" in listed else ():
            said, _, path = record.partition(b"\t")
            mode, _, name = said.split(b" ")
            if path.rpartition(b"/")[2] == b".gitattributes" and mode.startswith(b"100"):
                write(os.path.join(tree, os.fsdecode(path)), self.git.output("cat-file", "blob", name.decode()))

    def _decided(
        self, tree: str, records: list[bytes], ours: str, theirs: str
    ) -> tuple[set[bytes], dict[bytes, Entry | None]]:
        """Return the paths that conflict, and what is to stand there."""
        stages = dict[bytes, dict[bytes, Entry]]()
        for record in records:
            said, _, path = record.partition(b"\t")
            mode, name, stage = said.split(b" ")
            stages.setdefault(path, {})[stage] = (mode, name)
        paths, edits = set[bytes](), dict[bytes, Entry | None]()
        for path, found in stages.items():
            # Where a file of one side meets a directory of the other, git gives the file another name.
            if (name := _unlabelled(path, ours)) is not None:
                paths.add(name)
                edits[path] = None
            elif (name := _unlabelled(path, theirs)) is not None:
                displaced = self.git.records(
                    "ls-tree", "-r", "-z", "--name-only", "--full-tree", tree, os.fsdecode(name) + "/"
                )
                paths |= {name, *displaced}
                edits |= dict.fromkeys((path, *displaced))
                edits[name] = found.get(b"3")
            else:
                paths.add(path)
                if b"3" in found:
                    edits.setdefault(path, found[b"3"])
                elif b"1" in found and b"2" in found:
                    edits.setdefault(path, None)
        return paths, edits

    def _edited(self, tree: str, edits: dict[bytes, Entry | None]) -> str:
        if not edits:
            return tree
        self.git.output("read-tree", tree)
        ordered = sorted(edits.items(), key=lambda edit: edit[1] is not None)
        entries = ((entry or (b"0", b"0" * 40), path) for path, entry in ordered)
        given = b"".join(mode + b" " + name + b"\t" + path + b"\0" for (mode, name), path in entries)
        self.git.output("update-index", "-z", "--index-info", given=given)
        return self.git.text("write-tree")

    def _commit(self, tree: str, *parents: str) -> str:
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
        said = "\n".join(lines).encode() + b"\n" + self._request["rest"]
        return self.git.text("hash-object", "-t", "commit", "-w", "--stdin", given=said)


def _unlabelled(path: bytes, commit: str) -> bytes | None:
    """Return the path that git has named after a commit, because something else stands there."""
    name, label, rest = path.rpartition(b"~" + commit.encode())
    return name if label and (not rest or rest.startswith(b"_")) else None
