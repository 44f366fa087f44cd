"""Ports that are nobody's."""

import socket


def free_port() -> int:
    """Return a port of the system's choice that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
