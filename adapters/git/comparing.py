"""What differs between two trees, for people: git's own words, bounded. No textconv, no driver, no file of a checkout."""

import codecs
from collections.abc import Sequence

from ...application.ports.git import Branch, ChangedFile, FileView, TreeEntry
from .objects import Entry, Trees, is_gitlink, shown
from .program import Program

#: How much of one file, and of its patch, is shown.
SHOWN_BYTES = 1024 * 1024
#: Where git looks for the NUL byte that makes a file binary.
BINARY_PROBE_BYTES = 8000
#: What may be listed of a tree's changes.
LISTED_BYTES = 64 * 1024 * 1024

PLAIN = ("--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--full-index", "--submodule=short")
STATUSES = {b"A": "added", b"D": "deleted"}
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def changed_files(git: Program, old: str, new: str) -> list[ChangedFile]:
    """Return the files that differ between two trees, ordered by path."""
    said = git.output("diff-tree", "-r", "-z", "--raw", "--numstat", *PLAIN, old, new, limit_bytes=LISTED_BYTES)
    parts = [part for part in said.split(b"\0") if part]
    statuses = dict[bytes, str]()
    at = 0
    while at < len(parts) and parts[at].startswith(b":"):
        statuses[parts[at + 1]] = STATUSES.get(parts[at][-1:], "modified")
        at += 2
    files = list[tuple[bytes, ChangedFile]]()
    for part in parts[at:]:
        added, removed, path = part.split(b"\t", 2)
        is_binary = added == b"-"
        files.append(
            (
                path,
                ChangedFile(
                    path=shown(path),
                    status=statuses[path],
                    added_lines=0 if is_binary else int(added),
                    removed_lines=0 if is_binary else int(removed),
                    is_binary=is_binary,
                ),
            )
        )
    return [file for _, file in sorted(files, key=lambda found: found[0])]


def meeting(git: Program, ours: str, theirs: str, merged: str) -> tuple[str, ...]:
    """
    Return the paths on which two commits meet in their merge, which nobody has seen yet, by path.

    Both have changed them since they parted, or what the merge brings to *ours* is not simply what *theirs* changed: a
    directory that was renamed, say, takes a new file with it. Compared without renames: one is a deletion and an addition.
    """
    landed = _raw(git, ours, merged)
    found = set[bytes]()
    for base in git.output("merge-base", "--all", ours, theirs).decode().split():
        of_ours, of_theirs = _raw(git, base, ours), _raw(git, base, theirs)
        found |= of_ours.keys() & of_theirs.keys()
        found |= {path for path in of_theirs.keys() | landed.keys() if of_theirs.get(path) != landed.get(path)}
    return tuple(shown(path) for path in sorted(found))


def brought_back(git: Program, seen: tuple[str, str], lands: tuple[str, str]) -> tuple[str, ...]:
    """
    Return the paths, in order, that change otherwise than was seen when a merge lands on a branch that holds no more what
    the work began from. Each pair is a commit before and after.
    """
    was_seen, landing, gone = _raw(git, *seen), _raw(git, *lands), _raw(git, seen[0], lands[0])
    found = {path for path, landed in landing.items() if path in gone or was_seen.get(path) != landed}
    return tuple(shown(path) for path in sorted(found))


def _raw(git: Program, old: str, new: str) -> dict[bytes, bytes]:
    """Return what each path that differs is in *new*: mode and object."""
    said = git.output("diff-tree", "-r", "-z", "--raw", *PLAIN, old, new, limit_bytes=LISTED_BYTES)
    parts = [part for part in said.split(b"\0") if part]
    # `:old-mode new-mode old-object new-object status`, then the path.
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {path: b" ".join(record.split(b" ")[1:4:2]) for record, path in pairs}


