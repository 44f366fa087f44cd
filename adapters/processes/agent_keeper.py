"""
The keeper of one agent: nothing that the agent starts outlives the service, or escapes a stop or a kill.

A process of its own with nothing but the standard library, so that it starts at once and stays small. It
reads commands as JSON lines from a control pipe and reports as JSON lines on a status pipe; the agent gets
the keeper's standard streams and the service talks to the agent directly.

Every descendant is found through /proc: both halves of the keeper are *subreapers*, so that a process whose
parent has died becomes their child, whatever session it is in and whatever environment it has.

Who dies, and what follows:

    the service         the control pipe closes: everything is killed, the keeper ends
    the service hangs   nobody extends the deadline: the same
    the inner half      the agent has PDEATHSIG; the rest become children of the guard, which kills them
    the guard           the inner half gets SIGTERM (PDEATHSIG), kills everything and ends
    both at one moment  a boxed agent dies with all that it started: its box is a PID namespace, whose first
                        process has PDEATHSIG. Without a box, a grandchild that left its session lives on

Linux only: /proc, prctl and pidfds have no portable twin.
"""

import contextlib
import ctypes
import errno
import json
import math
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

from .family import ROUND_SECONDS, Sweep, kill_family, reap

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: Between two looks at /proc, at most, while something is to be stopped or killed.
SLOWEST_ROUND_SECONDS = 0.05
#: A line on the control pipe is a command of ours, with an environment in it at most.
MAX_COMMAND_BYTES = 4 * 1024 * 1024


def wake(_number: int, _frame: object) -> None:
    """Nothing: that the signal came is written to the wake-up pipe."""


class Keeper:
    """The inner half: starts the agent and does what the control pipe says, until it closes."""

    def __init__(self, control: int, status: int) -> None:
        self.control = control
        self.status = status
        self.agent = 0
        self.deadline: float | None = None
        #: What takes several rounds: stop, continue or kill, and the number of the command.
        self.goal: Sweep | None = None
        self.goal_number = 0
        self.leaving = False
        self.unread = b""
        self.woken, wakes = os.pipe()
        for descriptor in (self.woken, wakes, status, control):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, wake)
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._leave())

    def run(self) -> None:
        """Serve until the service is gone or wants no more; on return no descendant is alive."""
        while True:
            self._wait()
            self._read_commands()
            has_buried = self._bury()
            if self.deadline is not None and time.monotonic() >= self.deadline and not self.leaving:
                self._report(event="deadline")
                self._leave()
            if self.goal is not None and self.goal.round(has_buried=has_buried):
                self._finish(self.goal)
            if self.leaving and self.goal is None:
                return

    def _wait(self) -> None:
        timeout = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        if self.goal is not None:
            timeout = min(SLOWEST_ROUND_SECONDS, ROUND_SECONDS * self.goal.rounds)
        elif self.leaving:
            timeout = 0
        watch = select.poll()
        for descriptor in (self.woken,) if self.leaving else (self.woken, self.control):
            watch.register(descriptor, select.POLLIN)
        milliseconds = None if timeout is None else math.ceil(timeout * 1000)
        if self.woken in dict(watch.poll(milliseconds)):
            os.read(self.woken, 4096)

    def _read_commands(self) -> None:
        while not self.leaving:
            try:
                data = os.read(self.control, 65536)
            except BlockingIOError:
                break
            if not data or len(self.unread) > MAX_COMMAND_BYTES:
                self._leave()  # the service is gone: so is everything that it started
                return
            self.unread += data
        *lines, self.unread = self.unread.split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, command: dict[str, Any]) -> None:
        verb, number = command["do"], command.get("id", 0)
        if verb == "start":
            self._start(command["path"], command["argv"], command["cwd"], command["env"])
        elif verb == "extend":
            self.deadline = command["until"]
        elif self.goal is not None and self.goal.verb == "kill":
            self._report(id=number, failed="being_killed")
        else:
            if self.goal is not None:
                self._report(id=self.goal_number, failed=f"superseded_by_{verb}")
            self.goal, self.goal_number = Sweep(verb), number

    def _leave(self) -> None:
        if not self.leaving:
            self.leaving = True
            self.goal, self.goal_number = Sweep("kill"), 0

    def _finish(self, goal: Sweep) -> None:
        self._report(id=self.goal_number, done=goal.verb, pids=sorted(goal.touched), refused=sorted(goal.refused))
        self.goal = None

    def _bury(self) -> bool:
        """Bury the dead; True if there were any."""
        buried = reap()
        if self.agent in buried:
            self._report(event="exited", code=buried[self.agent])
            self.agent = 0
        return bool(buried)

    def _report(self, **what: Any) -> None:
        # A full pipe means that nobody reads: the service is about to be killed, or is dead already.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self.status, json.dumps(what).encode() + b"\n")

    def _start(self, path: str, argv: list[str], cwd: str, env: dict[str, str]) -> None:
        failure, fails = os.pipe()
        keeper = os.getpid()
        pid = os.fork()
        if pid == 0:
            become_agent(fails, keeper, path, argv, cwd, env)
        self.agent = pid
        os.close(fails)
        let_go_of_streams()
        with os.fdopen(failure, "rb") as file:
            message = file.read()  # closed by exec: empty means that the agent runs
        if message:
            self._report(event="not_started", message=message.decode(errors="replace"))
        else:
            self._report(event="started", pid=pid)


