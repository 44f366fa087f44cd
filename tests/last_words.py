"""What the services of a failed test have to say: where each of their threads is, and the end of their logs."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

#: How much of a log is shown; of one that was asked for its threads this holds all of them.
SHOWN_BYTES = 24_000
#: How long a service gets to write where its threads are.
WRITING_SECONDS = 2.0

_services: list[tuple["subprocess.Popen[str]", Path]] = []


def remember(process: "subprocess.Popen[str]", log: Path) -> None:
    """Show the end of this log should a test fail while the process lives."""
    _services[:] = [(other, path) for other, path in _services if other.poll() is None]
    _services.append((process, log))


def last_words() -> Iterator[tuple[str, str]]:
    """Yield a title and the end of its log for each service that lives, after it was asked for its threads."""
    for process, log in _services:
        if process.poll() is not None or not log.exists():
            continue
        before = log.stat().st_size
        process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + WRITING_SECONDS
        while log.stat().st_size == before and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.2)
        yield f"service {process.pid}", log.read_bytes()[-SHOWN_BYTES:].decode(errors="replace")
