"""A worktree's commit is what `git add -A` would make of its files, on the parent, the same each time."""

import hashlib
import os
import resource
import shutil
import stat
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from steersman.adapters.git.repositories import GitRepositories, GitSettings
from steersman.adapters.git.staging import CommitLimits
from steersman.adapters.processes.bubblewrap import find_box
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


def test_a_submodule_stays_at_its_commit(scratch: Scratch) -> None:
    library = scratch.home / "library"
    scratch.git("clone", "-q", str(scratch.path), str(library))
    scratch.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    scratch.commit({})
    path = scratch.workplace()
    assert (path / "lib").is_dir()
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
    path = scratch.workplace()
    scratch.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib", cwd=path)
    wanted = as_git_would(scratch, path)

    made = commit(scratch, path)

    assert made.tree == wanted
    assert scratch.git("ls-tree", made.commit, "lib").split()[:2] == ["160000", "commit"]


def test_a_submodule_that_was_recorded_and_not_registered_stays_at_its_commit(scratch: Scratch) -> None:
    scratch.git("update-index", "--add", "--cacheinfo", f"160000,{'c' * 40},lib")
    scratch.git("commit", "-q", "-m", "x")
    path = scratch.workplace()
    scratch.git("clone", "-q", str(scratch.path), "lib", cwd=path)
    scratch.write({"README": "two\n"}, path)

    made = commit(scratch, path)

    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"
    assert scratch.rev(f"{made.commit}:lib") == "c" * 40


def test_the_files_of_a_submodule_that_is_only_taken_out_of_the_index_are_none_of_the_commit(scratch: Scratch) -> None:
    scratch.git("update-index", "--add", "--cacheinfo", f"160000,{'c' * 40},lib")
    scratch.git("commit", "-q", "-m", "x")
    path = scratch.workplace()
    scratch.git("clone", "-q", str(scratch.path), "lib", cwd=path)
    scratch.write({"README": "two\n", "lib/large": "x" * 5_000}, path)
    scratch.git("rm", "-q", "--cached", "lib", cwd=path)
    git = GitRepositories(scratch.home / "scratch", settings=GitSettings(limits=CommitLimits(file_bytes=1_000)))

    made = git.commit_workplace(scratch.path, path, scratch.rev("main"), AT, "x")

    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"


@pytest.mark.parametrize("by_agent", ["nothing", "staged", "committed"])
@pytest.mark.parametrize("kind", ["repository", "worktree", "bare"])
def test_the_files_of_a_repository_that_the_agent_made_are_committed(
    scratch: Scratch, kind: str, by_agent: str
) -> None:
    path = scratch.workplace()
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
    assert scratch.repositories.fingerprint(scratch.path, path).tree_hash == made[0].tree
    scratch.write({"later": "a later turn\n"}, app)
    again = commit(scratch, path, made[0].commit)
    assert scratch.git("diff", "--name-only", made[0].commit, again.commit) == "apps/web/later\n"
    assert scratch.is_sound()


@pytest.mark.parametrize("content", ["[submodule", "\0\xff"])
def test_a_list_of_submodules_that_cannot_be_understood_registers_none(scratch: Scratch, content: str) -> None:
    path = scratch.workplace()
    scratch.git("init", "-q", "apps", cwd=path)
    scratch.commit({"work": "work\n"}, path / "apps")
    scratch.git("add", "apps", cwd=path)
    scratch.write({".gitmodules": content}, path)

    made = commit(scratch, path)

    assert scratch.git("show", f"{made.commit}:apps/work") == "work\n"


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


@pytest.mark.parametrize("damage", ["remove", "truncate", "split", "lock", "git"])
def test_whatever_the_agent_did_to_its_git_the_files_count(scratch: Scratch, damage: str) -> None:
    scratch.write({"tracked.log": "1\n"})
    scratch.git("add", "tracked.log")
    scratch.commit({".gitignore": "*.log\n"})
    path = scratch.workplace()
    admin = path / ".git"
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
            shutil.rmtree(path / ".git")
            scratch.git("init", "-q", cwd=path)

    made = commit(scratch, path)

    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"
    scratch.workplace()


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


@pytest.mark.parametrize(
    ("name", "kind"), [(".gitignore", "directory"), (".gitignore", "link"), (".gitattributes", "link")]
)
def test_what_has_the_name_of_a_list_and_is_no_file_is_no_list(scratch: Scratch, name: str, kind: str) -> None:
    path, outside = scratch.workplace(), scratch.home / "outside"
    scratch.write({"sub/work.txt": "one\r\n", "work.txt": "one\r\n"}, path)
    outside.write_text("* text\nwork.txt\n")
    for place in (path / name, path / "sub" / name):
        match kind:
            case "directory":
                scratch.write({f"{name}/work.txt": "*.txt\n"}, place.parent)
            case _:
                place.symlink_to(outside)

    made = commit(scratch, path)

    assert scratch.git("show", f"{made.commit}:sub/work.txt") == scratch.git("show", f"{made.commit}:work.txt")
    assert scratch.git("show", f"{made.commit}:work.txt") == "one\r\n"
    listed = scratch.git("ls-tree", "-r", "--name-only", made.commit, name, f"sub/{name}").split()
    inner = {"directory": [f"{name}/work.txt", f"sub/{name}/work.txt"], "link": [name, f"sub/{name}"]}
    assert listed == inner[kind]


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_what_git_refuses_or_would_wait_for_is_named(scratch: Scratch, kind: str) -> None:
    path = scratch.workplace()
    if kind == "pipe":
        os.mkfifo(path / "src/.gitattributes")
    else:
        scratch.write({".gitattributes/x": "x\n"}, path)

    with pytest.raises(CommitFailed, match=r"\.gitattributes"):
        commit(scratch, path)


