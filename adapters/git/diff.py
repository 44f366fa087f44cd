"""What differs between two commits, for people: files, line counts and a patch that git could apply."""

import codecs
import stat
from collections.abc import Iterable, Iterator
from typing import Literal

from dulwich.objects import ObjectID

from ...application.git_port import ChangedFile, FileView
from .merge import LineMatcher, split_lines
from .objects import Change, Entry, Objects, is_gitlink, is_tree

#: Larger files are shown as binary ones, as git does beyond `core.bigFileThreshold`.
BIG_FILE_BYTES = 4 * 1024 * 1024
#: Where git looks for the NUL byte that makes a file binary.
BINARY_PROBE_BYTES = 8000
#: Beyond so many differing lines the whole stretch counts as replaced.
MATCHED_LINES = 20_000
CONTEXT_LINES = 3
#: How much of one file, and of its patch, is shown.
SHOWN_BYTES = 1024 * 1024

Opcode = tuple[Literal["equal", "replace"], int, int, int, int]


def content_of(objects: Objects, entry: Entry | None) -> bytes:
    """Return a file's content, a link's target, or what git writes for a submodule's commit."""
    if entry is None:
        return b""
    if is_gitlink(entry[0]):
        return b"Subproject commit " + entry[1] + b"\n"
    return objects.blob(entry[1])


def is_binary(content: bytes) -> bool:
    """Return whether the content is not shown as lines."""
    return len(content) > BIG_FILE_BYTES or has_nul(content)


def has_nul(content: bytes) -> bool:
    """Return whether the content is no text."""
    return b"\0" in content[:BINARY_PROBE_BYTES]


def shown(path: bytes) -> str:
    """Return a path as text: bytes that are no UTF-8 appear as `\\xNN`."""
    return path.decode(errors="backslashreplace")


def status_of(change: Change) -> str:
    """Return what happened to the file."""
    before, after = change
    if before == after:
        return "unchanged"
    return "added" if before is None else "deleted" if after is None else "modified"


def opcodes(old: list[bytes], new: list[bytes]) -> list[Opcode]:
    """Return the stretches that make *new* of *old*, in order."""
    matcher = LineMatcher(None, old, new)
    blocks = matcher.get_matching_blocks() if matcher.differing_lines <= MATCHED_LINES else matcher.outer_blocks()
    found: list[Opcode] = []
    at_old = at_new = 0
    for in_old, in_new, length in blocks:
        if at_old < in_old or at_new < in_new:
            found.append(("replace", at_old, in_old, at_new, in_new))
        if length:
            found.append(("equal", in_old, in_old + length, in_new, in_new + length))
        at_old, at_new = in_old + length, in_new + length
    return found


def count_lines(objects: Objects, change: Change) -> tuple[int, int, bool]:
    """Return how many lines were added and removed, and whether the file is binary."""
    old, new = (content_of(objects, entry) for entry in change)
    if is_binary(old) or is_binary(new):
        return 0, 0, True
    replaced = [code for code in opcodes(split_lines(old), split_lines(new)) if code[0] == "replace"]
    return sum(code[4] - code[3] for code in replaced), sum(code[2] - code[1] for code in replaced), False


def changed_files(objects: Objects, old: ObjectID, new: ObjectID) -> list[ChangedFile]:
    """Return the files that differ between two trees, ordered by path."""
    files: list[ChangedFile] = []
    for path, change in sorted(objects.changes(old, new).items()):
        added, removed, binary = count_lines(objects, change)
        files.append(
            ChangedFile(
                path=shown(path), status=status_of(change), added_lines=added, removed_lines=removed, is_binary=binary
            )
        )
    return files


def find_shown(objects: Objects, tree: ObjectID, path: str) -> bytes | None:
    """Return the file's path in the tree that is shown as *path*; a directory, or a way out of the tree, is none."""
    found: list[bytes] = []
    entry: Entry = (stat.S_IFDIR, tree)
    for wanted in path.split("/"):
        if not is_tree(entry):
            return None
        names = objects.names(entry[1])
        exact = wanted.encode(errors="replace")
        name = exact if exact in names else next((name for name in names if shown(name) == wanted), None)
        if name is None:
            return None
        found.append(name)
        entry = names[name]
    return None if is_tree(entry) else b"/".join(found)


def view_file(objects: Objects, old: ObjectID, new: ObjectID, path: str) -> FileView | None:
    """Return one file as a comparison of two trees, None if neither has it."""
    name = find_shown(objects, new, path) or find_shown(objects, old, path)
    if name is None:
        return None
    before, after = (_no_tree(objects.find(tree, name)) for tree in (old, new))
    content = content_of(objects, after)
    binary = has_nul(content) or has_nul(content_of(objects, before))
    return FileView(
        path=path,
        status=status_of((before, after)),
        diff=_bounded(file_diff(objects, name, (before, after)), "diff"),
        content=None if after is None or binary else _bounded([content], "file"),
        is_binary=binary,
    )


def _no_tree(entry: Entry | None) -> Entry | None:
    return None if is_tree(entry) else entry


def _decode(text: bytes) -> str:
    return text.decode(errors="replace")


