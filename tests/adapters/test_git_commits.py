"""A worktree's commit is what `git add -A` would make of its files, on the parent, the same each time."""

import os
import stat
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from steersman.adapters.removal import remove_tree
from steersman.application.ports.git import CommitFailed, WorkplaceLost
from steersman.domain.git import Commit

from .conftest import AT, Scratch

#: Names that a shell, a patch or a careless decoder would trip over.
NAMES = [
    "with space",
    'quo"te',
    "back\\slash",
    "new\nline",
    "tab\there",
    "-leading",
    "é-composed",
    "é-decomposed",
    os.fsdecode(b"latin-\xe9"),
    "日本",
    "glob*[x]?",
    "deep/er/than/that",
    ":colon",
    "#hash",
    "~tilde",
]


def commit(scratch: Scratch, path: Path, parent: str | None = None) -> Commit:
    """Commit the workplace on *parent*, by default the user's branch."""
    message = "Work\n\nSteersman-Turn: t1\n"
    return scratch.repositories.commit_workplace(scratch.path, path, parent or scratch.rev("main"), AT, message)


def as_git_would(scratch: Scratch, path: Path) -> str:
    """The tree that `git add -A` makes of a worktree, through an index of its own."""
    environment = {**os.environ, "GIT_INDEX_FILE": str(scratch.home / "index-of-git")}
    for arguments in (["read-tree", "HEAD"], ["add", "-A"], ["write-tree"]):
        done = subprocess.run(["git", *arguments], cwd=path, env=environment, capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_every_kind_of_change_is_committed_as_git_would(scratch: Scratch) -> None:
    parent = scratch.commit({"run.sh": "#!\n", "gone/x": "x\n", "kind": "a file\n", "swap/f": "f\n", "link-was": "x"})
    path = scratch.workplace()
    scratch.write({"README": "two\n", "new/file": "new\n", "gone/x": None, "kind": None, "kind/now": "a dir\n"}, path)
    (path / "run.sh").chmod(0o755)
    (path / "to").symlink_to("src/a.txt")
    (path / "nowhere").symlink_to("/does/not/exist")
    (path / "to-dir").symlink_to("src")
    (path / "link-was").unlink()
    (path / "link-was").symlink_to("README")
    (path / "swap/f").unlink()
    (path / "swap").rmdir()
    scratch.write({"swap": "now a file\n", "empty": ""}, path)
    os.mkfifo(path / "pipe")
    wanted = as_git_would(scratch, path)

    made = commit(scratch, path)

    assert made.tree == wanted == scratch.rev(f"{made.commit}^{{tree}}")
    assert scratch.rev(f"{made.commit}^") == parent
    assert scratch.rev("refs/steersman/taken/child") == made.commit
    assert scratch.is_sound()


def test_unusual_names_survive(scratch: Scratch) -> None:
    path = scratch.workplace()
    scratch.write({name: f"{number}\n" for number, name in enumerate(NAMES)}, path)
    wanted = as_git_would(scratch, path)

    made = commit(scratch, path)

    assert made.tree == wanted
    listed = scratch.git("ls-tree", "-r", "-z", "--name-only", made.commit).split("\0")
    assert set(NAMES) <= set(listed)
    other = scratch.workplace("other", made.commit)
    assert all((other / name).is_file() for name in NAMES)


def test_what_is_ignored_stays_out_and_what_is_tracked_stays_in(scratch: Scratch) -> None:
    scratch.write({"tracked.log": "1\n", "build/kept": "1\n"})
    scratch.git("add", "-f", "tracked.log", "build/kept")
    scratch.commit({".gitignore": "*.log\n/build/\n!important.log\ntarget\nonly-dir/\n", "sub/.gitignore": "/local\n"})
    scratch.write({".git/info/exclude": "excluded\n"})
    path = scratch.workplace()
    scratch.write(
        {
            "tracked.log": "2\n",
            "build/kept": "2\n",
            "build/out": "x",
            "debug.log": "x",
            "important.log": "x",
            "sub/local": "x",
            "sub/deep/local": "x",
            "a/target/b": "x",
            "excluded": "x",
            "sub/excluded": "x",
            ".gitignore": "*.log\n/build/\n!important.log\ntarget\nonly-dir/\nlate\n",
            "late": "x",
        },
        path,
    )
    (path / "only-dir").symlink_to("src")
    wanted = as_git_would(scratch, path)

    made = commit(scratch, path)

    assert made.tree == wanted
    listed = scratch.git("ls-tree", "-r", "--name-only", made.commit).split()
    assert {"tracked.log", "important.log", "sub/deep/local", "only-dir"} <= set(listed)
    assert (path / "debug.log").exists()


def test_files_that_git_ignores_are_counted_where_they_are_all_that_was_written(scratch: Scratch) -> None:
    path = scratch.workplace()
    scratch.write({".gitignore": "*\n", "a": "a\n", "b/c": "c\n", "README": "two\n"}, path)

    assert scratch.repositories.count_ignored(scratch.path, path) == 3

    remove_tree(path)
    assert scratch.repositories.count_ignored(scratch.path, path) == 0


def test_names_that_differ_in_case_alone_are_two_whatever_is_configured(scratch: Scratch) -> None:
    scratch.commit({"case": "one\n", "Case": "one\n", "CASE": "one\n"})
    scratch.git("config", "core.ignoreCase", "true")
    path = scratch.workplace()
    scratch.write({"case": "two\n", "CASE": "three\n"}, path)

    made = commit(scratch, path)

    assert [scratch.git("show", f"{made.commit}:{name}").strip() for name in ("case", "Case", "CASE")] == [
        "two",
        "one",
        "three",
    ]


def test_nothing_changed_makes_no_commit(scratch: Scratch) -> None:
    path = scratch.workplace()
    (path / "README").write_text("one\n")  # rewritten, not changed
    os.mkdir(path / "empty")

    made = commit(scratch, path)

    assert made.commit == scratch.rev("main")
    assert made.tree == scratch.rev("main^{tree}")


def test_two_clones_make_the_same_commit_and_a_repetition_makes_no_other(scratch: Scratch) -> None:
    path = scratch.workplace()
    clone = scratch.home / "clone"
    scratch.git("clone", "-q", str(scratch.path), str(clone))
    there = scratch.home / "there"
    scratch.repositories.make_workplace(clone, there, scratch.rev("main"))
    for root in (path, there):
        scratch.write({"README": "two\n", "new": "new\n"}, root)

    here = [commit(scratch, path) for _ in range(2)]
    made = scratch.repositories.commit_workplace(clone, there, scratch.rev("main"), AT, "Work\n\nSteersman-Turn: t1\n")

    assert here == [made, made]
    shown = scratch.git("show", "-s", "--format=%an <%ae>|%ad|%cn <%ce>|%cd|%B", made.commit)
    who, when = "Steersman <steersman@localhost>", "Wed Mar 4 05:06:07 2026 +0000"
    assert shown.strip() == f"{who}|{when}|{who}|{when}|Work\n\nSteersman-Turn: t1"


def test_what_the_agent_committed_itself_becomes_the_one_commit(scratch: Scratch) -> None:
    path = scratch.workplace()
    scratch.commit({"one": "1\n"}, path)
    scratch.commit({"two": "2\n", "one": None}, path)
    scratch.write({"three": "3\n"}, path)

    made = [commit(scratch, path) for _ in range(2)]

    assert made[0] == made[1]
    assert scratch.rev(f"{made[0].commit}^") == scratch.rev("main")
    assert scratch.git("diff", "--name-only", "main", made[0].commit).split() == ["three", "two"]


def test_a_merge_that_the_agent_left_unfinished_is_committed_as_the_files_are(scratch: Scratch) -> None:
    path = scratch.workplace()
    theirs = scratch.branch_off("theirs", {"README": "theirs\n"}, scratch.rev("main"))
    scratch.commit({"README": "ours\n"}, path)
    scratch.git("merge", theirs, cwd=path, ok=(1,))

    made = commit(scratch, path)

    assert "<<<<<<<" in scratch.git("show", f"{made.commit}:README")


def test_a_worktree_that_cannot_be_committed_says_so_and_keeps_its_files(scratch: Scratch) -> None:
    path = scratch.workplace()
    with pytest.raises(WorkplaceLost):
        commit(scratch, scratch.home / "no-workplace")
    scratch.write({".GIT/config": "[core]\n", "README": "two\n"}, path)
    with pytest.raises(CommitFailed):
        commit(scratch, path)
    assert (path / "README").read_text() == "two\n"
    assert scratch.rev("refs/steersman/taken/child") == ""
    assert scratch.is_sound()


def test_line_endings_and_filters_are_applied_as_git_would(scratch: Scratch) -> None:
    scratch.git("config", "filter.up.clean", "tr a-z A-Z")
    scratch.git("config", "filter.up.smudge", "tr A-Z a-z")
    scratch.commit(
        {
            ".gitattributes": "*.txt text eol=crlf\n*.up filter=up\n*.lfs filter=lfs\n",
            "dos.txt": "one\r\ntwo\r\n",
            "loud.up": "quiet\n",
            "big.lfs": "content\n",
        }
    )
    path = scratch.workplace()
    assert (path / "dos.txt").read_bytes() == b"one\r\ntwo\r\n"
    assert (path / "loud.up").read_text() == "quiet\n"
    assert (path / "big.lfs").read_text() == "content\n"
    scratch.write({"dos.txt": "one\r\n2\r\n", "loud.up": "silent\n", "new.txt": "n\r\n", "more.lfs": "more\n"}, path)
    wanted = as_git_would(scratch, path)

    made = commit(scratch, path)

    assert made.tree == wanted
    assert scratch.git("show", f"{made.commit}:dos.txt") == "one\n2\n"
    assert scratch.git("show", f"{made.commit}:loud.up") == "SILENT\n"


#: A filter process as git starts one: it stores everything in capitals, and counts how often it was started.
PROCESS = """
import sys
read, write = sys.stdin.buffer.read, sys.stdout.buffer.write
def lines():
    while size := int(read(4), 16):
        yield read(size - 4)
def say(*texts):
    for text in texts:
        write(b"%04x" % (len(text) + 4) + text)
    write(b"0000")
    sys.stdout.flush()
open(sys.argv[1], "a").write("started\\n")
sys.stderr.write("x" * 100_000)
list(lines())
say(b"git-filter-server\\n", b"version=2\\n")
list(lines())
say(b"capability=clean\\n", b"capability=smudge\\n")
while True:
    try:
        asked = list(lines())
    except ValueError:
        break
    content = b"".join(lines())
    say(b"status=success\\n")
    say(content.upper() if b"command=clean" in asked[0] else content.lower())
    say()
"""


def test_a_filter_process_is_started_once_for_many_files(scratch: Scratch) -> None:
    scratch.commit({".gitattributes": "*.up filter=up\n"})
    command, started = scratch.home / "filter.py", scratch.home / "started"
    command.write_text(PROCESS)
    scratch.git("config", "filter.up.process", f"{sys.executable} {command} {started}")
    scratch.git("config", "filter.up.required", "true")
    path = scratch.workplace()
    scratch.write({f"{number}.up": f"quiet {number}\n" * 4000 for number in range(5)}, path)
    wanted = as_git_would(scratch, path)
    started.unlink()

    made = commit(scratch, path)

    assert made.tree == wanted
    assert started.read_text() == "started\n"


def test_a_filter_is_a_line_for_the_shell_and_is_told_the_file(scratch: Scratch) -> None:
    scratch.commit({".gitattributes": "*.up filter=up\n*.not filter=not\n"})
    scratch.git("config", "filter.up.clean", "(echo %f; cat) | tr a-z A-Z")
    scratch.git("config", "filter.not.clean", "not-a-command")
    path = scratch.workplace()
    scratch.write({"it's one.up": "quiet\n", "two.not": "as it is\n"}, path)
    wanted = as_git_would(scratch, path)

    made = commit(scratch, path)

    assert made.tree == wanted
    assert scratch.git("show", f"{made.commit}:it's one.up") == "IT'S ONE.UP\nQUIET\n"


def test_autocrlf_does_not_rewrite_what_was_committed_with_carriage_returns(scratch: Scratch) -> None:
    scratch.commit({"mixed.txt": "a\r\nb\n"})
    scratch.git("config", "core.autocrlf", "true")
    path = scratch.workplace()
    scratch.write({"new.txt": "x\r\n", "README": "one\r\ntwo\r\n"}, path)
    wanted = as_git_would(scratch, path)

    made = commit(scratch, path)

    assert made.tree == wanted
    assert scratch.git("show", f"{made.commit}:README") == "one\ntwo\n"


def test_without_a_trusted_executable_bit_the_recorded_one_stays(scratch: Scratch) -> None:
    (scratch.path / "src/a.txt").chmod(0o755)
    scratch.commit({})
    scratch.git("config", "core.fileMode", "false")
    path = scratch.workplace()
    (path / "src/a.txt").chmod(0o644)
    (path / "src/b.txt").chmod(0o755)
    scratch.write({"src/a.txt": "changed\n"}, path)

    made = commit(scratch, path)

    assert scratch.git("diff", "--summary", "main", made.commit) == ""


def test_many_new_files_are_stored_as_one_pack(scratch: Scratch) -> None:
    path = scratch.workplace()
    scratch.write({f"new/{number}": f"{number}\n" * 50 for number in range(300)}, path)

    made = commit(scratch, path)

    assert scratch.git("count-objects", "-v").splitlines()[3] == "packs: 1"
    assert scratch.rev(made.commit)
    assert scratch.is_sound()


def test_permissions_of_new_files_follow_the_umask(scratch: Scratch, at: datetime) -> None:
    before = os.umask(0o027)
    try:
        path = scratch.workplace()
    finally:
        os.umask(before)
    assert stat.S_IMODE((path / "README").stat().st_mode) == 0o640


def test_a_file_changed_within_one_tick_of_the_clock_is_not_taken_for_unchanged(scratch: Scratch) -> None:
    path = scratch.workplace()
    # As if written at the very time at which git last looked, with as many bytes.
    looked = (path / ".git/index").stat().st_mtime_ns
    os.utime(path / "README", ns=(looked, looked))
    scratch.git("update-index", "--refresh", cwd=path)
    os.utime(path / ".git/index", ns=(looked, looked))
    (path / "README").write_text("two\n")
    os.utime(path / "README", ns=(looked, looked))

    made = commit(scratch, path)

    assert scratch.git("show", f"{made.commit}:README") == "two\n"


@pytest.mark.parametrize("command", ["false", "not-a-command"])
def test_a_required_filter_that_fails_is_named_with_the_file(scratch: Scratch, command: str) -> None:
    scratch.git("config", "filter.big.clean", command)
    scratch.git("config", "filter.big.required", "true")
    path = scratch.workplace()
    scratch.write({".gitattributes": "*.bin filter=big\n", "x.bin": "x\n"}, path)

    with pytest.raises(CommitFailed, match=r"x\.bin.*big"):
        commit(scratch, path)


def test_what_a_gc_sweeps_away_before_a_ref_leads_to_it_is_taken_in_again(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, swept = scratch.workplace(), list[str]()
    scratch.write({"README": "two\n"}, path)

    def reached(point: str) -> None:
        if point == "workplace.staged" and not swept:
            swept.append(scratch.git("gc", "-q", "--prune=now"))

    monkeypatch.setattr("steersman.adapters.git.staging.reached", reached)

    made = commit(scratch, path)

    assert swept
    assert scratch.git("show", f"{made.commit}:README") == "two\n"
    assert scratch.is_sound()
