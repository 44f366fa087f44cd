"""Ports for servers that cannot be handed a socket that listens already."""

import os
import random
import socket

#: Below what Linux takes for outgoing connections by itself: no client gets in between our look and the server's start.
PORTS = range(15_000, 32_000)
_chance = random.Random(os.getpid())


def free_port() -> int:
    """Return a port on which nobody listens, and that no other process of these tests is likely to pick."""
    while True:
        port = _chance.choice(PORTS)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
