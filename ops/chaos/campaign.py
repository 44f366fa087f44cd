"""One campaign: replicas, work, corrections and faults from one seed, until everything has come to rest."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from .client import ReplicaClient, Unanswered
from .disks import mounted
from .facts import Acknowledged
from .faults import Faults
from .histories import Histories
from .network import free_port
from .outside import Postgres, Redis
from .pace import Pace
from .replicas import Replica, Replicas
from .scene import look, make_data, make_project, make_repository, steersman
from .settle import settle
from .steers import Steer, choose
from .subscribers import RunSubscriber
from .work import orchestration

STEERERS = 6
#: Faults that overlap.
HURTERS = 3
#: How often a correction is chosen anew when it is refused.
TRIES = 60
STALE_SECONDS = 2
STALL_SECONDS = 20
SUBSCRIBERS_OF_A_RUN = 2
REPOSITORIES = 3


class CampaignOptions(NamedTuple):
    """How much is done."""

    replicas: int = 3
    orchestrations: int = 30
    steers: int = 300
    faults: int = 60


class Campaign:
    """Everything that happens from one seed. Afterwards its fields say what was done, and what was answered."""

    def __init__(self, seed: int, options: CampaignOptions, postgres: Postgres, cache: Redis, home: Path) -> None:
        self.seed = seed
        self.options = options
        self.home = home
        self.data = make_data(home)
        self.histories = Histories(self.data / "homes")
        self.disks = mounted(home / "repositories", self.data / "worktrees")
        (home / "repositories").mkdir(exist_ok=True)
        self.repositories = [make_repository(home / "repositories" / f"repository-{n}") for n in range(REPOSITORIES)]
        self.variables = {
            "STEERSMAN_DATABASE": postgres.new_database(),
            "STEERSMAN_REDIS": cache.url,
            "STEERSMAN_KEYS": str(home / "keys"),
            "STEERSMAN_LEASE_STALE_SECONDS": str(STALE_SECONDS),
            "STEERSMAN_STALL_SECONDS": str(STALL_SECONDS),
        }
        ports = [free_port() for _ in range(options.replicas)]
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.replicas = Replicas([Replica(n + 1, port, home, self.variables) for n, port in enumerate(ports)])
        self.faults = Faults(self.replicas, postgres, cache, self.repositories, self.data, STALE_SECONDS, self.disks)
        self.runs: list[str] = []
        self.goals: list[str] = []
        self.subscribers: list[RunSubscriber] = []
        self.acknowledged: list[Acknowledged] = []
        self.sent: list[str] = []
        #: Approvals and refusals that were acknowledged, as (run, verb).
        self.decisions: list[tuple[str, str]] = []
        self.verbs: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        #: What could not be done, in words: each is a finding.
        self.troubles: list[str] = []
        self._ports = ports
        self._lock = threading.Lock()
        self._pace = Pace(options.orchestrations, options.steers, options.faults)

    def run(self, note: Callable[[str], None]) -> ReplicaClient:
        """Do everything; on return all is at rest, and the replicas still serve. Returns a client of theirs."""
        self.replicas.start()
        self.histories.start()
        issued = steersman(
            *("token", "issue", "--data", self.data, "--user", "chaos", "--scope", "operator"), variables=self.variables
        )
        issued.check_returncode()
        self.token = issued.stdout.strip()
        self.client = ReplicaClient(self.urls, self.token)
        self.pin = self.home / "checkpoint.txt"
        self.projects = [
            make_project(self.client, repository, builds=n == 0, chance=self._chance("project", n))
            for n, repository in enumerate(self.repositories)
        ]
        self.pin.write_text(self.client.get("/api/log/checkpoint", self._chance("pin", 0)), encoding="utf-8")
        with ThreadPoolExecutor(1 + STEERERS + HURTERS) as pool:
            try:
                done = [pool.submit(self._start_all)]
                done += [pool.submit(self._steer_every, n) for n in range(STEERERS)]
                done += [pool.submit(self._hurt_every, n) for n in range(HURTERS)]
                for future in done:
                    future.result()
            finally:
                self._pace.stop()
        note(f"{self.options.steers} corrections and {self.options.faults} faults are done; waiting for rest")
        began = time.monotonic()
        self.troubles += settle(self.client, self.runs, self._chance("settle", 0), self.acknowledged)
        note(f"at rest after {time.monotonic() - began:.0f} s more")
        return self.client

    def _chance(self, what: str, number: int) -> random.Random:
        """Every decision has a chance of its own, so that none depends on how threads take turns."""
        return random.Random(f"{self.seed}/{what}/{number}")

    # Orchestrations

    def _start_all(self) -> None:
        for number in range(self.options.orchestrations):
            self._pace.may_start(number)
            self._guarded(self._start, number)

    def _start(self, number: int) -> None:
        chance = self._chance("orchestration", number)
        body = orchestration(chance, number)
        self.goals.append(body["goal"])
        path = f"/api/projects/{chance.choice(self.projects)}/orchestrations"
        answer = self.client.post(path, body, f"orchestration-{number}", chance)
        if not answer.done:
            self.troubles.append(f"an orchestration was refused: {answer.status} {answer.body}")
            return
        run_id = str(answer.body["runId"])
        with self._lock:
            self.runs.append(run_id)
        for n in range(SUBSCRIBERS_OF_A_RUN):
            self._subscribe(run_id, run_id, n)

    def _subscribe(self, run_id: str, root: str, number: int) -> None:
        name = f"subscriber {number} of {run_id}"
        subscriber = RunSubscriber(name, run_id, root, self._ports, self.token, f"{self.seed}/{name}")
        with self._lock:
            self.subscribers.append(subscriber)
        subscriber.start()

    # Corrections

    def _steer_every(self, first: int) -> None:
        for number in range(first, self.options.steers, STEERERS):
            self._pace.may_steer(number)
            self._guarded(self._steer, number)
            self._pace.steered()

    def _steer(self, number: int) -> None:
        chance = self._chance("steer", number)
        time.sleep(chance.uniform(0.0, 0.4))
        for attempt in range(TRIES):
            mark = f"mark-{number:05}-{attempt}-"
            run_id = self._some_run(chance)
            situation = look(self.client, run_id, chance)
            if situation.over and chance.random() < 0.95:
                continue
            self._subscribe_to_a_child(run_id, [str(child["childRunId"]) for child in situation.children])
            steer = choose(situation, chance, mark)
            if steer is not None and self._send(run_id, steer, f"steer-{number}-{attempt}", chance):
                return
            time.sleep(0.1)

    def _some_run(self, chance: random.Random) -> str:
        while True:
            with self._lock:
                if self.runs and chance.random() < 0.5:
                    # The newer ones are at work, more likely than not; of the others some stand at their gates.
                    return self.runs[-1 - min(int(chance.expovariate(0.25)), len(self.runs) - 1)]
                if self.runs:
                    return chance.choice(self.runs)
            time.sleep(0.1)

    def _subscribe_to_a_child(self, root: str, children: Sequence[str]) -> None:
        with self._lock:
            known = {s.root for s in self.subscribers if s.run_id != s.root}
        if children and root not in known:
            self._subscribe(children[0], root, 0)

    def _send(self, run_id: str, steer: Steer, key: str, chance: random.Random) -> bool:
        """Send a command; return whether it was acknowledged."""
        if steer.mark:
            with self._lock:
                self.sent.append(steer.mark)
        answer = self.client.post(steer.path, steer.body, key, chance)
        told = _directives(answer.body) if answer.done and steer.directs else []
        done = answer.done and (bool(told) or not steer.verb.startswith("fleet"))
        with self._lock:
            if done:
                self.verbs[steer.verb] += 1
            else:
                self.refused[f"{steer.verb}: {answer.status} {_error(answer.body)}"] += 1
            if done and steer.verb in ("approve", "decline"):
                self.decisions.append((run_id, steer.verb))
            if done and steer.directs:
                self.acknowledged += [
                    Acknowledged(mark=steer.mark, directive_id=d, root=run_id) for d in told or [None]
                ]
        return done

    # Faults

    def _hurt_every(self, first: int) -> None:
        for number in range(first, self.options.faults, HURTERS):
            self._pace.may_inject(number)
            self._pace.injected()
            self._guarded(self._hurt, number)

    def _hurt(self, number: int) -> None:
        self.faults.inject(self._chance("fault", number))

    def _guarded(self, do: Callable[[int], None], number: int) -> None:
        try:
            do(number)
        except (Unanswered, RuntimeError) as error:
            self.troubles.append(f"{type(error).__name__}: {error}")


def _directives(body: Any) -> list[str | None]:
    if "receipts" in body:
        return [receipt["directive_id"] for receipt in body["receipts"]]
    found = body.get("directiveId") or body.get("directive_id")
    return [found] if found else []


def _error(body: Any) -> str:
    try:
        return str((body.get("refused") or [body])[0]["error"])
    except (AttributeError, KeyError):
        return str(body)[:100]