@pytest.mark.parametrize("name", ["info/alternates", "pack/pack-planted.idx", "object", "link"])
def test_a_pipe_among_the_agents_objects_is_waited_for_by_nobody(scratch: Scratch, name: str) -> None:
    scratch.repositories = GitRepositories(scratch.home / "impatient", settings=GitSettings(box_seconds=30.0))
    path = scratch.workplace()
    scratch.write({"README": "theirs\n", "new": "new\n"}, path)
    scratch.git("add", "new", cwd=path)
    objects = path / ".git/objects"
    blob = scratch.rev(":new", cwd=path)
    planted = objects / (f"{blob[:2]}/{blob[2:]}" if name in ("object", "link") else name)
    planted.unlink(missing_ok=True)
    if name == "link":
        os.mkfifo(path / ".git/pipe")
        planted.symlink_to(path / ".git/pipe")
    else:
        (objects / "pack/pack-planted.pack").touch()
        os.mkfifo(planted)

    made = commit(scratch, path)

    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\nnew\n"
    assert scratch.is_sound()


def test_an_index_without_end_is_not_copied(scratch: Scratch) -> None:
    scratch.repositories = GitRepositories(scratch.home / "impatient", settings=GitSettings(box_seconds=30.0))
    path = scratch.workplace()
    scratch.write({"README": "theirs\n"}, path)
    for number in range(1_000):
        with open(path / f".git/sharedindex.{number}", "wb") as file:
            file.truncate(1 << 30)

    made = commit(scratch, path)

    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"


def test_a_tree_that_the_index_only_claims_is_not_committed(scratch: Scratch) -> None:
    path = scratch.workplace()
    scratch.git("update-index", "--refresh", cwd=path)
    blob = scratch.git("hash-object", "-w", "--stdin", cwd=path, stdin="forged\n").strip()
    forged = scratch.git("mktree", cwd=path, stdin=f"100644 blob {blob}\tREADME\n").strip()
    index = path / ".git/index"
    scratch.git("read-tree", "HEAD", cwd=path)
    scratch.git("update-index", "--refresh", cwd=path)
    content = index.read_bytes()
    # Version, and how many entries: all of them are in the tree that the extension names.
    claim = b"\0%d 0\n" % int.from_bytes(content[8:12]) + bytes.fromhex(forged)
    content = content[: content.rindex(b"TREE")] + b"TREE" + len(claim).to_bytes(4) + claim
    index.write_bytes(content + hashlib.sha1(content).digest())
    assert scratch.git("write-tree", cwd=path).strip() == forged

    assert commit(scratch, path).commit == scratch.rev("main")


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


def test_what_is_written_in_a_submodule_that_was_never_fetched_is_named_and_not_lost(scratch: Scratch) -> None:
    scratch.git("update-index", "--add", "--cacheinfo", f"160000,{'c' * 40},lib")
    scratch.git("commit", "-q", "-m", "x")
    path = scratch.workplace()
    scratch.write({"lib/x": "x\n", "README": "two\n"}, path)

    with pytest.raises(CommitFailed, match="lib/x"):
        commit(scratch, path)

    (path / "lib/x").unlink()
    made = commit(scratch, path)
    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"
    assert scratch.rev(f"{made.commit}:lib") == "c" * 40


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


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_flag_of_the_agents_hides_no_change(scratch: Scratch, flag: str) -> None:
    path = scratch.workplace()
    scratch.git("update-index", flag, "README", "src/a.txt", cwd=path)
    scratch.write({"README": "two\n"}, path)

    made = commit(scratch, path)

    assert scratch.git("diff", "--name-only", "main", made.commit) == "README\n"


def test_what_an_agent_leaves_out_of_a_sparse_checkout_is_not_deleted(scratch: Scratch) -> None:
    path = scratch.workplace()
    scratch.git("sparse-checkout", "set", "--no-cone", "/README", cwd=path)
    assert not (path / "src").exists()
    scratch.write({"README": "two\n", "new/file": "outside of it\n"}, path)

    made = commit(scratch, path)

    assert scratch.git("diff", "--name-only", "main", made.commit).split() == ["README", "new/file"]


def test_a_workplace_whose_files_are_all_gone_is_no_deletion(scratch: Scratch) -> None:
    path = scratch.workplace()
    for name in os.listdir(path):
        remove_tree(path / name)

    with pytest.raises(CommitFailed, match="every file is gone"):
        commit(scratch, path)


