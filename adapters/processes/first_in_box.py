"""
The first program in a box: it sets the limits, opens the way out if there is one, and becomes the command.

A program of ours, run as this one is, goes on in this interpreter: to start another one costs more than all that is done
here. Standard library only, run as `python -I -S`:
first_in_box.py PROCESSES MEMORY FILE OPEN [SOCKET PORT=ADDRESS…] -- COMMAND…
"""

import ctypes
import os
import resource
import sys

KEYCTL_JOIN_SESSION_KEYRING = 1
#: The number of the system call, by machine.
KEYCTL = {"x86_64": 250, "aarch64": 219}
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
FORWARDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "forwarder.py")


def limit(kind: int, number: int) -> None:
    """Let nobody from here on have more than that of a kind; less, where the system gives less."""
    hard = resource.getrlimit(kind)[1]
    most = number if hard == resource.RLIM_INFINITY else min(number, hard)
    resource.setrlimit(kind, (most, most))


def leave_session_keyring() -> None:
    """Give up the kernel's keys that whoever started the service has in the session; a kernel without them is no fault."""
    if (call := KEYCTL.get(os.uname().machine)) is not None:
        ctypes.CDLL(None).syscall(call, KEYCTL_JOIN_SESSION_KEYRING, None, 0, 0, 0)


def open_way_out(words: list[str]) -> None:
    """On return every port is listened on, by a process that is a stranger to the command."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork():
            os._exit(0)
        os.set_inheritable(writing, True)
        os.execv(sys.executable, [sys.executable, "-I", "-S", FORWARDER, str(writing), *words])
    os.waitpid(child, 0)
    os.close(writing)
    if not os.read(reading, 1):
        raise OSError("the way out of the box could not be opened")
    os.close(reading)


def is_ours(command: list[str]) -> bool:
    """Return whether this interpreter would be started anew for a program that lies beside this one."""
    return command[:3] == [sys.executable, "-I", "-S"] and command[3].startswith(OURS)


def go_on(command: list[str]) -> None:
    """Run a program of Python's as if it had been started with these words."""
    sys.argv = command
    with open(command[0], "rb") as file:
        program = compile(file.read(), command[0], "exec")
    exec(program, {"__name__": "__main__", "__file__": command[0]})  # noqa: S102


def main(arguments: list[str]) -> int:
    """Become the command; return only if that fails."""
    end = arguments.index("--")
    numbers, way_out, command = arguments[:4], arguments[4:end], arguments[end + 1 :]
    kinds = (resource.RLIMIT_NPROC, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
    try:
        leave_session_keyring()
        if way_out:
            open_way_out(way_out)
        for kind, number in zip(kinds, numbers, strict=True):
            limit(kind, int(number))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if not is_ours(command):
            os.execv(command[0], command)
    except OSError as error:
        sys.stderr.write(f"steersman: {command[0]} does not start: {error.strerror or error}\n")
        return 126
    go_on(command[3:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
