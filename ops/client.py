"""The service as its clients reach it: HTTP and a bearer token, nothing else."""

import time
from collections.abc import Iterator
from typing import Any, Self
from uuid import uuid4

import httpx

from .refused import Refused
from .settings import Connection
from .sse import ServerSent, read_events

TIMEOUT_SECONDS = 30.0
#: A feed says something at least every 15 s, so one that is silent for so long is dead.
SILENCE_SECONDS = 45.0
#: How often a feed that brings nothing new is asked for again before it is given up, about two minutes in all.
MAX_RECONNECTS = 60
RECONNECT_SECONDS = 2.0


class Client:
    """One client of the service. It sees in every answer what it has done itself before."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._position = "0"
        self._http = httpx.Client(
            base_url=connection.url,
            headers={"Authorization": f"Bearer {connection.token}"},
            timeout=TIMEOUT_SECONDS,
        )

    def get(self, path: str) -> Any:
        """Return what is there. Raises Refused."""
        return self._answer("GET", path, headers={"Steersman-Min-Position": self._position})

    def post(self, path: str, body: object) -> Any:
        """Send a command, once however often it is sent, and return its answer. Raises Refused."""
        return self._answer("POST", path, json=body, headers={"Idempotency-Key": str(uuid4())})

    def follow(self, path: str, after: int = 0) -> Iterator[ServerSent]:
        """
        Return a feed's events after that id, each once, then wait for more, until its `done` if it has an end.

        A connection that breaks, because the service is started again for example, is made anew and goes on with the
        next event. Raises Refused when the service refuses or stays away.
        """
        failures = 0
        while failures < MAX_RECONNECTS:
            try:
                for event in self._connected(path, after):
                    failures = 0
                    after = event.id or after
                    yield event
                    if event.event == "done":
                        return
            except httpx.TransportError:
                pass
            failures += 1
            time.sleep(RECONNECT_SECONDS)
        raise Refused(f"{path} broke off after event {after}, and {self._connection.url} stays away.")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connected(self, path: str, after: int) -> Iterator[ServerSent]:
        timeout = httpx.Timeout(TIMEOUT_SECONDS, read=SILENCE_SECONDS)
        headers = {"Last-Event-ID": str(after)} if after else {}
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.is_error:
                response.read()
                # Whoever is starting or stopping says so with 503; it is asked again.
                if response.status_code != 503:
                    raise Refused(_told(response))
                return
            yield from read_events(response.iter_lines())

    def _answer(self, method: str, path: str, **request: Any) -> Any:
        try:
            response = self._http.request(method, path, **request)
        except httpx.HTTPError as error:
            raise Refused(f"{self._connection.url} cannot be reached: {error}") from error
        if response.is_error:
            raise Refused(_told(response))
        self._position = response.headers.get("Steersman-Position", self._position)
        return response.json() if response.content else None


def _told(response: httpx.Response) -> str:
    try:
        problem = response.json()
        words = f"{problem['error']}: {problem['message']}"
    except (ValueError, KeyError, TypeError):
        words = response.text[:500]
    return f"HTTP {response.status_code} {words}"
