"""Joins the network namespace of a job, as an ordinary user, to configure it or to open a socket there.

It runs by itself (`python -I -S`), with this folder and the standard library alone.

    enter_network.py NETWORK CHANNEL PROTOCOL ADDRESS PORT

NETWORK is a descriptor of the namespace. CHANNEL is a descriptor on which the number of an error is sent, or 0, and the
socket: connected to the address (`tcp`), bound to it (`udp`) or listening there (`listen`). The protocols `send` and
`send_filter` are functions of `netlink.py`, for the messages of its standard input.
"""

import ctypes
import fcntl
import importlib
import os
import socket
import sys

GET_USER_NAMESPACE = 0xB701
_CONNECT_SECONDS = 10.0


def main() -> None:
    network, channel, protocol, address, port = sys.argv[1:]
    with socket.socket(fileno=int(channel)) as out:
        try:
            _join(int(network))
            if protocol.startswith("send"):
                sys.path.insert(0, os.path.dirname(__file__))  # noqa: PTH120 - nothing else is imported
                getattr(importlib.import_module("netlink"), protocol)(sys.stdin.buffer.read())
                out.send(b"0")
            else:
                with open_socket(protocol, address, int(port)) as opened:
                    socket.send_fds(out, [b"0"], [opened.fileno()])
        except OSError as error:
            out.send(str(error.errno or 0).encode())


def open_socket(protocol: str, address: str, port: int) -> socket.socket:
    """Connect to the address (`tcp`), bind to it (`udp`) or listen there (`listen`)."""
    if protocol == "listen":
        return socket.create_server((address, port))
    if protocol == "tcp":
        opened = socket.create_connection((address, port), _CONNECT_SECONDS)
        opened.settimeout(None)
        return opened
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.bind((address, port))
    except OSError:
        opened.close()
        raise
    return opened


def _join(network: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    owner = fcntl.ioctl(network, GET_USER_NAMESPACE)
    for namespace in (owner, network):
        if library.setns(namespace, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
