"""Checks that host ports are free before a job listens on them: other programs are not in the database."""

import errno
import socket
from collections.abc import Iterable

from worker.backends.base import LaunchError, PortForward


def check_ports_free(address: str, ports: Iterable[PortForward]) -> None:
    """Check that nothing listens on any of these ports of an address. Raises `LaunchError`: a port is in use."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in ports:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # A port closed a moment ago counts as free, as it does for servers.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port.external))
                probe.listen(1)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise LaunchError(
                        "launch_failed", f"port {port.external} of {address} cannot be opened: {error}"
                    ) from error
                raise LaunchError("port_taken", f"port {port.external}") from error
