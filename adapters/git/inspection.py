"""Which repositories may serve: asked at registration and again at every use, so that what leads elsewhere later is refused."""

import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from dulwich.errors import NotGitRepository
from dulwich.object_store import DiskObjectStore
from dulwich.repo import Repo, UnsupportedExtension, UnsupportedVersion

from ...application.ports.git import RepositoryUnusable
from .configuration import Settings, content, listed
from .program import Program

#: How many repositories one may borrow from by way of others, as in git.
BORROWED_DEPTH = 5
EXTENSIONS = frozenset({"worktreeconfig", "objectformat", "relativeworktrees", "noop", "preciousobjects"})


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that may serve, for one call."""

    #: Its checkout's top.
    root: str
    #: The git directory of that checkout, and the one that all its checkouts share.
    control: str
    common: str
    settings: tuple[tuple[str, str], ...]
    #: Directories of objects: its own, and those that it borrows.
    objects: tuple[str, ...]
    repo: Repo
    git: Program


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Where repositories may be: below these directories; without any, where everything belongs to the service's user."""

    roots: tuple[Path, ...] | None = None

    def check(self, path: str) -> None:
        """Raise RepositoryUnusable unless the path, all links resolved, is where repositories may be."""
        real = Path(os.path.realpath(path))
        if self.roots is not None and not any(real.is_relative_to(os.path.realpath(root)) for root in self.roots):
            raise RepositoryUnusable(
                "repository_not_allowed",
                f"{path} is not below a directory of STEERSMAN_REPOSITORIES. Add its directory there and start again.",
            )
        owner = os.stat(real).st_uid
        if owner != os.geteuid():
            raise RepositoryUnusable(
                "other_owner",
                f"{path} belongs to another user (id {owner}). Run the service as that user, or give it the files.",
            )


@contextmanager
def opened(path: Path, rules: Rules) -> Generator[Opened]:
    """Open a repository for one call. Raises RepositoryUnusable."""
    root = os.path.realpath(path)
    if not os.path.isdir(root):
        raise RepositoryUnusable("workspace_missing", f"{path} is not a directory")
    rules.check(root)
    try:
        control, common = _directories(root)
        for directory in {control, common}:
            rules.check(directory)
        settings = tuple(_settings(control, common))
        _check_settings(path, root, control, settings)
        objects = tuple(_borrowed(path, os.path.join(common, "objects"), rules))
        # With no setting of the repository's: git knows more ways to write a number than the library does.
        repo = Repo(root, object_store=DiskObjectStore(objects[0]))
    except (UnsupportedVersion, UnsupportedExtension) as error:
        raise RepositoryUnusable("unsupported_repository", f"{path} needs a newer git format: {error}") from error
    except (NotGitRepository, OSError, ValueError) as error:
        # ValueError: `.git` or its configuration is no such file.
        raise RepositoryUnusable("not_a_repository", f"{path} is not the top of a git repository: {error}") from error
    with repo:
        yield Opened(
            root=root,
            control=control,
            common=common,
            settings=settings,
            objects=objects,
            repo=repo,
            git=Program(common),
        )


def _directories(root: str) -> tuple[str, str]:
    """Return the git directory of a checkout, and the one that all share. Raises ValueError."""
    control = os.path.join(root, ".git")
    if os.path.isfile(control):
        said = content(control) or b""
        if not said.startswith(b"gitdir: "):
            raise ValueError("`.git` names no directory")
        control = os.path.join(root, os.fsdecode(said.removeprefix(b"gitdir: ").rstrip(b"\n")))
    elif not os.path.isdir(control):
        # A bare repository has no checkout.
        control = root
    control = os.path.realpath(control)
    shared = content(os.path.join(control, "commondir"))
    common = os.path.realpath(os.path.join(control, os.fsdecode(shared.strip()))) if shared else control
    if not os.path.isfile(os.path.join(control, "HEAD")) and not os.path.islink(os.path.join(control, "HEAD")):
        raise ValueError("there is no HEAD")
    if not os.path.isdir(os.path.join(common, "objects")):
        raise ValueError("there are no objects")
    return control, common


