"""A client of all replicas at once: every command is sent until somebody answers it, with one key."""

import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import httpx

#: A replica that stands still answers nobody; another one is asked then.
TIMEOUT_SECONDS = 5.0
PATIENCE_SECONDS = 90.0
AGAIN_SECONDS = 0.15
#: Refusals that say: the same again, in a moment.
IN_FLIGHT = "idempotency_key_in_flight"
#: A repository that is being hurt is whole again soon, and a person who was told so asks again.
HURT = "workspace_unavailable"


class ReplicaAnswer(NamedTuple):
    """What a replica said."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def done(self) -> bool:
        """Whether it is acknowledged."""
        return self.status < 300


class Unanswered(Exception):
    """Nobody answered for a long time: whether it is on the log is not known."""


class ReplicaClient:
    """Asks a replica at random. Threads may share it."""

    def __init__(self, urls: Sequence[str], token: str) -> None:
        self._urls = urls
        headers = {"Authorization": f"Bearer {token}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        self._http = httpx.Client(headers=headers, timeout=TIMEOUT_SECONDS, limits=limits)
        self._lock = threading.Lock()
        #: Answers that no replica may give, as (request, status, body).
        self.wrong: list[tuple[str, int, str]] = []
        self.retries = 0

    def post(self, path: str, body: object, key: str, chance: random.Random) -> ReplicaAnswer:
        """Send a command until a replica accepts or refuses it. Raises Unanswered."""
        return self._ask("POST", path, chance, json=body, headers={"Idempotency-Key": key})

    def get(self, path: str, chance: random.Random, *, behind: str = "0", url: str | None = None) -> Any:
        """Return what is there, None if nothing is. What is read shows at least the log's first *behind* facts."""
        headers = {"Steersman-Min-Position": behind}
        answer = self._ask("GET", path, chance, headers=headers, urls=(url,) if url else None)
        return answer.body if answer.done else None

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    def _ask(
        self, method: str, path: str, chance: random.Random, urls: Sequence[str] | None = None, **what: Any
    ) -> ReplicaAnswer:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            try:
                response = self._http.request(method, chance.choice(urls or self._urls) + path, **what)
            except httpx.TransportError:
                response = None
            if response is not None and not self._is_passing(method, path, response):
                is_json = response.headers.get("content-type", "").partition(";")[0].endswith("json")
                body = response.json() if is_json else response.text
                return ReplicaAnswer(response.status_code, body, response.headers)
            self.retries += 1
            time.sleep(AGAIN_SECONDS * (0.5 + chance.random()))
        raise Unanswered(f"{method} {path}")

    def _is_passing(self, method: str, path: str, response: httpx.Response) -> bool:
        if response.status_code == 409:
            return response.json().get("error") in (IN_FLIGHT, HURT)
        if response.status_code == 503:
            if "Retry-After" not in response.headers:
                self._keep_wrong(method, path, response)
            return True
        if response.status_code >= 500 or response.status_code == 401:
            # Nothing of ours that is away makes a token invalid, or a fault of a request.
            self._keep_wrong(method, path, response)
            return True
        return False

    def _keep_wrong(self, method: str, path: str, response: httpx.Response) -> None:
        with self._lock:
            self.wrong.append((f"{method} {path}", response.status_code, response.text[:500]))
