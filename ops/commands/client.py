"""The service as its clients reach it: HTTP and a bearer token, nothing else."""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Self
from urllib.parse import quote
from uuid import uuid4

import httpx

from ..output import note
from ..refused import OutcomeUnknown, Refused, RefusedByService
from ..settings import Connection
from .sse import ServerSent, read_events

TIMEOUT_SECONDS = 30.0
#: A feed says something at least every 15 s, so one that is silent for so long is dead.
SILENCE_SECONDS = 45.0
KEY_IN_FLIGHT = "idempotency_key_in_flight"
#: What a service says that cannot be asked now, and has not begun either.
NOTHING_DONE = frozenset({"draining", "busy", "log_rolled_back", "log_damaged", "too_many_connections"})


class Patience(NamedTuple):
    """How long a client goes on with a service that does not answer, in seconds. Our choice."""

    #: Between two tries.
    reconnect: float = 2.0
    #: How long a feed that broke off is asked for again before it is given up.
    away: float = 120.0
    #: How long a command whose answer was lost is asked about again before its outcome is given up as unknown.
    unknown: float = 60.0


PATIENCE = Patience()


class Client:
    """One client of the service. It sees in every answer what it has done itself before."""

    def __init__(self, connection: Connection, patience: Patience = PATIENCE) -> None:
        self._connection = connection
        self._patience = patience
        self._position = "0"
        headers = {"Authorization": f"Bearer {connection.token}"}
        try:
            self._http = httpx.Client(base_url=connection.url, headers=headers, timeout=TIMEOUT_SECONDS)
        except httpx.InvalidURL as error:
            raise Refused(f"{connection.url} is no address of a service: {error}.") from error

    def get(self, path: str) -> Any:
        """Return what is there. Raises Refused."""
        return self._told(self._read(path))

    def pages(self, path: str) -> Iterator[Any]:
        """Give every element of a list, page after page. Raises Refused."""
        following: str | None = path
        while following is not None:  # ends: a list does
            response = self._read(following)
            yield from self._told(response)
            following = response.links.get("next", {}).get("url")

    def catch_up(self) -> None:
        """From here on every answer shows at least what is on the log now. Raises Refused."""
        self._position = str(self.get("/health")["position"] or self._position)

    def text(self, path: str) -> str:
        """Return what is there as text. Raises Refused."""
        response = self._sent("GET", path, headers={"Accept": "text/plain"})
        if response.is_error:
            raise Refused(_told(response))
        if not response.headers.get("Content-Type", "").startswith("text/plain"):
            raise Refused(f"{self._connection.url} is no Steersman: {path} is no text.")
        return response.text

    def post(self, path: str, body: object, key: str | None = None) -> Any:
        """
        Send a command under a key of its own, and again under the same one while its answer is lost: it is carried out
        at most once. Return its answer.

        Raises:
            OutcomeUnknown: nobody said within the client's patience whether it is carried out; the message has the key.
            Refused: it is not.
        """
        key = key or str(uuid4())
        lost: str | None = None
        until = time.monotonic() + self._patience.unknown
        while True:  # ends: after so many seconds
            try:
                response = self._http.request("POST", path, json=body, headers={"Idempotency-Key": key})
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, UnicodeError) as error:
                # This time nothing was sent; whether an earlier try arrived is as unknown as it was.
                if lost is None:
                    raise Refused(f"{self._connection.url} cannot be reached: {error}") from error
            except httpx.HTTPError as error:
                lost = str(error) or type(error).__name__
            else:
                # A service that has just begun nothing says so of this try, not of the one before.
                if not _leaves_open(response) and (lost is None or response.status_code < 500):
                    return self._told(response)
                lost = _told(response)
            if time.monotonic() >= until:
                raise OutcomeUnknown(
                    f"outcome unknown: {self._connection.url} did not say whether it is carried out ({lost}). "
                    f"Send the same again with --key {key}: it is carried out once."
                )
            note(f"the answer is lost ({lost}), asking again under the same key")
            time.sleep(self._patience.reconnect)

    def follow(self, path: str, after: int = 0) -> Iterator[ServerSent]:
        """
        Return a feed's events after that id, each once, then wait for more, until its `done` if it has an end.

        A connection that breaks, because the service is started again for example, is made anew and goes on with the
        next event; what keeps it from that is said on standard error. Raises Refused when the service cannot be reached
        at all, refuses, or stays away.
        """
        away = _Away(self._connection.url, self._patience)
        while True:  # ends: whoever is away for too long is given up
            try:
                for event in self._connected(path, after, away):
                    after = event.id or after
                    yield event
                    if event.event == "done":
                        return
                    away.ended()
                away.goes_on("the feed broke off", after)
            except httpx.TransportError as error:
                away.goes_on(str(error) or type(error).__name__, after)
            time.sleep(self._patience.reconnect)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connected(self, path: str, after: int, away: "_Away") -> Iterator[ServerSent]:
        timeout = httpx.Timeout(TIMEOUT_SECONDS, connect=away.seconds_left, read=SILENCE_SECONDS)
        headers = {"Last-Event-ID": str(after)} if after else {}
        try:
            opened = self._http.stream("GET", path, headers=headers, timeout=timeout)
            with opened as response:
                away.answered()
                if response.status_code == 503:  # whoever is starting or stopping says so; it is asked again
                    raise httpx.ReadError(_told_at_once(response))
                if response.is_error:
                    raise Refused(_told_at_once(response))
                if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                    raise Refused(f"{self._connection.url} is no Steersman: {path} is no feed.")
                yield from read_events(response.iter_lines())
        except UnicodeError as error:
            raise Refused(f"{self._connection.url} cannot be reached: {error}") from error

    def _read(self, path: str) -> httpx.Response:
        """Return what is there, once the service's views show what this client has done."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:  # ends: after so many seconds
            response = self._sent("GET", path, headers={"Steersman-Min-Position": self._position})
            lags = response.status_code == 503 and _word(response) == "position_not_reached"
            if not lags or time.monotonic() >= until:  # the service has waited before it said so
                return response

    def _sent(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **request)
        except (httpx.HTTPError, UnicodeError) as error:  # UnicodeError: of a host that cannot be one
            raise Refused(f"{self._connection.url} cannot be reached: {error}") from error

    def _told(self, response: httpx.Response) -> Any:
        if response.is_error:
            raise RefusedByService(_told(response), response.status_code, _word(response))
        self._position = response.headers.get("Steersman-Position", self._position)
        try:
            return response.json() if response.content else None
        except ValueError as error:
            raise Refused(f"{self._connection.url} is no Steersman: it does not answer in JSON.") from error


class _Away:
    """For how long a service has been away while somebody follows a feed."""

    def __init__(self, url: str, patience: Patience) -> None:
        self._url = url
        self._patience = patience
        self._since: float | None = None
        self._opened: float | None = None
        self._said = ""

    @property
    def seconds_left(self) -> float:
        """How long one more attempt may take."""
        left = TIMEOUT_SECONDS if self._since is None else self._patience.away - (time.monotonic() - self._since)
        return min(TIMEOUT_SECONDS, max(left, self._patience.reconnect))

    def answered(self) -> None:
        """It is there, and may yet send nothing."""
        self._opened = time.monotonic()

    def ended(self) -> None:
        """It is back."""
        self._since, self._said = None, ""

    def goes_on(self, reason: str, after: int) -> None:
        """Say why it has to be tried again, each reason once. Raises Refused when it never was there, or is given up."""
        now = time.monotonic()
        if self._opened is None:
            raise Refused(f"{self._url} cannot be reached: {reason}")
        if self._since is None or now - self._opened > 2 * SILENCE_SECONDS:
            self._since = now  # for so long only a feed that is alive stays open, though nothing new was on it
        seconds = now - self._since
        if seconds > self._patience.away:
            raise Refused(
                f"The feed broke off after event {after}, and {self._url} has stayed away for {seconds:.0f} s: {reason}"
            )
        if reason != self._said:
            note(f"{self._url} cannot be reached ({reason}), trying again")
        self._said = reason


def path_part(word: str) -> str:
    """Return a word as one part of a path, whatever is in it: an id that somebody typed leads nowhere else."""
    return quote(word, safe="").replace(".", "%2E")


def _leaves_open(response: httpx.Response) -> bool:
    """Whether an answer leaves open what becomes of the command: a first try may be under way, or have been cut short."""
    if response.status_code not in (409, 502, 503, 504):
        return False
    try:
        word = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        return response.status_code != 409  # a proxy's own words
    return word == KEY_IN_FLIGHT if response.status_code == 409 else word not in NOTHING_DONE


def _word(response: httpx.Response) -> str | None:
    try:
        word = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        return None
    return word if isinstance(word, str) else None


def _told_at_once(response: httpx.Response) -> str:
    response.read()
    return _told(response)


def _told(response: httpx.Response) -> str:
    try:
        problem = response.json()
        words = f"{problem['error']}: {problem['message']}"
    except (ValueError, KeyError, TypeError):
        words = response.text[:500]
    return f"HTTP {response.status_code} {words}"
