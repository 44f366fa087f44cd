"""The command of this installation's own that is told of what waits: the event on its input, and nothing in its arguments."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

from ...application.ports.notices import Attempt

#: How long it may take over one event.
COMMAND_SECONDS = 60.0
#: What it is given of our environment: nothing that opens a door.
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")


class NotifyCommand:
    """Runs the command, once for each event; see the port for what holds."""

    def __init__(self, command: Sequence[str], seconds: float = COMMAND_SECONDS) -> None:
        self._command = tuple(command)
        self._seconds = seconds
        self._lock = Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def tell(self, body: bytes) -> Attempt:
        """Run it once; see the port."""
        environment = {name: os.environ[name] for name in PASSED if name in os.environ}
        try:
            with self._lock:
                if self._is_closed:
                    return _failed("closed")
                # A session of its own, so that whatever it starts ends with it.
                running = self._running = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env=environment,
                    start_new_session=True,
                )
        except OSError:
            return _failed("not_started")
        try:
            running.communicate(body, self._seconds)
        except subprocess.TimeoutExpired:
            return _failed("timed_out")
        finally:
            _kill(running)
            with self._lock:
                self._running = None
        return Attempt(state="delivered", word="delivered") if not running.returncode else _exit(running.returncode)

    def close(self) -> None:
        """Break off what runs."""
        with self._lock:
            self._is_closed = True
            if self._running is not None:
                _kill(self._running, wait=False)


def _kill(running: subprocess.Popen[bytes], *, wait: bool = True) -> None:
    # Also once the command has ended: what it left behind is of its group, whose number is nobody else's until that is gone.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(running.pid, signal.SIGKILL)
    if wait:
        running.wait()
        if running.stdin is not None:
            with suppress(OSError):
                running.stdin.close()


def _exit(code: int) -> Attempt:
    return _failed(f"exit_{code}" if code > 0 else f"signal_{-code}")


def _failed(word: str) -> Attempt:
    return Attempt(state="failed", word=word)
