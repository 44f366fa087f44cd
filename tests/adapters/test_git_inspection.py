"""Which repositories may serve, asked at every use: what leads elsewhere, or is not whole, is refused by its name."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from steersman.adapters.git.inspection import Rules
from steersman.adapters.git.repositories import GitRepositories, GitSettings
from steersman.application.ports.git import RepositoryUnusable

from .conftest import AT, Scratch


def give_away(scratch: Scratch, path: Path) -> None:
    """Have a directory belong to another user: root may give it away, to anybody else it looks as if."""
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        return
    real = os.stat

    def stat(found: str | Path) -> os.stat_result:
        said = real(found)
        return os.stat_result((*said[:4], 65534, *said[5:])) if Path(found) == path else said

    scratch.patch.setattr("steersman.adapters.git.inspection.os.stat", stat)


def borrow(scratch: Scratch) -> None:
    other = scratch.home / "lender"
    scratch.git("clone", "-q", "--bare", str(scratch.path), str(other))
    scratch.write({".git/objects/info/alternates": f"{other}/objects\n"})
    give_away(scratch, other / "objects")


def sha256(scratch: Scratch) -> None:
    os.rename(scratch.path, scratch.home / "sha1")
    scratch.path.mkdir()
    scratch.git("init", "-q", "-b", "main", "--object-format=sha256")
    scratch.commit({"README": "one\n"})


CASES: dict[str, tuple[str, Callable[[Scratch], object]]] = {
    "another worktree": ("worktree_elsewhere", lambda scratch: scratch.git("config", "core.worktree", "/etc")),
    "a worktree above": ("worktree_elsewhere", lambda scratch: scratch.git("config", "core.worktree", "../..")),
    "an include": ("configuration_elsewhere", lambda scratch: scratch.git("config", "include.path", "/etc/passwd")),
    "an include with a condition": (
        "configuration_elsewhere",
        lambda scratch: scratch.git("config", "includeIf.gitdir:/.path", "more"),
    ),
    "a promise": ("partial_clone", lambda scratch: scratch.git("config", "remote.origin.promisor", "true")),
    "a filter": ("partial_clone", lambda scratch: scratch.git("config", "extensions.partialClone", "origin")),
    "alternates of another owner": ("borrows_elsewhere", borrow),
    "alternates that are not there": (
        "borrows_elsewhere",
        lambda scratch: scratch.write({".git/objects/info/alternates": "/nowhere/objects\n"}),
    ),
    "another owner": ("other_owner", lambda scratch: give_away(scratch, scratch.path)),
    "another owner of its git": ("other_owner", lambda scratch: give_away(scratch, scratch.path / ".git")),
    "SHA-256": ("unsupported_repository", sha256),
    "a replaced commit": (
        "history_replaced",
        lambda scratch: scratch.git("replace", "--graft", scratch.commit({"more": "1\n"})),
    ),
    "a packed replacement": (
        "history_replaced",
        lambda scratch: (
            scratch.git("replace", "--graft", scratch.commit({"more": "1\n"})),
            scratch.git("pack-refs", "--all"),
        ),
    ),
    "a grafted commit": (
        "history_replaced",
        lambda scratch: scratch.write({".git/info/grafts": f"{scratch.commit({'more': 'x'})}\n"}),
    ),
    "a branch in the way": ("branch_in_the_way", lambda scratch: scratch.git("branch", "steersman")),
    "a packed branch in the way": (
        "branch_in_the_way",
        lambda scratch: (scratch.git("branch", "steersman"), scratch.git("pack-refs", "--all")),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_leads_elsewhere_or_is_not_whole_is_refused_by_name_at_registration_and_at_use(
    scratch: Scratch, case: str
) -> None:
    code, change = CASES[case]
    assert scratch.repositories.inspect(scratch.path).branch == "main"
    change(scratch)

    for call in (
        lambda: scratch.repositories.inspect(scratch.path),
        lambda: scratch.repositories.tip(scratch.path, "main"),
    ):
        with pytest.raises(RepositoryUnusable) as refused:
            call()
        assert refused.value.code == code
        assert str(scratch.home) in str(refused.value)


def allowing(scratch: Scratch, *roots: Path) -> GitRepositories:
    return GitRepositories(scratch.home / "scratch", settings=GitSettings(rules=Rules(roots=roots)))


def test_only_what_is_below_an_allowed_directory_is_opened_also_where_it_leads_elsewhere_later(
    scratch: Scratch,
) -> None:
    allowed = scratch.home / "allowed"
    allowed.mkdir()
    (scratch.home / "allowed-too").mkdir()
    inside = allowed / "project"
    scratch.git("clone", "-q", str(scratch.path), str(inside))
    git = allowing(scratch, allowed)

    assert git.inspect(inside).path == inside
    for path in (scratch.path, scratch.home / "allowed-too/../repo"):
        with pytest.raises(RepositoryUnusable) as refused:
            git.inspect(path)
        assert refused.value.code == "repository_not_allowed"
        assert "STEERSMAN_REPOSITORIES" in str(refused.value)
    inside.rename(allowed / "moved")
    inside.symlink_to(scratch.path)
    for call in (lambda: git.inspect(inside), lambda: git.tip(inside, "main"), lambda: git.branches(inside)):
        with pytest.raises(RepositoryUnusable) as refused:
            call()
        assert refused.value.code == "repository_not_allowed"


def test_a_linked_worktree_or_borrowed_objects_outside_of_the_allowed_directories_are_refused(scratch: Scratch) -> None:
    allowed = scratch.home / "allowed"
    scratch.git("worktree", "add", "-q", "-b", "linked", str(allowed / "linked"))
    scratch.git("clone", "-q", "--shared", str(scratch.path), str(allowed / "shared"))
    git = allowing(scratch, allowed)

    for name, code in (("linked", "repository_not_allowed"), ("shared", "borrows_elsewhere")):
        with pytest.raises(RepositoryUnusable) as refused:
            git.inspect(allowed / name)
        assert refused.value.code == code
    assert allowing(scratch, allowed, scratch.path).inspect(allowed / "shared").branch == "main"


@pytest.mark.parametrize("setting", ["core.bigFileThreshold=1", "pack.windowMemory=1g", "pack.deltaCacheSize=64m"])
def test_settings_about_memory_keep_no_repository_from_serving(scratch: Scratch, setting: str) -> None:
    scratch.git("config", *setting.split("="))
    path = scratch.workplace()
    scratch.write({"new": "new\n"}, path)

    made = scratch.repositories.commit_workplace(scratch.path, path, scratch.rev("main"), AT, "x")

    assert scratch.repositories.merge(scratch.path, "main", scratch.rev("main"), made.commit).state == "merged"


def test_no_repository_chooses_what_runs_outside_of_a_box(scratch: Scratch) -> None:
    ran = scratch.home / "ran"
    for name in ("core.fsmonitor", "core.sshCommand", "core.pager", "core.alternateRefsCommand", "diff.external"):
        scratch.git("config", name, f"touch {ran}; false")
    scratch.write({".git/info/attributes": "* diff=own filter=own merge=own\n"})
    for name in ("diff.own.command", "diff.own.textconv", "merge.own.driver", "filter.own.process"):
        scratch.git("config", name, f"touch {ran}; false")
    for hook in ("reference-transaction", "post-index-change", "pre-auto-gc", "post-merge"):
        scratch.write({f".git/hooks/{hook}": f"#!/bin/sh\ntouch {ran}\n"})
        (scratch.path / ".git/hooks" / hook).chmod(0o755)
    base = scratch.rev("main")
    head = scratch.git(
        "-c", "core.hooksPath=/dev/null", "commit-tree", "-p", base, "-m", "x", f"{base}^{{tree}}"
    ).strip()
    ran.unlink(missing_ok=True)

    scratch.repositories.inspect(scratch.path)
    scratch.repositories.diff(scratch.path, base, head, 1000)
    scratch.repositories.changed_files(scratch.path, base, head)
    scratch.repositories.file(scratch.path, base, head, "README")
    scratch.repositories.tree(scratch.path, base, head)
    scratch.repositories.point_branch(scratch.path, "other", None, head)
    scratch.repositories.branches(scratch.path)

    assert not ran.exists()
