"""A port that stays free until it is used."""

import contextlib
import secrets
import socket


def free_port(address: str = "127.0.0.1") -> int:
    """A port below those that jobs get, and that the kernel gives to servers on port 0 and to clients."""
    while True:
        port = 10_000 + secrets.randbelow(10_000)
        with contextlib.suppress(OSError), socket.create_server((address, port)):
            return port
