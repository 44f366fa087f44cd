"""
One POST to an address that somebody else chose, within a bounded time, to the very address that was looked at.

No redirect is followed, no proxy of the environment is used, and of the answer nothing is read but its head.
"""

import http.client
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from threading import Lock, Thread, Timer

from ...application.notifying.receiver_address import AddressRefused, read_receiver
from ...application.ports.notices import Attempt
from .addresses import Network, allowed_addresses

#: How long one attempt may take in all, and its look-up. Standard Webhooks asks for 15 to 30 seconds.
ATTEMPT_SECONDS = 15.0
LOOKUP_SECONDS = 10.0
GONE = 410
#: Only with these is `Retry-After` heeded.
SLOW_DOWN = frozenset({429, 502, 503, 504})
AGENT = "steersman"


class GuardedPost:
    """Sends to the public internet over https, and to the networks that are named; see the port for what holds."""

    def __init__(
        self,
        networks: Sequence[Network] = (),
        *,
        context: ssl.SSLContext | None = None,
        seconds: float = ATTEMPT_SECONDS,
    ) -> None:
        self._networks = networks
        self._context = context or ssl.create_default_context()
        self._seconds = seconds
        self._lock = Lock()
        self._open = set[socket.socket]()
        self._is_closed = False

    def send(self, url: str, headers: Mapping[str, str], body: bytes) -> Attempt:
        """Send once; see the port."""
        timer: Timer | None = None
        until = time.monotonic() + self._seconds
        try:
            addresses = self._looked_up(url)
            plain = self._connected(addresses, read_receiver(url)[2])
            # A peer that answers a byte at a time would outlast the time limit of each single read.
            timer = Timer(self._seconds, _break_off, (plain,))
            timer.daemon = True
            timer.start()
            try:
                return self._exchanged(plain, url, headers, body)
            finally:
                with self._lock:
                    self._open.discard(plain)
                plain.close()
        except AddressRefused:
            return _failed("refused_address")
        except ssl.SSLError:
            return _failed("tls")
        except TimeoutError:
            return _failed("timed_out")
        except socket.gaierror:
            return _failed("no_such_host")
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() >= until:
                return _failed("timed_out")  # the watchdog shut it down
            return _failed("unreachable" if isinstance(error, OSError) else "no_http")
        finally:
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Break off what is being sent."""
        with self._lock:
            self._is_closed = True
            for one in self._open:
                _break_off(one)

    def _looked_up(self, url: str) -> Sequence[str]:
        """Return the addresses that may be connected to. A resolver may be silent for as long as it likes: we are not."""
        found: list[Sequence[str]] = []
        failed: list[Exception] = []

        def look() -> None:
            try:
                found.append(allowed_addresses(url, self._networks))
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                failed.append(error)

        thread = Thread(target=look, daemon=True, name="look-up")
        thread.start()
        thread.join(LOOKUP_SECONDS)
        if failed:
            raise failed[0]
        if not found:
            raise TimeoutError
        return found[0]

    def _connected(self, addresses: Sequence[str], port: int) -> socket.socket:
        error: OSError = OSError("no address")
        until = time.monotonic() + self._seconds
        for address in addresses:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            try:
                plain = socket.create_connection((address, port), timeout=left)
            except OSError as failed:
                error = failed
                continue
            with self._lock:
                if self._is_closed:
                    plain.close()
                    raise OSError("closed")
                self._open.add(plain)
            return plain
        raise error

    def _exchanged(self, plain: socket.socket, url: str, headers: Mapping[str, str], body: bytes) -> Attempt:
        parts, host, port = read_receiver(url)
        connection = http.client.HTTPConnection(host, port, timeout=self._seconds)
        is_tls = parts.scheme == "https"
        # Over TLS the descriptor is the wrapper's: the watchdog keeps a copy that it can shut down.
        channel = self._context.wrap_socket(_copy(plain), server_hostname=host) if is_tls else plain
        connection.sock = channel
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            sent = {"host": parts.netloc, "user-agent": AGENT, "connection": "close", **headers}
            connection.putrequest("POST", path, skip_host=True, skip_accept_encoding=True)
            for name, value in {**sent, "content-length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return _outcome(answer.status, answer.getheader("retry-after"))
        finally:
            channel.close()


def _copy(plain: socket.socket) -> socket.socket:
    copy = plain.dup()
    copy.settimeout(plain.gettimeout())
    return copy


def _break_off(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _failed(word: str, retry_after: float | None = None) -> Attempt:
    return Attempt(state="failed", word=word, retry_after_seconds=retry_after)


def _outcome(status: int, retry_after: str | None) -> Attempt:
    if 200 <= status < 300:
        return Attempt(state="delivered", word="delivered")
    if status == GONE:
        return Attempt(state="gone", word=f"status_{status}")
    return _failed(f"status_{status}", _seconds(retry_after) if status in SLOW_DOWN else None)


def _seconds(retry_after: str | None) -> float | None:
    """Return how long a receiver asks to be left alone: it says so in seconds, or as a date."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after[:9])
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None
