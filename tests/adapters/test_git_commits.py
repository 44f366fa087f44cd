"""A worktree's commit is what `git add -A` would make of its files, on the parent, the same each time."""

import os
import stat
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from steersman.adapters.git.index import CheckoutIndex, fresh_entry, index_lock
from steersman.adapters.git.repositories import GitRepositories
from steersman.application.git_port import CommitFailed, GitConflict
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


def commit(scratch: Scratch, path: Path, parent: str | None = None, branch: str = "child") -> Commit:
    """Commit the worktree on *parent*, by default the user's branch."""
    return scratch.repositories.commit_worktree(
        scratch.path, path, f"steersman/{branch}", parent or scratch.rev("main"), AT, "Work\n\nSteersman-Turn: t1\n"
    )


def as_git_would(scratch: Scratch, path: Path) -> str:
    """The tree that `git add -A` makes of a worktree, through an index of its own."""
    environment = {**os.environ, "GIT_INDEX_FILE": str(scratch.home / "index-of-git")}
    for arguments in (["read-tree", "HEAD"], ["add", "-A"], ["write-tree"]):
        done = subprocess.run(["git", *arguments], cwd=path, env=environment, capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_every_kind_of_change_is_committed_as_git_would(scratch: Scratch) -> None:
    parent = scratch.commit({"run.sh": "#!\n", "gone/x": "x\n", "kind": "a file\n", "swap/f": "f\n", "link-was": "x"})
    path = scratch.worktree()
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
    assert scratch.rev("steersman/child") == made.commit
    assert scratch.status(path) == ""
    assert scratch.is_sound()


def test_unusual_names_survive(scratch: Scratch) -> None:
    path = scratch.worktree()
    scratch.write({name: f"{number}\n" for number, name in enumerate(NAMES)}, path)
    wanted = as_git_would(scratch, path)

    made = commit(scratch, path)

    assert made.tree == wanted
    assert scratch.status(path) == ""
    listed = scratch.git("ls-tree", "-r", "-z", "--name-only", made.commit).split("\0")
    assert set(NAMES) <= set(listed)
    other = scratch.worktree("other", made.commit)
    assert all((other / name).is_file() for name in NAMES)
    assert scratch.status(other) == ""


def test_what_is_ignored_stays_out_and_what_is_tracked_stays_in(scratch: Scratch) -> None:
    scratch.write({"tracked.log": "1\n", "build/kept": "1\n"})
    scratch.git("add", "-f", "tracked.log", "build/kept")
    scratch.commit({".gitignore": "*.log\n/build/\n!important.log\ntarget\nonly-dir/\n", "sub/.gitignore": "/local\n"})
    scratch.write({".git/info/exclude": "excluded\n"})
    path = scratch.worktree()
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
    assert scratch.status(path) == ""
    assert (path / "debug.log").exists()


def test_a_submodule_stays_at_its_commit(scratch: Scratch) -> None:
    library = scratch.home / "library"
    scratch.git("clone", "-q", str(scratch.path), str(library))
    scratch.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    scratch.commit({})
    path = scratch.worktree()
    assert (path / "lib").is_dir()
    assert scratch.status(path) == ""
    scratch.git("clone", "-q", str(library), "lib", cwd=path)
    scratch.commit({"x": "x\n"}, path / "lib")
    scratch.write({"README": "two\n"}, path)

    made = commit(scratch, path)

    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"
    assert scratch.rev(f"{made.commit}:lib") == scratch.rev("main:lib")
    assert scratch.is_sound()


def test_a_submodule_that_the_agent_adds_is_one(scratch: Scratch) -> None:
    library = scratch.home / "library"
    scratch.git("clone", "-q", str(scratch.path), str(library))
    path = scratch.worktree()
    scratch.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib", cwd=path)
    wanted = as_git_would(scratch, path)

    made = commit(scratch, path)

    assert made.tree == wanted
    assert scratch.git("ls-tree", made.commit, "lib").split()[:2] == ["160000", "commit"]


def test_a_submodule_that_was_recorded_and_not_registered_stays_at_its_commit(scratch: Scratch) -> None:
    scratch.git("update-index", "--add", "--cacheinfo", f"160000,{'c' * 40},lib")
    scratch.git("commit", "-q", "-m", "x")
    path = scratch.worktree()
    scratch.git("clone", "-q", str(scratch.path), "lib", cwd=path)
    scratch.write({"README": "two\n"}, path)

    made = commit(scratch, path)

    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"
    assert scratch.rev(f"{made.commit}:lib") == "c" * 40


@pytest.mark.parametrize("by_agent", ["nothing", "staged", "committed"])
@pytest.mark.parametrize("kind", ["repository", "worktree", "bare"])
def test_the_files_of_a_repository_that_the_agent_made_are_committed(
    scratch: Scratch, kind: str, by_agent: str
) -> None:
    path = scratch.worktree()
    app = path / "apps/web"
    match kind:
        case "repository":
            scratch.write({"new/work": "work\n"}, app)
            scratch.git("init", "-q", cwd=app)
            scratch.commit({".gitignore": "*.log\n"}, app)
        case "worktree":
            scratch.git("worktree", "add", "-q", "-b", "agents", str(app), cwd=path)
            scratch.commit({"new/work": "work\n", ".gitignore": "*.log\n"}, app)
        case _:
            scratch.git("init", "-q", "--bare", str(app))
            scratch.write({"new/work": "work\n"}, app)
    scratch.write({"later": "not even there\n", "debug.log": "ignored\n"}, app)
    if by_agent != "nothing":
        scratch.git("add", "-A", cwd=path)
    if by_agent == "committed":
        scratch.git("commit", "-q", "-m", "x", cwd=path)
    shown = {changed.path for changed in scratch.repositories.changed_files(scratch.path, scratch.rev("main"), path)}

    made = [commit(scratch, path) for _ in range(2)]

    assert made[0] == made[1]
    listed = set(scratch.git("ls-tree", "-r", "--name-only", made[0].commit).split())
    assert {"apps/web/new/work", "apps/web/later"} <= listed
    assert not any("/.git/" in name or name.endswith("/.git") for name in listed)
    assert kind == "bare" or "apps/web/debug.log" not in listed
    assert shown == listed - set(scratch.git("ls-tree", "-r", "--name-only", "main").split())
    assert scratch.status(path) == ""
    assert scratch.repositories.fingerprint(scratch.path, path).tree_hash == made[0].tree
    scratch.write({"later": "a later turn\n"}, app)
    again = commit(scratch, path, made[0].commit)
    assert scratch.git("diff", "--name-only", made[0].commit, again.commit) == "apps/web/later\n"
    assert scratch.is_sound()


@pytest.mark.parametrize("content", ["[submodule", '[submodule "x"]\n\tpath = apps\n', "\0\xff"])
def test_a_list_of_submodules_that_cannot_be_understood_registers_none(scratch: Scratch, content: str) -> None:
    path = scratch.worktree()
    scratch.git("init", "-q", "apps", cwd=path)
    scratch.commit({"work": "work\n"}, path / "apps")
    scratch.git("add", "apps", cwd=path)
    scratch.write({".gitmodules": content}, path)

    made = commit(scratch, path)

    assert scratch.git("show", f"{made.commit}:apps/work") == "work\n"


def test_what_stands_in_a_submodule_that_was_never_fetched_is_left_there(scratch: Scratch) -> None:
    scratch.git("update-index", "--add", "--cacheinfo", f"160000,{'c' * 40},lib")
    scratch.git("commit", "-q", "-m", "x")
    path = scratch.worktree()
    scratch.write({"lib/x": "x\n", "README": "two\n"}, path)

    made = commit(scratch, path)

    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"
    assert scratch.rev(f"{made.commit}:lib") == "c" * 40
    assert "lib/x" not in scratch.git("ls-files", cwd=path)


def test_nothing_changed_makes_no_commit(scratch: Scratch) -> None:
    path = scratch.worktree()
    (path / "README").write_text("one\n")  # rewritten, not changed
    os.mkdir(path / "empty")

    made = commit(scratch, path)

    assert made.commit == scratch.rev("main") == scratch.rev("steersman/child")
    assert made.tree == scratch.rev("main^{tree}")


def test_two_clones_make_the_same_commit_and_a_repetition_makes_no_other(scratch: Scratch) -> None:
    path = scratch.worktree()
    clone = scratch.home / "clone"
    scratch.git("clone", "-q", str(scratch.path), str(clone))
    there = scratch.home / "there"
    scratch.repositories.ensure_worktree(clone, there, "steersman/child", scratch.rev("main"))
    for root in (path, there):
        scratch.write({"README": "two\n", "new": "new\n"}, root)

    here = [commit(scratch, path) for _ in range(2)]
    made = scratch.repositories.commit_worktree(
        clone, there, "steersman/child", scratch.rev("main"), AT, "Work\n\nSteersman-Turn: t1\n"
    )

    assert here == [made, made]
    shown = scratch.git("show", "-s", "--format=%an <%ae>|%ad|%cn <%ce>|%cd|%B", made.commit)
    who, when = "Steersman <steersman@localhost>", "Wed Mar 4 05:06:07 2026 +0000"
    assert shown.strip() == f"{who}|{when}|{who}|{when}|Work\n\nSteersman-Turn: t1"


def test_what_the_agent_committed_itself_becomes_the_one_commit(scratch: Scratch) -> None:
    path = scratch.worktree()
    scratch.commit({"one": "1\n"}, path)
    scratch.commit({"two": "2\n", "one": None}, path)
    scratch.write({"three": "3\n"}, path)

    made = [commit(scratch, path) for _ in range(2)]

    assert made[0] == made[1]
    assert scratch.rev("steersman/child") == made[0].commit
    assert scratch.rev("steersman/child^") == scratch.rev("main")
    assert scratch.git("diff", "--name-only", "main", "steersman/child").split() == ["three", "two"]
    assert scratch.status(path) == ""


@pytest.mark.parametrize("how", [["checkout", "-q", "-b", "elsewhere"], ["checkout", "-q", "--detach"]], ids=str)
def test_a_head_that_the_agent_moved_away_comes_back_and_its_branch_is_not_moved(
    scratch: Scratch, how: list[str]
) -> None:
    path = scratch.worktree()
    scratch.git(*how, cwd=path)
    theirs = scratch.commit({"theirs": "1\n"}, path)
    scratch.write({"more": "2\n"}, path)

    made = commit(scratch, path)

    assert scratch.rev("steersman/child") == made.commit == scratch.rev("HEAD", cwd=path)
    assert scratch.rev("elsewhere") in ("", theirs)
    assert scratch.status(path) == ""
    assert scratch.git("diff", "--name-only", "main", made.commit).split() == ["more", "theirs"]


def test_a_merge_that_the_agent_left_unfinished_is_committed_as_the_files_are(scratch: Scratch) -> None:
    path = scratch.worktree()
    theirs = scratch.branch_off("theirs", {"README": "theirs\n"}, scratch.rev("main"))
    scratch.commit({"README": "ours\n"}, path)
    scratch.git("merge", theirs, cwd=path, ok=(1,))

    made = commit(scratch, path)

    assert "<<<<<<<" in scratch.git("show", f"{made.commit}:README")
    assert scratch.git("status", cwd=path) == "On branch steersman/child\nnothing to commit, working tree clean\n"


@pytest.mark.parametrize("damage", ["remove", "truncate", "split", "lock", "git"])
def test_whatever_the_agent_did_to_its_git_the_files_count(scratch: Scratch, damage: str) -> None:
    scratch.write({"tracked.log": "1\n"})
    scratch.git("add", "tracked.log")
    scratch.commit({".gitignore": "*.log\n"})
    path = scratch.worktree()
    admin = scratch.path / ".git/worktrees/child"
    scratch.write({"README": "two\n"}, path)
    match damage:
        case "remove":
            (admin / "index").unlink()
        case "truncate":
            (admin / "index").write_bytes((admin / "index").read_bytes()[:50])
        case "split":
            scratch.git("update-index", "--split-index", cwd=path)
        case "lock":
            (admin / "index.lock").touch()
            os.utime(admin / "index.lock", (0, 0))
        case _:
            (path / ".git").unlink()
            scratch.git("init", "-q", cwd=path)

    made = commit(scratch, path)

    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"
    scratch.worktree()
    assert damage == "git" or scratch.status(path) == ""


def test_somebody_who_committed_first_is_not_overwritten(scratch: Scratch) -> None:
    path = scratch.worktree()
    scratch.write({"README": "the first\n"}, path)
    first = commit(scratch, path)
    scratch.write({"README": "a later turn\n"}, path)
    second = commit(scratch, path, first.commit)
    scratch.write({"README": "a stale owner\n"}, path)

    with pytest.raises(GitConflict):
        commit(scratch, path)

    assert scratch.rev("steersman/child") == second.commit


@pytest.mark.parametrize("since", ["edited", "put back", "committed", "switched"])
def test_a_redo_after_the_branch_moved_returns_what_was_made_whatever_the_files_are_now(
    scratch: Scratch, since: str
) -> None:
    path = scratch.worktree()
    scratch.write({"README": "work\n", "log": "1\n"}, path)
    made = commit(scratch, path)
    # The service dies here; something that the agent left running goes on.
    if since == "put back":
        scratch.write({"README": "one\n", "log": None}, path)
    else:
        scratch.write({"log": "1\n2\n", "late": "late\n"}, path)
    if since == "committed":
        scratch.commit({}, path)
    if since == "switched":
        scratch.git("checkout", "-q", "-b", "elsewhere", cwd=path)

    assert [commit(scratch, path) for _ in range(2)] == [made, made]

    assert scratch.rev("steersman/child") == made.commit == scratch.rev("HEAD", cwd=path)
    changed = {"put back": " M README\n D log\n"}.get(since, " M log\n?? late\n")
    assert scratch.status(path) == changed
    assert scratch.git("show", f"{commit(scratch, path, made.commit).commit}^:README") == "work\n"
    assert scratch.is_sound()


def test_a_commit_of_another_turn_on_the_same_parent_is_no_redo(scratch: Scratch) -> None:
    path = scratch.worktree()
    scratch.write({"README": "work\n"}, path)
    parent = scratch.rev("main")
    made = commit(scratch, path)
    scratch.write({"README": "other\n"}, path)

    for at, message in (
        (AT, "Work\n\nSteersman-Turn: t2\n"),
        (AT + timedelta(seconds=1), "Work\n\nSteersman-Turn: t1\n"),
    ):
        with pytest.raises(GitConflict):
            scratch.repositories.commit_worktree(scratch.path, path, "steersman/child", parent, at, message)

    assert scratch.rev("steersman/child") == made.commit


def test_no_branch_but_ours_is_moved_from_where_the_agent_left_it(scratch: Scratch) -> None:
    path = scratch.home / "w"
    parent = scratch.rev("main")
    scratch.repositories.ensure_worktree(scratch.path, path, "users", parent)
    theirs = scratch.commit({"one": "1\n"}, path)

    with pytest.raises(GitConflict):
        scratch.repositories.commit_worktree(scratch.path, path, "users", parent, AT, "x")

    assert scratch.rev("users") == theirs


def test_a_worktree_that_cannot_be_committed_says_so_and_keeps_its_files(scratch: Scratch) -> None:
    path = scratch.worktree()
    with pytest.raises(CommitFailed):
        commit(scratch, scratch.home / "no-worktree")
    scratch.write({".GIT/config": "[core]\n", "README": "two\n"}, path)
    with pytest.raises(CommitFailed):
        commit(scratch, path)
    assert (path / "README").read_text() == "two\n"
    assert scratch.rev("steersman/child") == scratch.rev("main")
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
    path = scratch.worktree()
    assert scratch.status(path) == ""
    assert (path / "dos.txt").read_bytes() == b"one\r\ntwo\r\n"
    assert (path / "loud.up").read_text() == "quiet\n"
    assert (path / "big.lfs").read_text() == "content\n"
    scratch.write({"dos.txt": "one\r\n2\r\n", "loud.up": "silent\n", "new.txt": "n\r\n", "more.lfs": "more\n"}, path)
    wanted = as_git_would(scratch, path)

    made = commit(scratch, path)

    assert made.tree == wanted
    assert scratch.status(path) == ""
    assert scratch.git("show", f"{made.commit}:dos.txt") == "one\n2\n"
    assert scratch.git("show", f"{made.commit}:loud.up") == "SILENT\n"


@pytest.mark.parametrize("kind", ["directory", "pipe", "link"])
@pytest.mark.parametrize("name", [".gitignore", ".gitattributes"])
def test_what_has_the_name_of_a_list_and_is_no_file_is_no_list(scratch: Scratch, name: str, kind: str) -> None:
    path, outside = scratch.worktree(), scratch.home / "outside"
    scratch.write({"sub/work.txt": "one\r\n", "work.txt": "one\r\n"}, path)
    outside.write_text("* text\nwork.txt\n")
    for place in (path / name, path / "sub" / name):
        match kind:
            case "directory":
                scratch.write({f"{name}/work.txt": "*.txt\n"}, place.parent)
            case "pipe":
                os.mkfifo(place)
            case _:
                place.symlink_to(outside)
    descriptors = len(os.listdir("/proc/self/fd"))

    made = commit(scratch, path)

    assert scratch.git("show", f"{made.commit}:sub/work.txt") == scratch.git("show", f"{made.commit}:work.txt")
    assert scratch.git("show", f"{made.commit}:work.txt") == "one\r\n"
    listed = scratch.git("ls-tree", "-r", "--name-only", made.commit, name, f"sub/{name}").split()
    inner = {"directory": [f"{name}/work.txt", f"sub/{name}/work.txt"], "link": [name, f"sub/{name}"]}
    assert listed == inner.get(kind, [])
    assert kind == "pipe" or scratch.status(path) == ""
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("name", ["exclude", "attributes"])
def test_a_list_of_the_repository_that_is_a_directory_is_no_list(scratch: Scratch, name: str) -> None:
    path = scratch.worktree()
    scratch.write({f".git/info/{name}/x": "x\n", f".git/worktrees/child/info/{name}/x": "x\n"})
    scratch.write({"work": "work\n"}, path)

    made = commit(scratch, path)

    assert scratch.git("show", f"{made.commit}:work") == "work\n"


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
    path, command, started = scratch.worktree(), scratch.home / "filter.py", scratch.home / "started"
    command.write_text(PROCESS)
    scratch.git("config", "filter.up.process", f"{sys.executable} {command} {started} 2>/dev/null")
    scratch.git("config", "filter.up.required", "true")
    scratch.write({f"{number}.up": f"quiet {number}\n" * 4000 for number in range(5)}, path)
    wanted = as_git_would(scratch, path)
    started.unlink()
    scratch.git("config", "filter.up.process", f"{sys.executable} {command} {started}")

    made = commit(scratch, path)

    assert made.tree == wanted
    assert started.read_text() == "started\n"


def test_a_filter_is_a_line_for_the_shell_and_is_told_the_file(scratch: Scratch) -> None:
    scratch.commit({".gitattributes": "*.up filter=up\n*.not filter=not\n"})
    path = scratch.worktree()
    scratch.git("config", "filter.up.clean", "(echo %f; cat) | tr a-z A-Z")
    scratch.git("config", "filter.not.clean", "not-a-command")
    scratch.write({"it's one.up": "quiet\n", "two.not": "as it is\n"}, path)
    wanted = as_git_would(scratch, path)

    made = commit(scratch, path)

    assert made.tree == wanted
    assert scratch.git("show", f"{made.commit}:it's one.up") == "IT'S ONE.UP\nQUIET\n"


def test_autocrlf_does_not_rewrite_what_was_committed_with_carriage_returns(scratch: Scratch) -> None:
    scratch.commit({"mixed.txt": "a\r\nb\n"})
    scratch.git("config", "core.autocrlf", "true")
    path = scratch.worktree()
    scratch.write({"new.txt": "x\r\n", "README": "one\r\ntwo\r\n"}, path)
    wanted = as_git_would(scratch, path)

    made = commit(scratch, path)

    assert made.tree == wanted
    assert scratch.git("show", f"{made.commit}:README") == "one\ntwo\n"


def test_without_a_trusted_executable_bit_the_recorded_one_stays(scratch: Scratch) -> None:
    (scratch.path / "src/a.txt").chmod(0o755)
    scratch.commit({})
    scratch.git("config", "core.fileMode", "false")
    path = scratch.worktree()
    (path / "src/a.txt").chmod(0o644)
    (path / "src/b.txt").chmod(0o755)
    scratch.write({"src/a.txt": "changed\n"}, path)

    made = commit(scratch, path)

    assert scratch.git("diff", "--summary", "main", made.commit) == ""


def test_a_file_changed_within_one_tick_of_the_clock_is_not_taken_for_unchanged(scratch: Scratch) -> None:
    path = scratch.worktree()
    admin = scratch.path / ".git/worktrees/child"
    before = CheckoutIndex(str(admin)).entries
    (path / "README").write_text("two\n")
    # The index as it is when the file changed right after it was looked at: its stat data, the old content's name.
    found = os.lstat(path / "README")
    with index_lock(str(admin)) as lock:
        lock.write({**before, b"README": fresh_entry(found, before[b"README"].mode, before[b"README"].sha)})
    os.utime(admin / "index", ns=(found.st_mtime_ns, found.st_mtime_ns))

    made = commit(scratch, path)

    assert scratch.git("show", f"{made.commit}:README") == "two\n"


def test_many_new_files_are_stored_as_one_pack(scratch: Scratch) -> None:
    path = scratch.worktree()
    scratch.write({f"new/{number}": f"{number}\n" * 50 for number in range(300)}, path)

    made = commit(scratch, path)

    assert scratch.git("count-objects", "-v").splitlines()[3] == "packs: 1"
    assert scratch.status(path) == ""
    assert scratch.rev(made.commit)
    assert scratch.is_sound()


@pytest.mark.parametrize("files", [3, 300])
def test_objects_and_their_names_are_on_disk_before_the_branch_moves(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    path, synced = scratch.worktree(), set[str]()
    scratch.write({f"new/{number}": f"{number}\n" for number in range(files)}, path)
    before = set((scratch.path / ".git/objects").rglob("*"))
    sync = os.fsync

    def watch(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def may_move() -> None:
        made = set((scratch.path / ".git/objects").rglob("*")) - before
        assert {str(path.parent) for path in made} <= synced

    monkeypatch.setattr(os, "fsync", watch)
    GitRepositories(may_move).commit_worktree(
        scratch.path, path, "steersman/child", scratch.rev("main"), AT, "Work\n\nSteersman-Turn: t1\n"
    )

    assert scratch.status(path) == ""


def test_permissions_of_new_files_follow_the_umask(scratch: Scratch, at: datetime) -> None:
    before = os.umask(0o027)
    try:
        path = scratch.worktree()
    finally:
        os.umask(before)
    assert stat.S_IMODE((path / "README").stat().st_mode) == 0o640
