"""A real git repository for each test, and the real git to compare with, deaf to this machine's configuration."""

import os
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from steersman.adapters.git.repositories import GitRepositories

AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


class Scratch:
    """A repository on branch `main`, worked on with the real git."""

    def __init__(self, home: Path, patch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.patch = patch
        self.path = home / "repo"
        self.repositories = GitRepositories(home / "scratch")
        self.path.mkdir()
        self.git("init", "-q", "-b", "main", "--template=")

    def git(self, *args: str, cwd: Path | None = None, stdin: str = "", ok: tuple[int, ...] = (0,)) -> str:
        """Run git and return what it says; bytes that are no UTF-8 come as surrogates."""
        done = subprocess.run(
            ["git", *args], cwd=cwd or self.path, input=os.fsencode(stdin), capture_output=True, check=False
        )
        assert done.returncode in ok, f"git {args}: {done.stderr.decode(errors='replace')}"
        return os.fsdecode(done.stdout)

    def write(self, files: Mapping[str, str | bytes | None], root: Path | None = None) -> None:
        """Write files, or with None delete them."""
        for name, content in files.items():
            path = (root or self.path) / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def commit(self, files: Mapping[str, str | bytes | None], root: Path | None = None) -> str:
        """Commit files with the real git and return the commit."""
        self.write(files, root)
        self.git("add", "-A", cwd=root)
        self.git("commit", "-q", "--allow-empty", "-m", "A commit of the user's", cwd=root)
        return self.rev("HEAD", cwd=root)

    def rev(self, name: str, cwd: Path | None = None) -> str:
        """Return what a name stands for, "" if nothing."""
        return self.git("rev-parse", "-q", "--verify", name, cwd=cwd, ok=(0, 1)).strip()

    def status(self, root: Path | None = None) -> str:
        """Return what differs from HEAD in a checkout, "" if nothing."""
        return self.git("status", "--porcelain", cwd=root)

    def workplace(self, name: str = "child", base: str | None = None) -> Path:
        """Make a workplace."""
        path = self.home / "worktrees" / name
        self.repositories.make_workplace(self.path, path, base or self.rev("HEAD"))
        return path

    def branch_off(self, name: str, files: Mapping[str, str | bytes | None], base: str) -> str:
        """Commit files on a branch of their own with the real git, as a child run would have; return the commit."""
        path = self.home / "made" / name
        self.git("worktree", "add", "-q", "--force", "-b", name, str(path), base)
        made = self.commit(files, path)
        self.git("worktree", "remove", "--force", str(path))
        return made

    def is_sound(self) -> bool:
        """Ask git whether every object is whole and allowed; fails with git's words if not."""
        self.git("fsck", "--strict", "--no-dangling")
        return not list(self.path.rglob("*.lock"))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    """A repository with one commit."""
    for name in [name for name in os.environ if name.startswith(("GIT_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    # In a box of a service that is root, workplaces belong to somebody else: these tests look into them all the same.
    (tmp_path / "gitconfig").write_text("[safe]\n\tdirectory = *\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "A User")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "user@example.org")
        monkeypatch.setenv(f"GIT_{role}_DATE", "2026-01-01T00:00:00Z")
    made = Scratch(tmp_path, monkeypatch)
    made.commit({"README": "one\n", "src/a.txt": "a\n", "src/b.txt": "b\n"})
    return made


@pytest.fixture
def at() -> datetime:
    """The time of every commit of ours in these tests."""
    return AT
