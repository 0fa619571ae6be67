"""Lets visitors with a ticket from the dashboard into a TensorBoard, and passes their requests on.

Its address has another host name than the dashboard's, so TensorBoard's scripts are never in the dashboard's origin and
never get its session. Visitors have a cookie of one board, for a path that only they know.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from html import escape
from urllib.parse import urlsplit

import h11
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from core.errors import JobNotFound, Unauthorized
from service.tensorboard.board import Board

_COOKIE = "gradient_tensorboard"
_MAX_BODY_BYTES = 4 * 1024**2
_METHODS = frozenset({"GET", "HEAD", "POST"})
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    # TensorBoard's pages have their own; what else a browser opens is data of a job.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}
_ENDED = (
    "This TensorBoard has ended: it was not used for a while, it was replaced by another one, or the server was "
    "restarted."
)
_REQUEST_HEADERS = frozenset({b"accept", b"accept-encoding", b"content-type", b"if-none-match", b"if-modified-since"})
"""Headers that are passed on; cookies are not."""
_DROPPED = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"server", b"date", b"set-cookie"})
_ANSWER_SECONDS = 90.0  # longest time until an answer begins: the first one waits for TensorBoard's start
_BLOCK = 64 * 1024


class Gateway:
    """The application at TensorBoard's address. `url`: URL of this address, without a trailing slash."""

    def __init__(self, find_board: Callable[[str], Board | None], url: str, dashboard: str) -> None:
        self._find_board = find_board
        self._netloc = urlsplit(url).netloc.lower()
        self._origin = f"{urlsplit(url).scheme}://{self._netloc}"
        self._secure = url.lower().startswith("https://")
        self._dashboard = f"{dashboard}/ui/jobs"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except ClientDisconnect:
            return
        for name, value in _HEADERS.items():
            answer.headers.setdefault(name, value)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        board = self._find_board(request.scope["path"].removeprefix("/").partition("/")[0])
        if board is None:
            return self._page(404, "This TensorBoard has ended", _ENDED)
        ticket = request.query_params.get("ticket")
        if ticket is not None and request.method == "GET":
            return self._let_in(board, ticket)
        visitor = board.visitor(request.cookies.get(_COOKIE))
        if visitor is None:
            return self._page(401, "Open this from the dashboard", "This browser has no session for this TensorBoard.")
        try:
            await visitor.authorize()
        except (Unauthorized, JobNotFound) as error:
            return self._page(401, "Your session has ended", error.message)
        return await self._pass_on(request, board)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that a page of another site made a browser send; None to all others."""
        if request.headers.get("host", "").lower() != self._netloc:
            return self._page(421, "Wrong address", f"TensorBoard is at {self._origin}.")
        if request.method not in _METHODS:
            return self._page(405, "Refused", "TensorBoard does not support this method.")
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
        followed_link = request.headers.get("sec-fetch-mode") == "navigate" and request.method == "GET"
        if (origin in {None, self._origin}) and (site in {"same-origin", "none"} or followed_link):
            return None
        return self._page(403, "Refused", "Pages of other sites may not read TensorBoard.")

    def _let_in(self, board: Board, ticket: str) -> Response:
        token = board.redeem(ticket)
        if token is None:
            return self._page(
                401, "Open this from the dashboard", "This link was already used or is older than ten minutes."
            )
        # Not a redirect: after a link on another site, the browser would not send the cookie with it.
        answer = self._page(
            200, "TensorBoard is starting", "This takes a few seconds.", {"Refresh": f"0; url=/{board.id}/"}
        )
        answer.set_cookie(_COOKIE, token, path=f"/{board.id}/", httponly=True, samesite="strict", secure=self._secure)
        return answer

    async def _pass_on(self, request: Request, board: Board) -> Response:
        body = b""
        async for block in request.stream():
            body += block
            if len(body) > _MAX_BODY_BYTES:
                return self._page(413, "Refused", "The request is too large.")
        board.used_at = time.monotonic()
        try:
            return await forward(board.process.connect(), request, body)
        except (OSError, TimeoutError):
            if self._find_board(board.id) is None:
                return self._page(404, "This TensorBoard has ended", _ENDED)
            if not board.process.has_ended():
                return self._page(504, "TensorBoard does not answer", "Try again in a few seconds.")
            return self._page(502, "TensorBoard has ended", board.process.problem() or "No reason was given.")

    def _page(self, status: int, title: str, text: str, headers: Mapping[str, str] | None = None) -> Response:
        link = f'<p><a href="{escape(self._dashboard)}">Back to the dashboard</a></p>'
        content = f"<!doctype html><html lang=en><title>{escape(title)}</title><h1>{escape(title)}</h1>"
        # Without `sandbox`, which would make this another site to the browser.
        policy = "default-src 'none'; frame-ancestors 'none'"
        given = {"Cache-Control": "no-store", "Content-Security-Policy": policy} | dict(headers or {})
        return HTMLResponse(f"{content}<p>{escape(text)}</p>{link}", status, given)


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
        raise ConnectionError("TensorBoard ended before it answered")
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
            raise ConnectionError("TensorBoard did not answer with HTTP") from error
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
