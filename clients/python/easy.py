"""
The hand-written top of the client: commands that are carried out once, refusals as exceptions, feeds that resume.

It is put beside the operations that are generated from the service's own description (`make`), and works on them.
"""

import asyncio
import inspect
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple, Self
from uuid import uuid4

import httpx

from .client import AuthenticatedClient

DEFAULT_URL = "http://127.0.0.1:8420"
TIMEOUT_SECONDS = 60.0
#: A feed says something at least each quarter of a minute.
SILENCE_SECONDS = 60.0
#: How often what was not answered is sent again, under the same key.
TRIES = 6
LONGEST_PAUSE_SECONDS = 10.0
#: What a status may pass to by itself.
PASSING = frozenset({429, 502, 503, 504})
IN_FLIGHT = "idempotency_key_in_flight"
#: A run in one of these has ended.
ENDED = frozenset({"completed", "declined", "failed", "merge_failed"})
#: What the types of events begin with that may move a run.
MOVES = ("coordinator.", "run.")
#: To whoever has everything of a run that cannot go on.
NOTHING_MORE = 204


class Refusal(Exception):
    """The service refused. `error` is its word for why, `details` the whole problem document."""

    def __init__(self, status: int, details: Mapping[str, Any]) -> None:
        self.status = status
        self.error: str = str(details.get("error", "unknown"))
        self.retryable: bool = bool(details.get("retryable", False))
        self.details = details
        super().__init__(f"HTTP {status} {self.error}: {details.get('message', '')}")


class FeedEvent(NamedTuple):
    """One event of a feed. `id` is what to go on from."""

    id: int
    type: str
    payload: Any


class _Feed:
    """What of a feed's lines is an event, and where the next connection goes on."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.is_done = False
        self._fields: dict[str, str] = {}

    @property
    def headers(self) -> dict[str, str]:
        return {"Last-Event-ID": str(self.after)} if self.after else {}

    def take(self, line: str) -> FeedEvent | None:
        """Take a line; return the event that it completes."""
        name, _, value = line.partition(":")
        if line:
            if name:
                self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        if fields.get("event") == "done":
            self.is_done = True
        if "id" not in fields or "data" not in fields:
            return None
        self.after = int(fields["id"])
        return FeedEvent(self.after, fields.get("event", "message"), json.loads(fields["data"]))


class _Base:
    def __init__(self, url: str | None, token: str | None) -> None:
        #: For the generated operations, and for whoever wants to call them by themselves.
        self.client = AuthenticatedClient(
            base_url=(url or os.environ.get("STEERSMAN_SERVER_URL") or DEFAULT_URL).rstrip("/"),
            token=token or os.environ["STEERSMAN_TOKEN"],
            timeout=httpx.Timeout(TIMEOUT_SECONDS),
        )
        self._position = "0"

    def _given(self, function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of an operation: with a key if it takes one, and as new as what this client has done."""
        takes = inspect.signature(function).parameters
        more: dict[str, Any] = {"client": self.client}
        if "idempotency_key" in takes:
            more["idempotency_key"] = str(uuid4())
        if "steersman_min_position" in takes and self._position != "0":
            more["steersman_min_position"] = self._position
        return {**more, **given}

    def _result(self, response: Any) -> Any:
        """Return what an operation answers. Raises Refusal."""
        status = int(response.status_code)
        if status >= 400:
            raise Refusal(status, _problem(response.content))
        self._position = response.headers.get("Steersman-Position", self._position)
        return response.parsed


