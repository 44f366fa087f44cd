"""
All descendants of a process, as /proc shows them, and how to signal them without missing or mistaking one.

One pass over /proc is no proof: a fork may slip past it, and a process whose parent dies during it has none for a
moment. Whoever a pass missed existed before the next one began; so only two passes that show the same are believed.
"""

import contextlib
import os
import signal
import time
from typing import NamedTuple

#: Between two looks at /proc while something is to be stopped or killed.
ROUND_SECONDS = 0.002


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
