"""Passes one HTTP request on over a connection to a TensorBoard, and streams its answer."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import h11
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

_REQUEST_HEADERS = frozenset({b"accept", b"accept-encoding", b"content-type", b"if-none-match", b"if-modified-since"})
"""Headers that are passed on; cookies are not."""
_DROPPED = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"server", b"date", b"set-cookie"})
_ANSWER_SECONDS = 90.0  # longest time until an answer begins: the first one waits for TensorBoard's start
_BLOCK = 64 * 1024


async def forward(connection: socket.socket, request: Request, body: bytes) -> Response:
    """Return the answer to a request, whose body is streamed."""
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    exchange = h11.Connection(h11.CLIENT)
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            writer.write(_encode_request(exchange, request, body))
            await writer.drain()
            head = await _next_event(exchange, reader)
    except BaseException:
        writer.close()
        raise
    if not isinstance(head, h11.Response):
        writer.close()
        raise ConnectionError("TensorBoard ended before its answer")
    answer = StreamingResponse(_stream_body(exchange, reader, writer), head.status_code)
    answer.raw_headers = [(name, value) for name, value in head.headers if name not in _DROPPED]
    return answer


def _encode_request(exchange: h11.Connection, request: Request, body: bytes) -> bytes:
    query = request.scope["query_string"]
    target = request.scope["raw_path"] + (b"?" + query if query else b"")
    headers = [(b"host", b"tensorboard"), (b"connection", b"close"), (b"content-length", b"%d" % len(body))]
    headers += [(name, value) for name, value in request.headers.raw if name in _REQUEST_HEADERS]
    events = (h11.Request(method=request.method, target=target, headers=headers), h11.Data(body), h11.EndOfMessage())
    return b"".join(exchange.send(event) or b"" for event in events)


async def _next_event(exchange: h11.Connection, reader: asyncio.StreamReader) -> object:
    while True:
        try:
            event = exchange.next_event()
        except h11.RemoteProtocolError as error:
            raise ConnectionError("TensorBoard did not answer in HTTP") from error
        if event is not h11.NEED_DATA:
            return event
        exchange.receive_data(await reader.read(_BLOCK))


async def _stream_body(
    exchange: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> AsyncIterator[bytes]:
    try:
        while isinstance(event := await _next_event(exchange, reader), h11.Data):
            yield bytes(event.data)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