def become_agent(fails: int, keeper: int, path: str, argv: list[str], cwd: str, env: dict[str, str]) -> NoReturn:
    """Turn this freshly forked process into the agent, or say on the pipe why that failed."""
    stage = "cwd"
    try:
        os.setsid()  # a signal that the agent sends to its own group must not reach the keeper
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(127)  # the keeper died before the line above: nobody would kill us
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(cwd)
        stage = "exec"
        os.execve(path, argv, env)
    except BaseException as error:  # noqa: BLE001 -- a fork must never return into the keeper's own code
        os.write(fails, f"{stage}: {error}".encode()[:1000])
    os._exit(127)


def prctl(option: int, value: int) -> None:
    """Set a property of this process, or raise OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")


def let_go_of_streams() -> None:
    """Give up the agent's streams: whoever reads them must see the end when the agent's side is closed."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.close(null)


def keep(control: int, status: int, guard: int) -> None:
    """The inner half, from its fork to its end."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = Keeper(control, status)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == guard:
        keeper.run()


def stand_guard(inner: int, status: int) -> None:
    """The outer half: wait for the inner one's end, however it comes; on return no descendant is alive."""
    let_go_of_streams()
    code: int | None = None
    while code is None:
        pid, ended = os.waitpid(-1, 0)
        code = os.waitstatus_to_exitcode(ended) if pid == inner else None
    kill_family()
    if code != 0:
        with contextlib.suppress(OSError):
            os.write(status, json.dumps({"event": "keeper_lost", "code": code}).encode() + b"\n")


def lower(descriptor: int) -> int:
    """Return the descriptor under the lowest number that is free. It is not inherited by the agent."""
    number = os.dup(descriptor)
    os.close(descriptor)
    return number


def main(arguments: list[str]) -> int:
    """
    Run a keeper: `agent_keeper CONTROL_FD STATUS_FD [FD…]`. The first command on the control pipe starts the agent.

    Further descriptors stay open until both halves have ended, and are not the agent's: a lock on one of them shows
    whoever looks from outside that something is still kept here.
    """
    if sys.platform != "linux":
        sys.stderr.write("the agent keeper needs Linux: /proc, prctl and pidfds\n")
        return errno.ENOSYS
    # The service's numbers may be beyond what programs count on; ours are the lowest, and nobody else's.
    control, status, *_ = map(lower, map(int, arguments))
    with contextlib.suppress(PermissionError):
        os.setsid()  # refused when we lead a session already
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()
    inner = os.fork()
    if inner == 0:
        keep(control, status, guard)
        return 0
    os.close(control)
    stand_guard(inner, status)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
