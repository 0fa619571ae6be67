"""Streams the engine's messages during pulls, builds and pushes.

These may take hours and be silent for long. A separate thread sends the request and reads, so that the caller can give
up at any time: the connection is then cut, and the engine ends the work by itself. The SDK's connections cannot be cut
while they wait, so this module opens its own.
"""

import codecs
import contextlib
import http.client
import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, cast
from urllib.parse import urlencode, urlsplit

from docker.errors import StreamParseError
from docker.utils.json_stream import json_stream

from worker.backends.docker.engine.client import Engine, EngineRefused, EngineUnavailable

Message = dict[str, Any]
_Item = Message | Exception | None

_POLL_SECONDS = 1.0
_ERROR = 400
_BLOCK_BYTES = 16 * 1024
_MAX_QUEUED = 1000


@dataclass(frozen=True, slots=True)
class EngineRequest:
    path: str  # after the API's version, for example `/images/create`
    params: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    body: IO[bytes] | None = None  # the request's body, or None


def stream_messages(engine: Engine, request: EngineRequest, check: Callable[[], None]) -> Iterator[Message]:
    """Send a request, and yield the engine's messages as they arrive.

    `check`: called about once a second; raises to abort the work.
    """
    version = engine.call(lambda api: api.api_version)
    connection = _connection(engine.url)
    items: queue.Queue[_Item] = queue.Queue(_MAX_QUEUED)
    given_up = threading.Event()
    arguments = (connection, f"/v{version}", request, items, given_up)
    reader = threading.Thread(target=_read_messages, args=arguments, name="engine-messages", daemon=True)
    reader.start()
    try:
        while True:
            check()
            with contextlib.suppress(queue.Empty):
                item = items.get(timeout=_POLL_SECONDS)
                if item is None:
                    return
                if isinstance(item, Exception):
                    raise item
                yield item
    finally:
        given_up.set()
        _shut_down(connection)
        reader.join()
        connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme in {"unix", "http+unix"}:
        return _UnixConnection(parts.path)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "localhost", parts.port)


def _read_messages(
    connection: http.client.HTTPConnection,
    prefix: str,
    request: EngineRequest,
    items: "queue.Queue[_Item]",
    given_up: threading.Event,
) -> None:
    end: Exception | None = None
    try:
        connection.connect()
        if given_up.is_set():  # aborted before there was a connection to cut
            return
        connection.request(
            "POST", f"{prefix}{request.path}?{urlencode(request.params)}", body=request.body, headers=request.headers
        )
        response = connection.getresponse()
        if response.status >= _ERROR:
            text = response.read().decode(errors="replace").strip()
            with contextlib.suppress(ValueError, KeyError, TypeError):
                text = str(json.loads(text)["message"])
            end = EngineRefused(response.status, text or response.reason)
        else:
            blocks = iter(lambda: response.read1(_BLOCK_BYTES), b"")
            for message in json_stream(codecs.iterdecode(blocks, "utf-8", "replace")):
                _enqueue(items, cast("Message", message), given_up)
    except (OSError, http.client.HTTPException, StreamParseError, ValueError) as error:
        end = EngineUnavailable(f"the connection was lost during the work: {error}")
    _enqueue(items, end, given_up)


def _enqueue(items: "queue.Queue[_Item]", item: _Item, given_up: threading.Event) -> None:
    """Put a message, unless the caller stopped reading: the reader must not wait for ever at a full queue."""
    while not given_up.is_set():
        with contextlib.suppress(queue.Full):
            items.put(item, timeout=_POLL_SECONDS)
            return


def _shut_down(connection: http.client.HTTPConnection) -> None:
    """Wake a reader that waits for the engine."""
    with contextlib.suppress(OSError, AttributeError):  # not connected yet, or no longer
        connection.sock.shutdown(socket.SHUT_RDWR)
