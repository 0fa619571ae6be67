"""Client connections: limits of their number, and timeouts for sending and receiving.

uvicorn's own protocol accepts any number of connections, and its only timeout is the one between two requests.
"""

import asyncio
import ipaddress
import logging
import resource
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from core.settings.api import ApiSettings
from service.http.asgi_scope import client_network
from service.http.websocket_connections import WebSocketConnection

logger = logging.getLogger(__name__)

# That an idle connection is kept open for another request: longer than clients and proxies keep theirs (httpx 5 s,
# nginx 60 s, Caddy 2 minutes), or requests are sent into connections that are being closed.
IDLE_SECONDS = 150
BACKLOG = 100  # largest number of connections that wait in the kernel, and that one turn of the event loop accepts

MIN_BODY_BYTES = 16 * 1024  # least bytes of a body in every `ConnectionTimes.body`

_RESERVED_DESCRIPTORS = 64
_MIN_CONNECTIONS = 16
_LOG_INTERVAL_SECONDS = 60.0


@dataclass(frozen=True)
class ConnectionTimes:
    """Seconds that a client may take, so that slow ones cannot hold all connections."""

    head: float = 20.0  # to send the head of a request; a WebSocket is answered within the same time
    body: float = 30.0  # for each `MIN_BODY_BYTES` of a body
    reading: float = 300.0  # to read anything of a response. A laptop that sleeps for a moment keeps its download.


