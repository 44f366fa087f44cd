"""
The way out of a box: what connects to a port of the box's own loopback is carried to the service's proxy.

Standard library only, run as `python -I -S`: forwarder.py READY_FD SOCKET PORT=ADDRESS…
A port without an address is the proxy's own; one with an address leads through the proxy to that address. It runs
inside, with no right that the command lacks: whatever it lets through, the proxy looks at.
"""

import contextlib
import os
import selectors
import socket
import sys

CHUNK_BYTES = 64 * 1024
MOST_ANSWER_BYTES = 4096
BACKLOG = 128
ASK_SECONDS = 60.0


class PipeEnd:
    """One end of a pair: what it has read and the other has not yet taken."""

    def __init__(self, side: socket.socket) -> None:
        self.side = side
        self.unsent = b""
        self.is_over = False
        self.is_closed = False
        self.has_passed_on_the_end = False
        self.other: PipeEnd


class Forwarder:
    """Carries bytes between the box's ports and the proxy's socket, in one thread."""

    def __init__(self, path: str, ports: list[str]) -> None:
        self._path = path
        self._selector = selectors.DefaultSelector()
        for entry in ports:
            port, _, address = entry.partition("=")
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", int(port)))
            listener.listen(BACKLOG)
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, (listener, address))

    def run(self) -> None:
        """Go on until this process is killed."""
        while True:
            for key, _ in self._selector.select():
                if isinstance(key.data, PipeEnd):
                    if not key.data.is_closed:  # by what came for the other end in this same round
                        self._carry(key.data)
                else:
                    self._accept(*key.data)

    def _accept(self, listener: socket.socket, address: str) -> None:
        with contextlib.ExitStack() as undo:
            try:
                near = undo.enter_context(listener.accept()[0])
                far = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                far.connect(self._path)
                if address:
                    ask(far, address)
            except OSError:
                return
            undo.pop_all()
        ends = PipeEnd(near), PipeEnd(far)
        for end, other in (ends, ends[::-1]):
            end.other = other
            end.side.setblocking(False)
            self._selector.register(end.side, selectors.EVENT_READ, end)

    def _carry(self, end: PipeEnd) -> None:
        """Do for a pair whatever can be done without waiting, and watch for what cannot."""
        try:
            for source in (end, end.other):
                self._move(source)
        except OSError:
            self._close(end)
            return
        if all(one.is_over and not one.unsent for one in (end, end.other)):
            self._close(end)
            return
        for one in (end, end.other):
            wanted = selectors.EVENT_READ if not one.unsent and not one.is_over else 0
            wanted |= selectors.EVENT_WRITE if one.other.unsent else 0
            self._watch(one, wanted)

    def _move(self, source: PipeEnd) -> None:
        with contextlib.suppress(BlockingIOError):
            if not source.unsent and not source.is_over:
                source.unsent = source.side.recv(CHUNK_BYTES)
                source.is_over = not source.unsent
            if source.unsent:
                source.unsent = source.unsent[source.other.side.send(source.unsent) :]
            if source.is_over and not source.unsent and not source.has_passed_on_the_end:
                source.has_passed_on_the_end = True
                source.other.side.shutdown(socket.SHUT_WR)

    def _watch(self, end: PipeEnd, events: int) -> None:
        is_watched = end.side in self._selector.get_map()
        if is_watched and events:
            self._selector.modify(end.side, events, end)
        elif is_watched:
            self._selector.unregister(end.side)
        elif events:
            self._selector.register(end.side, events, end)

    def _close(self, end: PipeEnd) -> None:
        for one in (end, end.other):
            self._watch(one, 0)
            one.is_closed = True
            one.side.close()


def ask(far: socket.socket, address: str) -> None:
    """On return the proxy is connected with that address. Raises OSError."""
    far.settimeout(ASK_SECONDS)
    far.sendall(f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode("ascii"))
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        byte = far.recv(1)
        answer += byte
        if not byte or len(answer) > MOST_ANSWER_BYTES:
            raise ConnectionError("the proxy did not answer")
    if b" 200 " not in answer.partition(b"\r\n")[0]:
        raise ConnectionError("the proxy refused")


def main(arguments: list[str]) -> None:
    """Forward until this process is killed."""
    ready, path, *ports = arguments
    forwarder = Forwarder(path, ports)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.write(int(ready), b"1")
    os.close(int(ready))
    forwarder.run()


if __name__ == "__main__":
    main(sys.argv[1:])
