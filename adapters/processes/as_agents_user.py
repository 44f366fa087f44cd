"""
What a service that is root starts in the place of bubblewrap: it becomes the agents' user, and then bubblewrap.

That user may pass through no directory which is root's alone, so everything that the box shows is bound to a stage
first, in a mount namespace of this process's own: nobody else sees it, and it is gone with the box. Standard library
only, and little of it, since it is imported for each box. Run as `python -I -S`:
as_agents_user.py UID GID PROGRAM SOURCE… -- WORD…, where PROGRAM is the last source, or below it at that path.
"""

import ctypes
import os
import sys

CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SIGKILL = 9
#: Hidden under the stage, in this namespace alone.
STAGE = "/tmp"
libc = ctypes.CDLL(None, use_errno=True)


def must(result: int, what: str) -> None:
    """Raise OSError if a call of the C library failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount, or raise OSError."""
    words = [word.encode("utf-8", "surrogateescape") if word is not None else None for word in (source, target, kind)]
    must(libc.mount(*words, ctypes.c_ulong(flags), data.encode() if data else None), f"mount {target}")


def set_stage(sources: list[str]) -> None:
    """On return source N is at the stage's N, for everybody in this namespace."""
    must(libc.unshare(CLONE_NEWNS), "a mount namespace")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    # Opened before the stage hides /tmp, where some of them may be.
    opened = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source in sources]
    mount("tmpfs", STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    for number, descriptor in enumerate(opened):
        place = f"{STAGE}/{number}"
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.mkdir(place, 0o755)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        mount(f"/proc/self/fd/{descriptor}", place, None, MS_BIND | MS_REC)
        os.close(descriptor)


def main(arguments: list[str]) -> int:
    """Become bubblewrap; return only if that fails."""
    uid, gid, program = int(arguments[0]), int(arguments[1]), arguments[2]
    end = arguments.index("--")
    sources, words = arguments[3:end], arguments[end + 1 :]
    parent = os.getppid()
    try:
        set_stage(sources)
        os.umask(0o022)
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        must(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
        # Forgotten when the user changed.
        must(libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "the signal for the parent's death")
        if os.getppid() != parent:
            return 127
        os.chdir("/")
        os.execv(os.path.join(f"{STAGE}/{len(sources) - 1}", program).rstrip("/"), ["bwrap", *words])
    except OSError as error:
        sys.stderr.write(f"steersman: no box: {error.strerror or error}\n")
    return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
