"""Whatever an agent plants in its workplace: its files count, and nothing of it runs, hides, hangs or exceeds a limit."""

import hashlib
import os
import resource
import shutil
import subprocess
import sys

import pytest

from steersman.adapters.git.repositories import GitRepositories, GitSettings
from steersman.adapters.git.staging import CommitLimits
from steersman.adapters.processes.bubblewrap import find_box
from steersman.adapters.removal import remove_tree
from steersman.application.ports.git import CommitFailed

from .conftest import AT, Scratch
from .test_git_commits import commit


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


def test_a_list_of_attributes_that_git_would_ignore_in_part_stands_in_nobodys_way(scratch: Scratch) -> None:
    base = scratch.commit({".gitattributes": f"README {' '.join(f'a{number}' for number in range(900))}\n"})
    path = scratch.workplace("child", base)
    scratch.write({"new": "new\n"}, path)

    made = scratch.repositories.commit_workplace(scratch.path, path, base, AT, "x")

    assert scratch.git("diff", "--name-only", base, made.commit) == "new\n"


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


@pytest.mark.parametrize("how", ["staged", "committed", "staged and gone", "a filter that is none"])
def test_no_way_leads_around_the_limits(scratch: Scratch, how: str) -> None:
    limits = CommitLimits(file_bytes=1000, commit_bytes=2500)
    git = GitRepositories(scratch.home / "scratch", settings=GitSettings(limits=limits))
    path, base = scratch.workplace(), scratch.rev("main")

    def put(files: dict[str, str]) -> None:
        scratch.write(files, path)
        if how == "a filter that is none":
            scratch.write({".gitattributes": "* filter=none\n"}, path)
            return
        scratch.git("add", *files, cwd=path)
        if how == "committed":
            scratch.git("commit", "-q", "-m", "Work", cwd=path)
        elif how == "staged and gone":
            scratch.git("update-index", "--skip-worktree", *files, cwd=path)
            scratch.write(dict.fromkeys(files), path)

    put({"large": "x" * 1001})
    with pytest.raises(CommitFailed, match=r"'large' has 1001 bytes; STEERSMAN_MAX_FILE_MIB allows 1000"):
        git.commit_workplace(scratch.path, path, base, AT, "x")
    scratch.repositories.make_workplace(scratch.path, path, base)
    put({f"f{number}": str(number) * 900 for number in range(3)})
    with pytest.raises(CommitFailed, match=r"\d+ bytes; STEERSMAN_MAX_COMMIT_MIB allows 2500"):
        git.commit_workplace(scratch.path, path, base, AT, "x")


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