def _settings(control: str, common: str) -> Iterator[tuple[str, str]]:
    yield from listed(os.path.join(common, "config")) if os.path.exists(os.path.join(common, "config")) else ()
    own = os.path.join(control, "config.worktree")
    if os.path.exists(own):
        yield from listed(own)


def _check_settings(path: Path, root: str, control: str, settings: Settings) -> None:
    named = dict(settings)
    if any(name.startswith(("include.", "includeif.")) for name, _ in settings):
        raise RepositoryUnusable(
            "configuration_elsewhere", f"The configuration of {path} includes other files. Write what they say into it."
        )
    tree = named.get("core.worktree")
    if tree is not None and os.path.realpath(os.path.join(control, tree)) != root:
        raise RepositoryUnusable(
            "worktree_elsewhere", f"`core.worktree` of {path} leads elsewhere. Unset it, or name the directory itself."
        )
    promised = [name for name, _ in settings if name.startswith("remote.") and name.endswith(".promisor")]
    if promised or "extensions.partialclone" in named:
        raise RepositoryUnusable(
            "partial_clone",
            f"{path} is a partial clone: some of its files are only at its origin. Clone it whole, without --filter.",
        )
    if named.get("extensions.objectformat", "sha1") != "sha1" or named.get("extensions.refstorage", "files") != "files":
        raise RepositoryUnusable("unsupported_repository", f"{path} does not use SHA-1 and files for refs")
    unknown = [
        name for name in named if name.startswith("extensions.") and name[11:] not in (*EXTENSIONS, "refstorage")
    ]
    if unknown:
        raise RepositoryUnusable("unsupported_repository", f"{path} needs a newer git format: {unknown[0]}")


def _borrowed(path: Path, objects: str, rules: Rules, depth: int = 0) -> Iterator[str]:
    """Yield the directory of objects and those that it borrows from, each where repositories may be."""
    objects = os.path.realpath(objects)
    if not os.path.isdir(objects):
        raise RepositoryUnusable("borrows_elsewhere", f"{path} borrows objects from {objects}, which is not there.")
    try:
        rules.check(objects)
    except RepositoryUnusable as unusable:
        raise RepositoryUnusable(
            "borrows_elsewhere", f"{path} borrows objects from {objects}: {unusable} Or: git repack -a -d"
        ) from unusable
    yield objects
    if depth == BORROWED_DEPTH:
        return
    for line in (content(os.path.join(objects, "info", "alternates")) or b"").split(b"\n"):
        if line and not line.startswith(b"#"):
            yield from _borrowed(path, os.path.join(objects, os.fsdecode(line)), rules, depth + 1)


def checkouts(opened: Opened) -> Sequence[tuple[str, str]]:
    """
    Return every checkout of a repository, each as its top and its git directory: the one that was opened first. The top
    is empty where nobody knows it.
    """
    found = {opened.control: opened.root}
    if dict(opened.settings).get("core.bare") != "true":
        # One that is elsewhere than around its git directory cannot be found from there.
        is_around = os.path.basename(opened.common) == ".git"
        found.setdefault(opened.common, os.path.dirname(opened.common) if is_around else "")
    for directory in admin_entries(opened.common):
        if root := root_of(directory):
            found.setdefault(os.path.realpath(directory), root)
    return [(root, directory) for directory, root in found.items()]


def admin_entries(common: str) -> Sequence[str]:
    """Return the directories that git keeps for linked checkouts."""
    base = os.path.join(common, "worktrees")
    with suppress(OSError):
        return [os.path.join(base, name) for name in sorted(os.listdir(base))]
    return []


def root_of(directory: str) -> str | None:
    """Return the checkout that such a directory says it belongs to."""
    said = content(os.path.join(directory, "gitdir"))
    return (
        None
        if said is None
        else os.path.realpath(os.path.dirname(os.path.join(directory, os.fsdecode(said.rstrip(b"\n")))))
    )


def is_directory(path: str) -> bool:
    """Return whether a directory, and no link to one, stands there."""
    with suppress(OSError):
        return stat.S_ISDIR(os.lstat(path).st_mode)
    return False
