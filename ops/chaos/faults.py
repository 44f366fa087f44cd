"""The faults: each hurts one thing, by chance, and leaves it whole behind itself."""

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg
import redis

from .agent import is_dying
from .disks import Disk
from .files import Files
from .outside import Postgres, Redis
from .replicas import Replica, Replicas

#: How often a replica is hurt because it is at work.
BUSY = 0.75
Hurt = Callable[[random.Random], None]
AGENT_MODULE = "steersman.ops.chaos.agent"
#: What a fault may fail of that itself is hurt by another one.
PASSING = (psycopg.Error, redis.RedisError, OSError, subprocess.SubprocessError)


class Faults:
    """Hurts replicas, stores and agents. Two faults may overlap, but never on the same thing."""

    def __init__(
        self,
        replicas: Replicas,
        postgres: Postgres,
        cache: Redis,
        repositories: Sequence[Path],
        data: Path,
        stale_seconds: float,
        disks: Sequence[Disk],
    ) -> None:
        self._replicas = replicas
        self._postgres = postgres
        self._redis = cache
        self._files = Files(repositories, data / "worktrees", disks)
        self._data = data
        self._stale = stale_seconds
        self._postgres_lock = threading.Lock()
        self._redis_lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []
        self.choices: Sequence[tuple[str, float, Hurt]] = (
            ("kill -9 of a replica", 5, self._kill_replica),
            ("SIGTERM to a replica", 3, self._end_replica),
            ("SIGSTOP of a replica, longer than a lease", 4, self._freeze_replica),
            ("SIGSTOP of a replica, shorter than a lease", 2, self._blink_replica),
            ("FLUSHALL of Redis", 2, self._flush_redis),
            ("restart of Redis", 2, self._restart_redis),
            ("pause of Redis", 2, self._pause_redis),
            ("restart of PostgreSQL", 2, self._restart_postgres),
            ("crash of PostgreSQL", 1, self._crash_postgres),
            ("end of all sessions of PostgreSQL", 3, self._end_sessions),
            ("kill -9 of an agent", 5, self._kill_agent),
            ("kill -9 of an agent's keeper", 2, self._kill_keeper),
            *self._files.choices,
        )

    def inject(self, chance: random.Random) -> str:
        """Do one fault, from its begin to its end; return its name."""
        name, _, hurt = chance.choices(self.choices, [weight for _, weight, _ in self.choices])[0]
        try:
            hurt(chance)
        except PASSING as error:
            self.failed.append(f"{name}: {error}")
        self.counts[name] += 1
        return name

    def _one(self, chance: random.Random) -> Replica:
        """Return a replica; more often than not one whose agents are at work, which has something to lose."""
        agent = self._agent(chance) if chance.random() < BUSY else None
        above = ancestors(agent) if agent is not None else []
        busy = [replica for replica in self._replicas.all if replica.pid in above]
        return busy[0] if busy else chance.choice(self._replicas.all)

    def _kill_replica(self, chance: random.Random) -> None:
        replica = self._one(chance)
        with replica.lock:
            replica.kill()
            time.sleep(chance.choice((0.0, 0.0, 1.0, 1.5 * self._stale)))
            replica.start()

    def _end_replica(self, chance: random.Random) -> None:
        replica = self._one(chance)
        with replica.lock:
            replica.end()
            replica.start()

    def _freeze_replica(self, chance: random.Random) -> None:
        replica = self._one(chance)
        with replica.lock:
            replica.stop_for(self._stale * chance.uniform(1.5, 5.0))

    def _blink_replica(self, chance: random.Random) -> None:
        replica = self._one(chance)
        with replica.lock:
            replica.stop_for(self._stale * chance.uniform(0.2, 0.9))

    def _flush_redis(self, chance: random.Random) -> None:
        with self._redis_lock:
            self._redis.flush()

    def _restart_redis(self, chance: random.Random) -> None:
        with self._redis_lock:
            self._redis.restart(chance.choice((0.0, 1.0, 3.0)))

    def _pause_redis(self, chance: random.Random) -> None:
        with self._redis_lock:
            self._redis.pause(chance.uniform(0.5, 4.0))

    def _restart_postgres(self, chance: random.Random) -> None:
        with self._postgres_lock:
            self._postgres.restart("fast")

    def _crash_postgres(self, chance: random.Random) -> None:
        with self._postgres_lock:
            self._postgres.restart("immediate")

    def _end_sessions(self, chance: random.Random) -> None:
        with self._postgres_lock:
            self._postgres.terminate_backends()

    def _kill_agent(self, chance: random.Random) -> None:
        if (agent := self._agent(chance)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)

    def _kill_keeper(self, chance: random.Random) -> None:
        agent = self._agent(chance)
        if agent is None:
            return
        # The halves of its keeper are right above it.
        halves = [pid for pid in ancestors(agent) if "agent_keeper" in command_of(pid)]
        if halves:
            keeper = chance.choice(halves)
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGKILL)

    def _agent(self, chance: random.Random) -> int | None:
        """Return an agent that is at work, None if there is none now."""
        at_work = sorted(at_work_in(self._data / "worktrees"))
        agents = [pid for pid in at_work if AGENT_MODULE in command_of(pid)]
        return chance.choice(agents) if agents else None


def parent(pid: int) -> int:
    """Return a process's parent, 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def ancestors(pid: int) -> list[int]:
    """Return a process's parent, that one's parent, and so on."""
    found: list[int] = []
    # Ends: at the first process, or at one that is gone.
    while (pid := parent(pid)) > 1:
        found.append(pid)
    return found


def command_of(pid: int) -> str:
    """Return a process's command line, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def at_work_in(worktrees: Path) -> dict[int, str]:
    """Return every living process whose working directory is a worktree, and which one."""
    found: dict[int, str] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                where = (process / "cwd").readlink()
                if where.is_relative_to(worktrees) and not is_dying(int(process.name)):
                    found[int(process.name)] = where.name
    return found
