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
    both at one moment  the agent dies by PDEATHSIG; a grandchild that left its session lives on. Only a
                        PID namespace or a control group would close this, and neither is ours to make everywhere

Linux only: /proc, prctl and pidfds have no portable twin.
"""

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import sys
import time
from typing import Any, NamedTuple, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: Between two looks at /proc while something is to be stopped or killed.
ROUND_SECONDS = 0.002
SLOWEST_ROUND_SECONDS = 0.05
#: A process that stops itself again and again does not keep `continue` from returning.
CONTINUE_ROUNDS = 200
#: A line on the control pipe is a command of ours, with an environment in it at most.
MAX_COMMAND_BYTES = 4 * 1024 * 1024


class Process(NamedTuple):
    """One line of the process table. The start time tells a process from a later one with the same pid."""

    pid: int
    ppid: int
    state: str
    started: str

    @property
    def is_dead(self) -> bool:
        return self.state in "ZX"


class Family(NamedTuple):
    """All descendants of the keeper at one look, and what that look could not place."""

    members: tuple[Process, ...]
    #: Processes whose parent died during the look: they may be ours, the next look will tell.
    unplaced: frozenset[tuple[int, int]]

    @property
    def alive(self) -> tuple[Process, ...]:
        return tuple(member for member in self.members if not member.is_dead)

    def is_the_same_as(self, other: "Family | None") -> bool:
        """Whether nothing was born, died or was adopted between two looks: only then is a look to be believed."""
        return (
            other is not None
            and self.unplaced == other.unplaced
            and {(m.pid, m.started) for m in self.alive} == {(m.pid, m.started) for m in other.alive}
        )


def read_process(path: str) -> Process | None:
    """Return what a `stat` file of /proc says, None if the process is gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            line = file.read()
    except OSError:
        return None
    # The command's name may itself hold spaces and parentheses: only the last one ends it.
    pid, _, rest = line.partition(" ")
    fields = rest.rpartition(")")[2].split()
    return Process(int(pid), int(fields[1]), fields[0], fields[19]) if len(fields) > 19 else None


def look(root: int) -> Family:
    """Return the family of *root*, as one pass over /proc shows it."""
    table: dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := read_process(f"/proc/{name}/stat")):
            table[process.pid] = process
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process)
    members: list[Process] = []
    parents = [root]
    while parents:
        found = children.get(parents.pop(), [])
        members += found
        parents += [process.pid for process in found]
    unplaced = frozenset((p.pid, p.ppid) for p in table.values() if p.ppid and p.ppid not in table)
    return Family(tuple(members), unplaced)


def is_stopped(process: Process, family: Family) -> bool:
    """Whether no thread of the process can run. The leader alone is not asked: threads stop one by one."""
    if process.state not in "TtD":
        return False
    states: list[str] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            if seen := read_process(f"/proc/{process.pid}/task/{thread}/stat"):
                states.append(seen.state)
    if all(state in "TtZX" for state in states):
        return True
    return all(state in "TtZXD" for state in states) and waits_for_a_stopped_vfork(process, family)


def waits_for_a_stopped_vfork(process: Process, family: Family) -> bool:
    """
    Whether the process waits inside vfork() for a child that is stopped itself, between vfork and exec.

    Such a parent sleeps uninterruptibly and takes its own SIGSTOP only afterwards: waiting for it would be for
    ever. Until then the child runs in the parent's memory, so that both have the same size.
    """
    size = memory_size(process.pid)
    children = [m for m in family.members if m.ppid == process.pid and m.state in "Tt"]
    return size is not None and any(memory_size(child.pid) == size for child in children)


