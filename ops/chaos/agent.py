"""
The rehearsal agent, under watch: it holds its worktree's lock as long as it lives, and tells when another has it.

Like the real thing it is started by the service under a keeper, once for each child run that it works for.
"""

import argparse
import fcntl
import json
import os
import sys
import time
from pathlib import Path

from ...adapters.rehearsal.agent import main as rehearse

#: Whoever is being killed may take so long to be gone, on a machine that is busy with other things.
DYING_SECONDS = 5.0
SIGKILL_BIT = 1 << 8


def main() -> int:
    """Take the lock of the working directory, if it is a worktree, and be the rehearsal agent."""
    parser = argparse.ArgumentParser(description="The rehearsal agent, under watch.")
    parser.add_argument("--data", type=Path, required=True, help="the service's data directory")
    parser.add_argument("--watch", type=Path, required=True, help="where the locks and the journal are")
    given = parser.parse_args()
    cwd = Path.cwd()
    if cwd.is_relative_to(given.data / "worktrees"):
        hold(cwd.name, given.watch)
    return rehearse(["--home", str(given.data / "rehearsal")])


def hold(worktree: str, watch: Path) -> None:
    """Hold the worktree's lock until this process ends; in the journal stands who began, and who was in the way."""
    # Not inherited: the lock is this process's, not that of what it starts.
    descriptor = os.open(watch / f"{worktree}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + DYING_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = int(os.pread(descriptor, 20, 0) or b"0")
            if (holder and not is_dying(holder)) or time.monotonic() > until:
                note(watch, "shared", worktree, other=holder)
                return
            time.sleep(0.005)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    note(watch, "began", worktree)


def is_dying(pid: int) -> bool:
    """Whether a process is gone, or was killed already and can do nothing any more."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in status.splitlines())}
    pending = int(fields.get("SigPnd", "0"), 16) | int(fields.get("ShdPnd", "0"), 16)
    return fields.get("State", "")[:1] in ("Z", "X") or bool(pending & SIGKILL_BIT)


def note(watch: Path, event: str, worktree: str, **more: int) -> None:
    """Add a line to the journal; short ones are whole, whoever else writes."""
    line = {"at": time.clock_gettime(time.CLOCK_BOOTTIME), "event": event, "worktree": worktree, "pid": os.getpid()}
    descriptor = os.open(watch / "agents.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(descriptor, json.dumps({**line, **more}).encode() + b"\n")
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