def entries(git: Program, old: str, new: str) -> list[TreeEntry]:
    """Return every folder and file of *new*, and the files of *old* that it lacks, each as it differs; by path."""
    changes = {} if old == new else {file.path: file for file in changed_files(git, old, new)}
    found = dict[bytes, TreeEntry]()
    for record in git.records("ls-tree", "-r", "-t", "-z", "--full-tree", new):
        said, _, path = record.partition(b"\t")
        found[path] = _entry(path, changes) if not said.startswith(b"040000") else _folder(path)
    for change in changes.values():
        if change.status == "deleted":
            path = change.path.encode()
            found[path] = _entry(path, changes)
            while path := path.rpartition(b"/")[0]:
                found.setdefault(path, _folder(path))
    return [entry for _, entry in sorted(found.items())]


def _folder(path: bytes) -> TreeEntry:
    return TreeEntry(path=shown(path), is_folder=True)


def _entry(path: bytes, changes: dict[str, ChangedFile]) -> TreeEntry:
    change = changes.get(shown(path))
    if change is None:
        return TreeEntry(path=shown(path), is_folder=False)
    return TreeEntry(
        path=change.path,
        is_folder=False,
        status=change.status,
        added_lines=change.added_lines,
        removed_lines=change.removed_lines,
    )


def diff(git: Program, old: str, new: str, limit_bytes: int, paths: Sequence[str] = ()) -> str:
    """Return the patch between two trees. One that is longer than the limit ends with a line that says so."""
    arguments = ("diff-tree", "-r", "-p", *PLAIN, old, new, "--", *(f":(top,literal){path}" for path in paths))
    answer = git.ask(*arguments, limit_bytes=limit_bytes, may_be_cut=True)
    return _bounded(answer.output, "diff", limit_bytes, is_cut=answer.is_cut)


def view_file(git: Program, trees: Trees, old: str, new: str, path: str) -> FileView | None:
    """Return one file as a comparison of two trees, None if neither has it."""
    after, before = trees.find(new, path), trees.find(old, path)
    found = after or before
    if found is None:
        return None
    name, _ = found
    entry_before, entry_after = (side[1] if side and side[0] == name else None for side in (before, after))
    content, is_cut = beginning(git, entry_after)
    is_binary = b"\0" in content[:BINARY_PROBE_BYTES] or b"\0" in beginning(git, entry_before, BINARY_PROBE_BYTES)[0]
    status = "unchanged" if entry_before == entry_after else "modified"
    if entry_before is None or entry_after is None:
        status = "added" if entry_before is None else "deleted"
    changed = status != "unchanged"
    return FileView(
        path=path,
        status=status,
        diff=diff(git, old, new, SHOWN_BYTES, [name.decode(errors="surrogateescape")]) if changed else "",
        content=None if entry_after is None or is_binary else _bounded(content, "file", SHOWN_BYTES, is_cut=is_cut),
        is_binary=is_binary,
    )


def beginning(git: Program, entry: Entry | None, limit_bytes: int = SHOWN_BYTES) -> tuple[bytes, bool]:
    """Return the beginning of a file, of a link its target, and whether there is more of it."""
    if entry is None:
        return b"", False
    if is_gitlink(entry[0]):
        return b"Subproject commit " + entry[1] + b"\n", False
    answer = git.ask("cat-file", "blob", entry[1].decode(), limit_bytes=limit_bytes, may_be_cut=True)
    return answer.output, answer.is_cut


def branches(git: Program) -> list[Branch]:
    """Return the repository's branches by name, those that runs work on last."""
    said = git.output("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads")
    found = list[Branch]()
    for line in said.splitlines():
        commit, _, ref = line.partition(b" ")
        name = ref.removeprefix(b"refs/heads/").decode(errors="surrogateescape")
        found.append(Branch(name=name, commit=commit.decode()))
    return sorted(found, key=lambda branch: (branch.name.startswith("steersman/"), branch.name))


def _bounded(text: bytes, what: str, limit_bytes: int, *, is_cut: bool) -> str:
    if not is_cut:
        return text.decode(errors="replace")
    # Without the character that was cut through, and with its last line ended.
    whole = codecs.getincrementaldecoder("utf-8")(errors="replace").decode(text, final=False)
    ended = whole if not whole or whole.endswith("\n") else whole + "\n"
    return ended + f"... the {what} was cut at {limit_bytes} bytes\n"