def quoted(path: bytes) -> bytes:
    """Return a name as git writes it in a patch: quoted if it holds a control character, a quote or no UTF-8."""
    try:
        path.decode()
        odd = {byte for byte in path if byte < 0x20 or byte in b'"\\\x7f'}
    except UnicodeDecodeError:
        odd = {byte for byte in path if not 0x20 <= byte < 0x7F or byte in b'"\\'}
    if not odd:
        return path
    letters = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
    escaped = (letters.get(byte, b"\\%03o" % byte) if byte in odd else bytes([byte]) for byte in path)
    return b'"' + b"".join(escaped) + b'"'


def file_diff(objects: Objects, path: bytes, change: Change) -> Iterator[bytes]:
    """Yield one file's patch line by line; nothing if it is unchanged."""
    before, after = change
    if before == after:
        return
    if before and after and stat.S_IFMT(before[0]) != stat.S_IFMT(after[0]):
        # git, too, writes a change of type as a deletion and an addition.
        yield from file_diff(objects, path, (before, None))
        yield from file_diff(objects, path, (None, after))
        return
    left, right = quoted(b"a/" + path), quoted(b"b/" + path)
    yield b"diff --git " + left + b" " + right + b"\n"
    yield from _mode_lines(before, after)
    if before and after and before[1] == after[1]:
        return
    old, new = content_of(objects, before), content_of(objects, after)
    if is_binary(old) or is_binary(new):
        names = (left if before else b"/dev/null", right if after else b"/dev/null")
        yield b"Binary files " + names[0] + b" and " + names[1] + b" differ\n"
    elif old or new:
        # A name with a space ends in a tab, so that its end is seen.
        tab = b"\t" if b" " in path else b""
        yield b"--- " + (left + tab if before else b"/dev/null") + b"\n"
        yield b"+++ " + (right + tab if after else b"/dev/null") + b"\n"
        yield from hunks(split_lines(old), split_lines(new))


def _mode_lines(before: Entry | None, after: Entry | None) -> Iterator[bytes]:
    if before is None and after:
        yield b"new file mode %06o\n" % after[0]
    elif before and after is None:
        yield b"deleted file mode %06o\n" % before[0]
    elif before and after and before[0] != after[0]:
        yield b"old mode %06o\nnew mode %06o\n" % (before[0], after[0])
    if (before and before[1]) != (after and after[1]):
        names = [(entry[1] if entry else b"0" * 40) for entry in (before, after)]
        mode = b" %06o" % after[0] if before and after and before[0] == after[0] else b""
        yield b"index " + names[0] + b".." + names[1] + mode + b"\n"


def hunks(old: list[bytes], new: list[bytes]) -> Iterator[bytes]:
    """Yield the hunks that make *new* of *old*, each with three lines of context."""
    group: list[Opcode] = []
    for code in opcodes(old, new):
        kind, old_start, old_end, new_start, new_end = code
        if kind == "replace":
            group.append(code)
            continue
        if group and old_end - old_start > 2 * CONTEXT_LINES:
            cut = old_start + CONTEXT_LINES, new_start + CONTEXT_LINES
            group.append(("equal", old_start, cut[0], new_start, cut[1]))
            yield from _hunk(old, new, group)
            group = []
        if not group:
            back = min(CONTEXT_LINES, old_end - old_start)
            old_start, new_start = old_end - back, new_end - back
        group.append(("equal", old_start, old_end, new_start, new_end))
    if any(code[0] == "replace" for code in group):
        yield from _hunk(old, new, _trimmed(group))


def _trimmed(group: list[Opcode]) -> list[Opcode]:
    kind, old_start, old_end, new_start, _ = group[-1]
    if kind == "equal":
        keep = min(CONTEXT_LINES, old_end - old_start)
        return [*group[:-1], (kind, old_start, old_start + keep, new_start, new_start + keep)]
    return group


def _hunk(old: list[bytes], new: list[bytes], group: list[Opcode]) -> Iterator[bytes]:
    first, last = group[0], group[-1]
    yield b"@@ -%s +%s @@\n" % (_range(first[1], last[2]), _range(first[3], last[4]))
    for kind, old_start, old_end, new_start, new_end in group:
        if kind == "equal":
            yield from (_line(b" ", line) for line in old[old_start:old_end])
        else:
            yield from (_line(b"-", line) for line in old[old_start:old_end])
            yield from (_line(b"+", line) for line in new[new_start:new_end])


def _range(start: int, end: int) -> bytes:
    length = end - start
    return b"%d,%d" % (start + 1 if length else start, length) if length != 1 else b"%d" % (start + 1)


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n\\ No newline at end of file\n"


def whole_diff(objects: Objects, old: ObjectID, new: ObjectID, limit_bytes: int) -> str:
    """Return the patch between two trees. One that is longer than the limit ends with a line that says so."""
    changes = sorted(objects.changes(old, new).items())
    return _bounded(
        (line for path, change in changes for line in file_diff(objects, path, change)), "diff", limit_bytes
    )


def _bounded(pieces: Iterable[bytes], what: str, limit_bytes: int = SHOWN_BYTES) -> str:
    text = bytearray()
    for piece in pieces:
        text += piece
        if len(text) > limit_bytes:
            return _cut(bytes(text[:limit_bytes])) + f"... the {what} was cut at {limit_bytes} bytes\n"
    return _decode(bytes(text))


def _cut(text: bytes) -> str:
    """Return the text without the character that was cut through, with its last line ended."""
    whole = codecs.getincrementaldecoder("utf-8")(errors="replace").decode(text, final=False)
    return whole if not whole or whole.endswith("\n") else whole + "\n"
