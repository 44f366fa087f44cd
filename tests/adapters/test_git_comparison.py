"""What we check out, stage, merge and land over generated repositories is what plain git makes of the same files."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from steersman.adapters.git.repositories import GitRepositories, GitSettings
from steersman.adapters.git.staging import CommitLimits
from steersman.application.ports.git import CommitFailed, Contribution

from .conftest import AT, Scratch
from .test_git_landing import everything

SEEDS = range(12)
NAMES = [
    b"a.txt",
    b"b.txt",
    b"c.c",
    b"d.u16",
    b"e.bin",
    b"f.rot",
    b"g.union",
    b"h.own",
    b"keep.log",
    b"x.log",
    b"with space",
    b'quo"te\\',
    b"new\nline",
    b"latin-\xe9",
    "é".encode(),
    b"trail ",
    b"#hash",
    b"!bang",
    b"link",
    b"tool.sh",
]
FOLDERS = [b"", b"sub/", b"sub/deep/", b"build/", b"a b/", b"tmp/"]
CONTENTS = [
    b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n",
    b"one\r\ntwo\r\nthree\r\nfour\r\n",
    b"mixed\r\nends\nof lines\r\n",
    b"$Id$\nint main;\n",
    b"$Id: 0123456789012345678901234567890123456789 $\n",
    b"no end of line",
    b"",
    b"\0binary\0\xff\r\n",
    b"tab\tand trailing \n",
]
ATTRIBUTES = [
    "*.txt text",
    "*.txt text eol=crlf",
    "*.txt eol=lf",
    "* text=auto",
    "*.c ident",
    "*.u16 text working-tree-encoding=UTF-16LE",
    "*.bin -text -diff",
    "[attr]odd -text\n*.bin odd",
    "*.rot filter=rot",
    "*.union merge=union",
    "*.own -merge",
    "sub/** -text",
    "/a.txt !text",
    '"with space" text',
]
IGNORED = [
    "*.log",
    "!keep.log",
    "/build/",
    "tmp",
    "**/deep/*.bin",
    "\\#hash",
    "\\!bang",
    "trail\\ ",
    "a?b/",
    "sub/",
    "!sub/",
]
SETTINGS = [("core.autocrlf", "input"), ("core.autocrlf", "true"), ("core.eol", "crlf"), ("core.fileMode", "false")]


class World:
    """One generated repository, changed in the same way for us and for plain git."""

    def __init__(self, scratch: Scratch, seed: int) -> None:
        self.scratch = scratch
        self.chance = random.Random(seed)
        for _ in range(self.chance.randrange(3)):
            scratch.git("config", *self.chance.choice(SETTINGS))
        scratch.git("config", "filter.rot.clean", "tr a-z n-za-m")
        scratch.git("config", "filter.rot.smudge", "tr n-za-m a-z")
        if self.chance.random() < 0.5:
            scratch.write(
                {".git/info/attributes": self.lines(ATTRIBUTES, 1), ".git/info/exclude": self.lines(IGNORED, 2)}
            )
        if self.chance.random() < 0.5:
            scratch.write({"ignore": self.lines(IGNORED, 1), "attributes": self.lines(ATTRIBUTES, 1)}, scratch.home)
            scratch.git("config", "core.excludesFile", str(scratch.home / "ignore"))
            scratch.git("config", "core.attributesFile", str(scratch.home / "attributes"))
        self.change([scratch.path], self.chance.randrange(5, 25))
        self.base = self.committed(scratch.path)

    def lines(self, pool: list[str], most: int) -> str:
        chosen = self.chance.sample(pool, min(len(pool), self.chance.randrange(most + 1)))
        mark = "\ufeff" if self.chance.random() < 0.3 else ""
        return mark + "".join(f"{line}\n" for line in chosen)

    def change(self, roots: list[Path], times: int) -> None:
        """Change the same files in the same way below each of these."""
        for _ in range(times):
            folder = self.chance.choice(FOLDERS)
            kind, content = self.chance.random(), self.chance.choice(CONTENTS)
            name = self.chance.choice(NAMES)
            if kind < 0.08:
                name, content = b".gitattributes", self.lines(ATTRIBUTES, 4).encode()
            elif kind < 0.16:
                name, content = b".gitignore", self.lines(IGNORED, 4).encode()
            elif name.endswith(b".u16"):
                content = content.decode("latin-1").encode("utf-16-le")
            at, executable = self.chance.randrange(len(content) + 1), self.chance.random() < 0.2
            for root in roots:
                self.one(os.fsencode(root) + b"/" + folder + name, kind, content, at, executable=executable)

    @staticmethod
    def one(path: bytes, kind: float, content: bytes, at: int, *, executable: bool) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        there = os.path.lexists(path)
        if 0.2 < kind < 0.35 and there:
            os.unlink(path)
        elif 0.35 < kind < 0.45 and there and not os.path.islink(path):
            os.rename(path, path + b".moved")
        elif path.endswith(b"/link"):
            if there:
                os.unlink(path)
            os.symlink(content.replace(b"\0", b"")[:20] or b"nowhere", path)
        else:
            before = b""
            if there:
                with open(path, "rb") as file:
                    before = file.read()
            with open(path, "wb") as file:
                # Half of the time a file keeps most of what it was.
                file.write(before[:at] + content if 0.5 < kind < 0.75 else content)
            os.chmod(path, 0o755 if executable else 0o644)

    def committed(self, root: Path) -> str:
        self.scratch.git("add", "-A", cwd=root)
        self.scratch.git("commit", "-q", "--allow-empty", "-m", "x", cwd=root)
        return self.scratch.rev("HEAD", cwd=root)

    def plain(self, name: str, commit: str) -> Path:
        path = self.scratch.home / "plain" / name
        self.scratch.git("worktree", "add", "-q", "--detach", str(path), commit)
        return path


def staged(scratch: Scratch, root: Path) -> str | None:
    """The tree that `git add -A` makes, None if git refuses."""
    if subprocess.run(["git", "add", "-A"], cwd=root, capture_output=True, check=False).returncode:
        return None
    return scratch.git("write-tree", cwd=root).strip()


@pytest.mark.parametrize("seed", SEEDS)
def test_checkouts_stagings_merges_and_landings_are_what_git_makes(scratch: Scratch, seed: int) -> None:
    world, git = World(scratch, seed), scratch.repositories
    made = list[str]()
    for name in ("one", "two"):
        path, plain = scratch.workplace(name, world.base), world.plain(name, world.base)
        assert everything(path) == everything(plain)
        world.change([path, plain], world.chance.randrange(2, 12))
        wanted = staged(scratch, plain)
        if wanted is None:
            with pytest.raises(CommitFailed):
                git.commit_workplace(scratch.path, path, world.base, AT, "x")
            return
        commit = git.commit_workplace(scratch.path, path, world.base, AT, "x")
        assert commit.tree == wanted
        again = git.fingerprint(scratch.path, path)
        assert again.tree_hash == wanted
        made.append(commit.commit)

    contributions = [Contribution(subtask_id=n, branch=f"b{n}", commit=commit) for n, commit in enumerate(made)]
    merged = git.integrate(scratch.path, "run", world.base, contributions, AT, "x")
    plain = world.plain("merged", made[0])
    code = subprocess.run(
        ["git", "merge", "-q", "-m", "x", made[1]], cwd=plain, capture_output=True, check=False
    ).returncode
    if code == 0:
        assert merged.conflicts == ()
        assert merged.tree == scratch.rev("HEAD^{tree}", cwd=plain)
    elif scratch.git("ls-files", "-u", cwd=plain):
        assert merged.conflicts

    scratch.git("reset", "-q", "--hard")
    if scratch.status():
        return  # Files that git itself cannot check out so that they are clean.
    landed, followed = git.merge(scratch.path, "main", world.base, merged.commit), world.plain("landed", world.base)
    scratch.git("checkout", "-q", "--detach", merged.commit, cwd=followed)
    if landed.state == "merged":
        moved = scratch.git("diff", "-z", "--no-renames", "--name-only", world.base, merged.commit).split("\0")
        ours, theirs = everything(scratch.path), everything(followed)
        assert {name: ours.get(name) for name in moved} == {name: theirs.get(name) for name in moved}
        assert scratch.rev("main") == merged.commit
        assert scratch.git("diff", "--cached", "--name-only", merged.commit) == ""
    else:
        assert landed.reason == "untracked_would_be_overwritten"
    assert scratch.is_sound()


if shutil.which("git-lfs"):

    def test_large_files_are_taken_into_the_project_and_come_out_of_it_as_with_git_lfs(scratch: Scratch) -> None:
        remote = scratch.home / "remote.git"
        scratch.git("init", "-q", "--bare", str(remote))
        scratch.git("lfs", "install", "--local", "--skip-repo")
        scratch.git("remote", "add", "origin", str(remote))
        base = scratch.commit(
            {".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "a.bin": b"\0one" * 1000}
        )
        path = scratch.workplace("child", base)
        assert (path / "a.bin").read_bytes() == b"\0one" * 1000
        scratch.write({"a.bin": b"\0two" * 1000, "b.bin": b"\0new" * 1000, "README": "two\n"}, path)

        made = scratch.repositories.commit_workplace(scratch.path, path, base, AT, "x")

        assert scratch.git("show", f"{made.commit}:b.bin").startswith("version https://git-lfs")
        scratch.repositories.remove_workplace(scratch.path, path, None)
        assert scratch.repositories.merge(scratch.path, "main", base, made.commit).state == "merged"
        assert scratch.status() == ""
        assert (scratch.path / "a.bin").read_bytes() == b"\0two" * 1000
        assert (scratch.path / "b.bin").read_bytes() == b"\0new" * 1000
        scratch.git("lfs", "fsck")
        scratch.git("push", "-q", "origin", "main")
        clone = scratch.home / "clone"
        scratch.git("clone", "-q", "-b", "main", str(remote), str(clone))
        scratch.git("lfs", "install", "--local", "--skip-repo", cwd=clone)
        scratch.git("lfs", "pull", cwd=clone)
        assert (clone / "b.bin").read_bytes() == b"\0new" * 1000
        scratch.repositories.make_workplace(scratch.path, path, made.commit)
        assert (path / "b.bin").read_bytes() == b"\0new" * 1000

    @pytest.mark.parametrize("how", ["cleaned", "pointers alone"])
    def test_large_files_count_for_the_limit_of_a_commit_too(scratch: Scratch, how: str) -> None:
        scratch.git("lfs", "install", "--local", "--skip-repo")
        base = scratch.commit({".gitattributes": "*.bin filter=lfs -text\n"})
        limits = CommitLimits(file_bytes=10_000, commit_bytes=50_000)
        git = GitRepositories(scratch.home / "scratch", settings=GitSettings(limits=limits))
        path = scratch.workplace("child", base)
        scratch.write({f"{size}.bin": b"\0" * size for size in (20_000, 20_001, 20_002)}, path)
        if how == "pointers alone":
            scratch.git("add", "-A", cwd=path)
            for file in path.glob("*.bin"):
                scratch.git("update-index", "--skip-worktree", file.name, cwd=path)
                file.unlink()

        with pytest.raises(CommitFailed, match=r"60003 bytes; STEERSMAN_MAX_COMMIT_MIB allows 50000"):
            git.commit_workplace(scratch.path, path, base, AT, "x")

    def test_a_large_file_whose_filter_is_not_there_is_named(scratch: Scratch) -> None:
        scratch.git("lfs", "install", "--local", "--skip-repo")
        base = scratch.commit({".gitattributes": "*.bin filter=lfs -text\n"})
        path = scratch.workplace("child", base)
        for way in ("clean", "process", "smudge"):
            scratch.git("config", f"filter.lfs.{way}", "git-lfs-that-is-not-there")
        scratch.write({"a.bin": b"\0one"}, path)

        with pytest.raises(CommitFailed, match=r"a\.bin|lfs"):
            scratch.repositories.commit_workplace(scratch.path, path, base, AT, "x")


def test_a_sparse_checkout_of_the_users_is_one_in_a_workplace_and_after_a_landing(scratch: Scratch) -> None:
    base = scratch.commit({"lib/x": "x\n", "app/y": "y\n"})
    scratch.git("sparse-checkout", "set", "app")
    path = scratch.workplace("child", base)
    assert not (path / "lib").exists()
    assert scratch.status(path) == ""
    scratch.write({"app/y": "two\n", "app/new": "new\n"}, path)

    made = scratch.repositories.commit_workplace(scratch.path, path, base, AT, "x")

    assert scratch.git("diff", "--name-only", base, made.commit).split() == ["app/new", "app/y"]
    assert scratch.repositories.merge(scratch.path, "main", base, made.commit).state == "merged"
    assert scratch.status() == ""
    assert not (scratch.path / "lib").exists()
    assert (scratch.path / "app/new").exists()