class Steersman(_Base):
    """A client of one service; `with` closes it."""

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        """Say where the service is, and the token; else STEERSMAN_SERVER_URL and STEERSMAN_TOKEN do."""
        super().__init__(url, token)

    def call(self, operation: ModuleType, *arguments: Any, **given: Any) -> Any:
        """
        Carry out a generated operation (a module of `api`) once, however often it has to be sent, and return its answer.

        Raises Refusal when it is refused, and httpx.TransportError when nobody answers for long.
        """
        named = self._given(operation.sync_detailed, given)
        for attempt in range(TRIES):
            is_last = attempt == TRIES - 1
            try:
                response = operation.sync_detailed(*arguments, **named)
            except httpx.TransportError:
                if is_last or not _may_repeat(operation, named):
                    raise
            else:
                if is_last or not _passes(response):
                    return self._result(response)
            time.sleep(_pause(attempt))
        raise AssertionError("the last try answers or raises")

    def events(self, run_id: str, after: int = 0) -> Iterator[FeedEvent]:
        """Give the events of a run behind an id, each once, over every break of the connection, until the run is over."""
        feed = _Feed(after)
        http = self.client.get_httpx_client()
        attempt = 0
        while not feed.is_done:
            try:
                with http.stream("GET", _path(run_id), headers=feed.headers, timeout=_patience()) as response:
                    if response.status_code == NOTHING_MORE:
                        return
                    if response.status_code >= 400:
                        response.read()
                        if response.status_code not in PASSING:
                            raise Refusal(response.status_code, _problem(response.content))
                    else:
                        for line in response.iter_lines():
                            if (event := feed.take(line)) is not None:
                                attempt = 0
                                yield event
            except httpx.TransportError:
                if attempt >= TRIES:
                    raise
            if not feed.is_done:
                time.sleep(_pause(attempt))
                attempt += 1

    def wait_until(self, run_id: str, *statuses: str) -> Mapping[str, Any]:
        """Return the run as soon as it is in one of these statuses, or has ended."""
        awaited = ENDED.union(statuses)
        if (shown := self._shown(run_id))["status"] in awaited:
            return shown
        for event in self.events(run_id):
            # What an agent says moves no run.
            if event.type.startswith(MOVES) and (shown := self._shown(run_id))["status"] in awaited:
                return shown
        return self._shown(run_id)

    def _shown(self, run_id: str) -> Mapping[str, Any]:
        head = self.client.get_httpx_client().get("/health").json()["position"]
        response = self.client.get_httpx_client().get(
            f"/api/runs/{run_id}", headers={"Steersman-Min-Position": str(head or 0)}
        )
        if response.status_code >= 400:
            raise Refusal(response.status_code, _problem(response.content))
        shown: Mapping[str, Any] = response.json()
        return shown

    def close(self) -> None:
        """Close the connections."""
        self.client.get_httpx_client().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncSteersman(_Base):
    """The same for asyncio; `async with` closes it."""

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        """Say where the service is, and the token; else STEERSMAN_SERVER_URL and STEERSMAN_TOKEN do."""
        super().__init__(url, token)

    async def call(self, operation: ModuleType, *arguments: Any, **given: Any) -> Any:
        """Carry out a generated operation once; see Steersman."""
        named = self._given(operation.asyncio_detailed, given)
        for attempt in range(TRIES):
            is_last = attempt == TRIES - 1
            try:
                response = await operation.asyncio_detailed(*arguments, **named)
            except httpx.TransportError:
                if is_last or not _may_repeat(operation, named):
                    raise
            else:
                if is_last or not _passes(response):
                    return self._result(response)
            await asyncio.sleep(_pause(attempt))
        raise AssertionError("the last try answers or raises")

    async def events(self, run_id: str, after: int = 0) -> AsyncIterator[FeedEvent]:
        """Give the events of a run behind an id; see Steersman."""
        feed = _Feed(after)
        http = self.client.get_async_httpx_client()
        attempt = 0
        while not feed.is_done:
            try:
                async with http.stream("GET", _path(run_id), headers=feed.headers, timeout=_patience()) as response:
                    if response.status_code == NOTHING_MORE:
                        return
                    if response.status_code >= 400:
                        await response.aread()
                        if response.status_code not in PASSING:
                            raise Refusal(response.status_code, _problem(response.content))
                    else:
                        async for line in response.aiter_lines():
                            if (event := feed.take(line)) is not None:
                                attempt = 0
                                yield event
            except httpx.TransportError:
                if attempt >= TRIES:
                    raise
            if not feed.is_done:
                await asyncio.sleep(_pause(attempt))
                attempt += 1

    async def close(self) -> None:
        """Close the connections."""
        await self.client.get_async_httpx_client().aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _path(run_id: str) -> str:
    return f"/api/runs/{run_id}/stream"


def _patience() -> httpx.Timeout:
    return httpx.Timeout(TIMEOUT_SECONDS, read=SILENCE_SECONDS)


def _pause(attempt: int) -> float:
    return min(0.2 * 2.0**attempt, LONGEST_PAUSE_SECONDS)


def _may_repeat(operation: ModuleType, named: Mapping[str, Any]) -> bool:
    """Whether it may be sent again when nobody said what became of it: a command with a key, or a mere look."""
    looks: Iterable[str] = ("get", "list", "show", "explain", "prove", "audit")
    return "idempotency_key" in named or operation.__name__.rpartition(".")[2].startswith(tuple(looks))


def _passes(response: Any) -> bool:
    status = int(response.status_code)
    return status in PASSING or (status == 409 and _problem(response.content).get("error") == IN_FLIGHT)


def _problem(content: bytes) -> Mapping[str, Any]:
    try:
        found: Any = json.loads(content)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": content[:500].decode(errors="replace")}
