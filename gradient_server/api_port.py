import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil

from core.errors import GradientError
from core.settings import Settings
from core.system import garbage_collection
from core.system.canonical_host import is_loopback
from gradient_server.api_processes import FIRST_PASSED


class PortTaken(GradientError):
    """The API's port is in use."""


class InsecureHttp(GradientError):
    """Keys and passwords would cross a network in the clear."""


class ApiPort(NamedTuple):
    """The API's socket, the settings with its address, and whether another process has it open, too."""

    socket: socket.socket
    settings: Settings
    kept: bool


def bind_port(settings: Settings) -> ApiPort:
    """Return the bound socket of the API.

    It is bound before anything else is started: a port in use must not leave a half-started service.
    """
    api = settings.api
    listener = passed = _take_passed_socket()
    if passed is not None:
        api = api.model_copy(update={"host": passed.getsockname()[0]})
    secure = is_loopback(api.host) or (api.public_url or "").lower().startswith("https://")
    if not secure and not api.insecure_http:
        raise InsecureHttp(
            f"Refused to listen on {api.host}: other machines can reach it, so keys and passwords would cross the "
            "network unencrypted. Listen on 127.0.0.1, or put a TLS proxy in front and set "
            "GRADIENT_API__PUBLIC_URL to its https URL. In a trusted network, set GRADIENT_API__INSECURE_HTTP=true.",
            field="host",
        )
    if listener is None:
        family = socket.AF_INET6 if ":" in api.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with _explain_taken_port(listener, api.host, api.port):
            listener.bind((api.host, api.port))
    api = api.model_copy(update={"port": listener.getsockname()[1]})
    return ApiPort(listener, settings.model_copy(update={"api": api}), passed is not None)


def listen(listener: socket.socket) -> None:
    """Let clients connect: their connections wait until the API serves them."""
    with garbage_collection.paused():
        from service.http.connections import BACKLOG

    host, port = listener.getsockname()[:2]
    with _explain_taken_port(listener, host, port):
        listener.listen(BACKLOG)


def _take_passed_socket() -> socket.socket | None:
    """Return the socket that systemd, or our supervisor, has open for this service (sd_listen_fds(3))."""
    if os.environ.pop("LISTEN_PID", None) != str(os.getpid()) or os.environ.pop("LISTEN_FDS", None) != "1":
        return None
    activated = socket.socket(fileno=FIRST_PASSED)
    activated.set_inheritable(False)
    return activated


@contextmanager
def _explain_taken_port(listener: socket.socket, host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        listener.close()
        raise PortTaken(
            f"Cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}{_describe_holder(port)}. If another "
            "gradient-server is running, use it; otherwise stop the program that uses the port, or choose another "
            "port with --port or GRADIENT_API__PORT.",
            field="port",
        ) from error


def _describe_holder(port: int) -> str:
    """Describe the process that listens on a port, if this user may see it: ` by process 7 (sh), of the job j1`."""
    for connection in psutil.net_connections("tcp"):
        if (
            connection.status == psutil.CONN_LISTEN
            and connection.laddr
            and connection.laddr.port == port
            and connection.pid is not None
        ):
            try:
                process = psutil.Process(connection.pid)
                name, job = process.name(), process.environ().get("GRADIENT_JOB_ID")
            except psutil.Error:
                continue
            return f" by process {connection.pid} ({name})" + (f", of job {job}" if job else "")
    return ""
