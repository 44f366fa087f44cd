"""The replicas: `steersman serve` processes on one log, each watched over and started again when it is gone."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

STEERSMAN = (sys.executable, "-P", "-m", "steersman.ops.command_line")
#: Far beyond what a start or an end takes, on a machine that is busy with other things.
PATIENCE_SECONDS = 60.0
#: Between a refused start, because PostgreSQL is away for example, and the next one.
AGAIN_SECONDS = 0.5


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without a setting of ours but the given ones."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEERSMAN_")}
    return {**kept, **variables}


class Replica:
    """One replica at one address, over all its lives. Its lock is held by whoever hurts it."""

    def __init__(self, number: int, port: int, home: Path, variables: Mapping[str, str]) -> None:
        self.name = f"replica {number}"
        self.port = port
        self.lock = threading.Lock()
        self.log = home / f"replica-{number}.log"
        self._data = home / "data"
        self._variables = environment(variables)
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        """The process, while it lives."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """On return the replica accepts requests. One that is refused, or dies, is started again for a while."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            with self.log.open("a", encoding="utf-8") as log:
                self._process = subprocess.Popen(
                    [*STEERSMAN, "serve", "--port", str(self.port), "--data", str(self._data)],
                    env=self._variables,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
            assert self._process.stdout is not None
            if self._process.stdout.readline():
                return
            self._bury()
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name} does not start: see {self.log}")
            time.sleep(AGAIN_SECONDS)

    def kill(self) -> None:
        """Kill it without a word."""
        self._send(signal.SIGKILL)
        self._bury()

    def end(self) -> int:
        """Ask it to end, and return its exit code; one that does not is killed (-9)."""
        self._send(signal.SIGTERM)
        return self._bury()

    def stop_for(self, seconds: float) -> None:
        """Let it stand still for that time."""
        self._send(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _bury(self) -> int:
        if self._process is None:
            return 0
        with self._process as process:
            try:
                return process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()


class Replicas:
    """All replicas, and somebody who starts again what dies by itself."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.all = tuple(replicas)
        #: What died without being asked to: (replica, exit code).
        self.died: list[tuple[str, int]] = []
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, name="replicas", daemon=True)

    def start(self) -> None:
        """Start all at once; on return they accept requests, and from now on each is watched."""
        self.each(Replica.start)
        self._watch.start()

    def each(self, do: Callable[[Replica], object]) -> None:
        """Do something with all of them at once."""
        threads = [threading.Thread(target=do, args=(replica,)) for replica in self.all]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def close(self) -> None:
        """End all of them. On return none is alive."""
        self._over.set()
        if self._watch.is_alive():
            self._watch.join()
        self.each(Replica.end)

    def _look(self) -> None:
        while not self._over.wait(AGAIN_SECONDS):
            for replica in self.all:
                # Whoever holds the lock is about to kill it, or has, and starts it again itself.
                if replica.lock.acquire(blocking=False):
                    try:
                        self._revive(replica)
                    finally:
                        replica.lock.release()

    def _revive(self, replica: Replica) -> None:
        if replica.pid is None:
            self.died.append((replica.name, replica.end()))
            with contextlib.suppress(RuntimeError):
                replica.start()
