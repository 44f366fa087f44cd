"""
The rehearsal agent, under watch: it holds its workplace's lock as long as it lives, and says when another has it.

Like the real thing it is started by the service under a keeper, in a box, once for each child run that it works for.
"""

import fcntl
import os
import sys
import time
from pathlib import Path

from ...adapters.rehearsal.agent import main as rehearse

#: Whoever is being killed may take so long to be gone, on a machine that is busy with other things.
DYING_SECONDS = 5.0
SIGKILL_BIT = 1 << 8
#: Said by an agent that found another one at work: the verdict looks for it on the log.
NOT_ALONE = "another agent is at work in this workplace"
NOT_ALONE_CODE = 97


def main() -> int:
    """Take the lock of the working directory and be the rehearsal agent; end with NOT_ALONE if another has it."""
    if not hold(Path.cwd()):
        sys.stderr.write(f"{NOT_ALONE}\n")
        return NOT_ALONE_CODE
    return rehearse([])


def hold(workplace: Path) -> bool:
    """Hold the directory's lock until this process ends. False: another process has it, and keeps it."""
    # Not inherited: the lock is this process's, not that of what it starts.
    descriptor = os.open(workplace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    until = time.monotonic() + DYING_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.005)


def is_dying(pid: int) -> bool:
    """Whether a process is gone, or was killed already and can do nothing any more."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in status.splitlines())}
    pending = int(fields.get("SigPnd", "0"), 16) | int(fields.get("ShdPnd", "0"), 16)
    return fields.get("State", "")[:1] in ("Z", "X") or bool(pending & SIGKILL_BIT)


if __name__ == "__main__":
    sys.exit(main())