def memory_size(pid: int) -> str | None:
    """Return the size of a process's address space, None if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return file.read().partition(" ")[0]
    return None


def send(process: Process, number: signal.Signals) -> bool:
    """Signal exactly this process, never a later one with its pid. False if we may not (it changed its user)."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    except OSError:
        handle = -1  # a kernel without pidfds: the check below is the best there is
    try:
        now = read_process(f"/proc/{process.pid}/stat")
        if now is None or now.started != process.started:
            return True
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(process.pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def reap() -> dict[int, int]:
    """Bury every dead child; return pid -> exit code (negative: the signal that killed it)."""
    buried: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            buried[found[0]] = os.waitstatus_to_exitcode(found[1])
    return buried


def kill_family() -> None:
    """On return no descendant of this process is alive (those that changed their user excepted)."""
    before: Family | None = None
    refused: set[int] = set()
    while True:
        family = look(os.getpid())
        alive = [member for member in family.alive if member.pid not in refused]
        refused.update(member.pid for member in alive if not send(member, signal.SIGKILL))
        reap()
        if not alive and family.is_the_same_as(before):
            return
        before = family
        time.sleep(ROUND_SECONDS)


class Goal:
    """A command that takes several looks at /proc: stop, continue or kill."""

    def __init__(self, number: int, verb: str) -> None:
        self.number = number
        self.verb = verb
        self.rounds = 0
        self.before: Family | None = None
        self.touched: set[int] = set()
        self.refused: set[int] = set()

    def advance(self) -> bool:
        """Do one round; True once two looks in a row found nothing left to do."""
        self.rounds += 1
        family = look(os.getpid())
        wanting = [member for member in family.alive if member.pid not in self.refused and self._wants(member, family)]
        number = {"stop": signal.SIGSTOP, "continue": signal.SIGCONT, "kill": signal.SIGKILL}[self.verb]
        for member in wanting:
            self.touched.add(member.pid)
            if not send(member, number):
                self.refused.add(member.pid)
        # One look is no proof: a fork may have slipped past it, or a parent died between two lines of it.
        # Whoever was missed must have existed before the second look began, which then shows it.
        settled = not wanting and family.is_the_same_as(self.before)
        self.before = family
        return settled or (self.verb == "continue" and self.rounds >= CONTINUE_ROUNDS)

    def _wants(self, member: Process, family: Family) -> bool:
        if self.verb == "kill":
            return True
        if self.verb == "continue":
            return member.state == "T"
        return not is_stopped(member, family)


def wake(_number: int, _frame: object) -> None:
    """Nothing: that the signal came is written to the wake-up pipe."""


class Keeper:
    """The inner half: starts the agent and does what the control pipe says, until it closes."""

    def __init__(self, control: int, status: int) -> None:
        self.control = control
        self.status = status
        self.agent = 0
        self.deadline: float | None = None
        self.goal: Goal | None = None
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
            self._bury()
            if self.deadline is not None and time.monotonic() >= self.deadline and not self.leaving:
                self._report(event="deadline")
                self._leave()
            if self.goal is not None and self.goal.advance():
                self._finish(self.goal)
            if self.leaving and self.goal is None:
                return

    def _wait(self) -> None:
        timeout = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        if self.goal is not None:
            timeout = min(SLOWEST_ROUND_SECONDS, ROUND_SECONDS * self.goal.rounds)
        elif self.leaving:
            timeout = 0
        watched = [self.woken] if self.leaving else [self.woken, self.control]
        if self.woken in select.select(watched, [], [], timeout)[0]:
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
            seconds = command["seconds"]
            self.deadline = None if seconds is None else time.monotonic() + seconds
        elif self.goal is not None and self.goal.verb == "kill":
            self._report(id=number, failed="being_killed")
        else:
            if self.goal is not None:
                self._report(id=self.goal.number, failed=f"superseded_by_{verb}")
            self.goal = Goal(number, verb)

    def _leave(self) -> None:
        if not self.leaving:
            self.leaving = True
            self.goal = Goal(0, "kill")

    def _finish(self, goal: Goal) -> None:
        self._bury()
        self._report(id=goal.number, done=goal.verb, pids=sorted(goal.touched), refused=sorted(goal.refused))
        self.goal = None

    def _bury(self) -> None:
        buried = reap()
        if self.agent in buried:
            self._report(event="exited", code=buried[self.agent])
            self.agent = 0

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


def main(arguments: list[str]) -> int:
    """Run a keeper: `agent_keeper CONTROL_FD STATUS_FD`. The first command on the control pipe starts the agent."""
    if sys.platform != "linux":
        sys.stderr.write("the agent keeper needs Linux: /proc, prctl and pidfds\n")
        return errno.ENOSYS
    control, status = int(arguments[0]), int(arguments[1])
    for descriptor in (control, status):
        os.set_inheritable(descriptor, False)
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
