"""
All descendants of a process, as /proc shows them, and how to signal them without missing or mistaking one.

One pass over /proc is no proof: a fork may slip past it, and a process whose parent dies during it has none for a
moment. A process may even hand itself on, fork and exit, faster than any pass. But then its dead ancestors are ours
to bury, and so: only two passes that show the same, with no death between them, are believed.

How such a process is caught: whole process groups are signalled, which is atomic against forks, and a corpse still
tells its group; and those that leave their group at each fork become our direct children, which the kernel lists in
one short read. What does both and also exits within some 50 microseconds each time can outrun this for a while.
"""

import contextlib
import os
import signal
import time
from typing import NamedTuple

#: Between two looks at /proc while something is to be stopped or killed.
ROUND_SECONDS = 0.002
#: A process that stops itself again and again does not keep `continue` from returning.
CONTINUE_ROUNDS = 200
#: How often a round strikes at direct children before it looks at all descendants.
STRIKES = 5


class Process(NamedTuple):
    """One line of the process table. The start time tells a process from a later one with the same pid."""

    pid: int
    ppid: int
    state: str
    group: int
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
    return Process(int(pid), int(fields[1]), fields[0], int(fields[2]), fields[19]) if len(fields) > 19 else None


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


def children() -> list[int]:
    """Return the pids of our own children, quickly; none where the kernel does not list them."""
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]
    return []


class Sweep:
    """
    Stopping, continuing or killing all descendants of this process, which must be a subreaper of one thread.

    `touched` are the processes that were signalled, `refused` those that we may not signal.
    """

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.rounds = 0
        self.touched: set[int] = set()
        self.refused: set[int] = set()
        self._signal = {"stop": signal.SIGSTOP, "continue": signal.SIGCONT, "kill": signal.SIGKILL}[verb]
        self._before: Family | None = None
        self._wanted_nothing = False

    def round(self, *, has_buried: bool) -> bool:
        """Do one round; True once there is nothing left to do. *has_buried*: whether a child died since the last round."""
        self.rounds += 1
        if self._before is not None and self.verb != "continue":
            self._strike_children()
        family = look(os.getpid())
        wanting = [member for member in family.alive if member.pid not in self.refused and self._wants(member, family)]
        if self.verb != "continue":
            self._strike_groups(
                {member.group for member in family.members if member.is_dead} | {m.group for m in wanting}
            )
        for member in wanting:
            self.touched.add(member.pid)
            if not send(member, self._signal):
                self.refused.add(member.pid)
        is_quiet = not has_buried and family.is_the_same_as(self._before)
        if self.verb == "continue":  # who runs again may fork and end as it likes
            is_quiet = self._wanted_nothing or self.rounds >= CONTINUE_ROUNDS
        self._before, self._wanted_nothing = family, not wanting
        return not wanting and is_quiet

    def _wants(self, member: Process, family: Family) -> bool:
        if self.verb == "kill":
            return True
        if self.verb == "continue":
            return member.state == "T"
        return not is_stopped(member, family)

    def _strike_children(self) -> None:
        # A child's pid is its own until we bury it: no need to look twice before we strike.
        for _ in range(STRIKES):
            for pid in children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, self._signal)

    def _strike_groups(self, groups: set[int]) -> None:
        # The group of a process of ours has no strangers in it: the agent began a session of its own.
        for group in groups - {os.getpgrp()}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, self._signal)


def kill_family() -> None:
    """On return no descendant of this process is alive (those that changed their user excepted)."""
    sweep = Sweep("kill")
    while not sweep.round(has_buried=bool(reap())):
        time.sleep(ROUND_SECONDS)