@pytest.mark.parametrize("what", ["filter", "monitor", "hooks", "worktree", "attributes", "excludes"])
def test_what_the_agent_configured_has_no_say_and_is_not_run(scratch: Scratch, what: str) -> None:
    path, ran = scratch.workplace(), scratch.home / "ran"
    scratch.write({".gitattributes": "*.txt filter=own\n"}, path)
    match what:
        case "filter":
            scratch.git("config", "filter.own.clean", f"touch {ran}; cat", cwd=path)
        case "monitor":
            scratch.git("config", "core.fsmonitor", f"touch {ran}; false", cwd=path)
        case "hooks":
            scratch.write({".hooks/post-index-change": f"#!/bin/sh\ntouch {ran}\n"}, scratch.home)
            (scratch.home / ".hooks/post-index-change").chmod(0o755)
            scratch.git("config", "core.hooksPath", str(scratch.home / ".hooks"), cwd=path)
        case "worktree":
            scratch.git("config", "core.worktree", "/etc", cwd=path)
        case "attributes":
            scratch.write({".git/info/attributes": "* -text eol=crlf\n"}, path)
        case _:
            scratch.write({".git/info/exclude": "*\n"}, path)
    scratch.write({"README": "two\n", "new.txt": "new\n"}, path)

    made = commit(scratch, path)

    assert scratch.git("diff", "--name-only", "main", made.commit).split() == [".gitattributes", "README", "new.txt"]
    assert scratch.git("show", f"{made.commit}:README") == "two\n"
    assert not ran.exists()


@pytest.mark.parametrize("command", ["false", "not-a-command"])
def test_a_required_filter_that_fails_is_named_with_the_file(scratch: Scratch, command: str) -> None:
    scratch.git("config", "filter.big.clean", command)
    scratch.git("config", "filter.big.required", "true")
    path = scratch.workplace()
    scratch.write({".gitattributes": "*.bin filter=big\n", "x.bin": "x\n"}, path)

    with pytest.raises(CommitFailed, match=r"x\.bin.*big"):
        commit(scratch, path)


def test_too_large_a_file_and_too_large_a_commit_are_refused_by_name(scratch: Scratch) -> None:
    limits = CommitLimits(file_bytes=1000, commit_bytes=2500)
    git = GitRepositories(scratch.home / "scratch", settings=GitSettings(limits=limits))
    path, base = scratch.workplace(), scratch.rev("main")
    scratch.write({"large": "x" * 1001}, path)
    with pytest.raises(CommitFailed, match=r"'large' has 1001 bytes; STEERSMAN_MAX_FILE_MIB allows 1000"):
        git.commit_workplace(scratch.path, path, base, AT, "x")
    scratch.write({"large": None, **{f"f{number}": "x" * 900 for number in range(3)}}, path)
    with pytest.raises(CommitFailed, match=r"\d+ bytes; STEERSMAN_MAX_COMMIT_MIB allows 2500"):
        git.commit_workplace(scratch.path, path, base, AT, "x")
    scratch.write({"f2": None}, path)
    assert git.commit_workplace(scratch.path, path, base, AT, "x").commit != base


def test_a_large_file_passes_without_being_held_in_memory(scratch: Scratch) -> None:
    path = scratch.workplace()
    with open(path / "large", "wb") as file:
        file.writelines(os.urandom(1 << 20) for _ in range(200))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    made = commit(scratch, path)

    assert scratch.git("cat-file", "-s", f"{made.commit}:large").strip() == str(200 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


def test_files_that_their_author_took_the_rights_away_from_are_committed_as_git_would_with_them(
    scratch: Scratch,
) -> None:
    scratch.repositories = GitRepositories(scratch.home / "scratch", find_box())
    path = scratch.workplace()
    scratch.write({".gitignore": ".env\n", ".env": "secret\n", "README": "two\n", "new/deep/x": "x\n"}, path)
    for name in (".gitignore", "README", "new/deep/x", "new/deep", "new"):
        (path / name).chmod(0)
    find_box().give(path)

    made = commit(scratch, path)

    changed = scratch.git("diff", "--name-status", "main", made.commit).split()
    assert changed == ["A", ".gitignore", "M", "README", "A", "new/deep/x"]
    assert scratch.git("ls-tree", made.commit, "README").startswith("100644 ")


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


@pytest.mark.parametrize("depth", [490, 1500])
def test_deep_trees_are_committed_looked_at_and_removed_or_refused_by_name(scratch: Scratch, depth: int) -> None:
    path = scratch.workplace()
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"import os\nfor _ in range({depth}):\n os.mkdir('deep'); os.chdir('deep')\nopen('f','w')",
        ],
        cwd=path,
        check=True,
    )

    try:
        if depth == 490:
            made = commit(scratch, path)
            assert scratch.git("diff", "--name-only", "main", made.commit).strip().endswith("deep/f")
            assert scratch.repositories.fingerprint(scratch.path, path).tree_hash == made.tree
        else:
            with pytest.raises(CommitFailed, match=r"could not open directory|unable to access"):
                commit(scratch, path)
    finally:
        # Also for pytest, which cannot remove it.
        scratch.repositories.remove_workplace(scratch.path, path, None)
    assert not path.exists()