class Connections:
    """The open connections of one server, and their limits.

    At a limit, a new connection replaces the one that has been idle for the longest. It is refused if none is idle.
    """

    def __init__(self, settings: ApiSettings, times: ConnectionTimes = ConnectionTimes()) -> None:
        self.settings = settings
        self.times = times
        self.most = max_connections(settings.max_connections)
        self._proxies = [ipaddress.ip_network(proxy) for proxy in settings.trusted_proxies]
        self._by_client: Counter[str] = Counter()
        self._counted: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        self._silent_until = 0.0

    def opened(self, connection: "Connection") -> str | None:
        """Count a new connection and make room for it; return the limit that is reached, if there is no room."""
        self._counted.add(connection)
        self._by_client[connection.client_network] += 1
        most, processes = self.settings.max_connections_per_client, self.settings.processes
        shared = f", shared by {processes} processes" if processes > 1 else ""
        same_client = (other for other in self._idle if other.client_network == connection.client_network)
        if len(self._counted) > self.most:
            if not self._abort_first(self._idle):
                name = f"GRADIENT_API__MAX_CONNECTIONS{shared}"
                return f"{self.most} connections are open, the limit of this service ({name})"
        elif (
            self._by_client[connection.client_network] <= most
            or self._is_proxy(connection)
            or self._abort_first(same_client)
        ):
            return None
        else:
            name = f"GRADIENT_API__MAX_CONNECTIONS_PER_CLIENT{shared}"
            return f"{most} connections from your address are open, the limit for one client ({name})"
        return None

    def closed(self, connection: "Connection") -> None:
        """Stop counting a connection; a repeated call has no effect."""
        if connection not in self._counted:
            return
        self.busy(connection)
        self._counted.remove(connection)
        self._by_client[connection.client_network] -= 1
        if not self._by_client[connection.client_network]:
            del self._by_client[connection.client_network]

    def idle(self, connection: "Connection") -> None:
        self._idle[connection] = None

    def busy(self, connection: "Connection") -> None:
        self._idle.pop(connection, None)

    def loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error of the event loop; failures to accept connections, which repeat quickly, only once a minute."""
        if not str(context.get("message")).startswith("socket.accept()"):
            loop.default_exception_handler(context)
        elif loop.time() >= self._silent_until:
            self._silent_until = loop.time() + _LOG_INTERVAL_SECONDS
            logger.error("connections_not_accepted", extra={"error": str(context.get("exception"))})

    def _abort_first(self, candidates: Iterable["Connection"]) -> bool:
        oldest = next(iter(candidates), None)
        if oldest is None:
            return False
        self.closed(oldest)  # at once: several connections may arrive before the event loop closes it
        oldest.end()
        return True

    def _is_proxy(self, connection: "Connection") -> bool:
        try:
            address = ipaddress.ip_address(connection.client[0] if connection.client else "")
        except ValueError:  # a peer on a Unix socket has no address
            return False
        return any(address in network for network in self._proxies)


def max_connections(wanted: int) -> int:
    """Return the number of connections that the limit of file descriptors allows, at most `wanted`.

    Each connection may need a file too. Raises the process's soft limit as far as its hard one allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * wanted + BACKLOG + _RESERVED_DESCRIPTORS
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = min(wanted, max(_MIN_CONNECTIONS, (soft - BACKLOG - _RESERVED_DESCRIPTORS) // 2))
    if most < wanted:
        logger.warning("connections_limited", extra={"connections": most, "wanted": wanted, "descriptors": soft})
    return most


class Connection(H11Protocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,  # the event loop; default: the running one
        *,
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.client_network = ""
        self._connections = connections
        self._times = connections.times
        self._awaited: type[h11.IDLE | h11.SEND_BODY] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._received = 0
        self._held_back = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own signature
        super().connection_made(transport)
        self.client_network = client_network(self.client[0] if self.client else None)
        refusal = self._connections.opened(self)
        if refusal is not None:
            transport.write(_refusal_response(refusal))
            transport.close()
            return
        self._connections.idle(self)
        self._start_timeout(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        if self._is_websocket():
            return
        self._held_back = self._held_back or self.flow.read_paused
        state = self.conn.their_state
        if state is not h11.IDLE:
            self._connections.busy(self)
        self._start_timeout(state if state in {h11.IDLE, h11.SEND_BODY} else None)

    def on_response_complete(self) -> None:
        """Wait for the next request; until its first byte, uvicorn's own timeout applies."""
        super().on_response_complete()
        if self._is_websocket():
            return  # its request was waiting behind the one that is answered
        state = self.conn.their_state
        if state is h11.IDLE and not self.transport.is_closing():
            self._connections.idle(self)
        self._start_timeout(state if state is h11.SEND_BODY else None)

    def pause_writing(self) -> None:
        """Pause sending, because the client does not read, and start the timeout."""
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(self._times.reading, self.end)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout and stop counting the connection."""
        super().connection_lost(exc)
        self._start_timeout(None)
        self._connections.closed(self)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to a WebSocket; it is counted until its end, and has to be answered in time."""
        if any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
            for name, value in self.headers
        ):
            self.send_400_response("A WebSocket's handshake has no body.")  # the handshake would never be answered
            return
        self._connections.busy(self)
        self._start_timeout(None)
        self._start_timeout(h11.IDLE)
        super().handle_websocket_upgrade(event)
        protocol = self.transport.get_protocol()
        if isinstance(protocol, WebSocketConnection):
            protocol.upgraded_from, protocol.send_seconds = self, self._times.reading
            if self._write_deadline is not None:  # only the new protocol will be told to resume
                self.resume_writing()
                protocol.pause_writing()

    def websocket_accepted(self) -> None:
        self._start_timeout(None)

    def websocket_closed(self) -> None:
        """Stop counting the connection, which has ended as a WebSocket."""
        self._start_timeout(None)
        self._connections.closed(self)

    def end(self) -> None:
        self.transport.abort()

    def _is_websocket(self) -> bool:
        return self.transport.get_protocol() is not self

    def _start_timeout(self, awaited: type[h11.IDLE] | type[h11.SEND_BODY] | None) -> None:
        """Start the timeout for the head of a request or the answer to a handshake, or for a body; None: cancel it."""
        if awaited is self._awaited:
            return
        self._awaited = awaited
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if awaited is h11.IDLE:
            self._deadline = self.loop.call_later(self._times.head, self.end)
        elif awaited is h11.SEND_BODY:
            self._held_back = False
            self._measure_body()

    def _measure_body(self) -> None:
        self._received = 0
        self._deadline = self.loop.call_later(self._times.body, self._check_body)

    def _check_body(self) -> None:
        # A client cannot send more while reading is paused, nor before it gets "100 Continue".
        waits_for_us = self._held_back or self.cycle.waiting_for_100_continue
        self._held_back = self.flow.read_paused
        if self._received < MIN_BODY_BYTES and not waits_for_us:
            self.end()
        else:
            self._measure_body()


def _refusal_response(reason: str) -> bytes:
    text = f"{reason}. Try again in a few seconds.\n".encode()
    head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 5\r\n"
    return f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text
