from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Union
from urllib.parse import urlencode, urlsplit

from gradient_cli.api import server_clock
from gradient_cli.api.proxy import find_proxy
from gradient_cli.config import explain_missing_key
from gradient_cli.errors import TOO_MANY_REQUESTS, ClientError, ConnectionFailed, ServerError, UsageError
from gradient_cli.terminal import print_message, sanitize

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection


Body = Union[bytes, Iterator[bytes], None]
CONNECT_SECONDS = 15.0
RESPONSE_SECONDS = 60.0
UPLOAD_SECONDS = 600.0  # the server unpacks and checks a workspace before it answers
STREAM_SECONDS = 60.0  # a followed log sends a keep-alive at least every 15 s
UNREAD_SECONDS = 300.0  # a server whose job reads no input answers no ping either
MAX_RATE_LIMIT_SECONDS = 300.0  # longest total wait for a rate limit of the server
CHUNK = 1 << 18
_ERROR_BYTES = 1_000_000
_UNAUTHORIZED = 401
_PAGE_BYTES = 256_000_000


def _without_secrets(url: str) -> str:
    """Return what of a wrong address can be shown: nothing that may be a password or a token."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    _login, at, host = rest.rpartition("@")  # first: a password may have a ? or a #
    host = host.partition("?")[0].partition("#")[0]
    return sanitize(f"{scheme}{separator}{'…@' if at else ''}{host}")[:100]


class Transport:
    """An HTTP client for one server, over one persistent connection.

    `source`: what named the address, for errors. Raises `UsageError`: it is no address.
    """

    def __init__(self, url: str, key: str, source: str = "url") -> None:
        self.kept: http.client.HTTPConnection | None = None
        self.url = url
        self._key = key
        hint = "An address looks like http://127.0.0.1:8780 or https://host/path."
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), 0
        clean = url.isascii() and url.isprintable() and " " not in url
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0 or not clean:
            raise UsageError(f"{source}: {_without_secrets(url)!r} is not the address of a server", hint=hint)
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise UsageError(f"{source}: {_without_secrets(url)!r} may only have scheme, host and path", hint=hint)
        self._parts = parts
        self._proxy = find_proxy(self._parts)

    def json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,  # parameters; those that are None are left out
        body: object = None,
        headers: Mapping[str, str] | None = None,
        needs: str = "",  # a field that the object must have to be a response of a Gradient Jobs server
    ) -> dict[str, Any]:
        """Send a request, and return the JSON object in the response; for 204, an empty object."""
        payload = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if payload is not None else {}
        response = self.open(method, path, query=query, body=payload, headers={**sent, **(headers or {})})
        return self.read_json(response, needs)

    def read_json(self, response: http.client.HTTPResponse, needs: str = "") -> dict[str, Any]:
        """Return the JSON object in a response; for 204, an empty object."""
        text = b"".join(self.chunks(response, limit=_PAGE_BYTES))
        if not text and response.status == 204:  # noqa: PLR2004  no content
            return {}
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict) or (needs and needs not in value):
            raise self._not_our_server(response)
        return value

    def open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Body = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = RESPONSE_SECONDS,
    ) -> http.client.HTTPResponse:
        """Send a request as `open_once` does, and again while a rate limit is reached, for a few minutes at most."""
        send = partial(self.open_once, method, path, query=query, body=body, headers=headers, seconds=seconds)
        if body is None or isinstance(body, bytes):
            return self._retry_rate_limited(send)
        return send()  # an iterator is consumed by it; only its caller can make another one

    def open_once(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,  # parameters; those that are None are left out
        body: Body = None,  # the bytes to send; an iterator needs a Content-Length header
        headers: Mapping[str, str] | None = None,
        seconds: float = RESPONSE_SECONDS,  # timeout for the connection and for each read of the response
        keep: bool = True,  # use the persistent connection; a followed log takes one of its own
    ) -> http.client.HTTPResponse:
        """Send a request, and return the response with its body unread."""
        target = self._parts.path.rstrip("/") + path + _encode_query(query)
        sent = {"Accept": "application/json", "User-Agent": "gradient-cli", **(headers or {})}
        if self._key:
            sent["x-api-key"] = self._key

        if self._proxy and self._parts.scheme == "http":  # which takes whole addresses; to https it opens a tunnel
            target = f"http://{self._parts.netloc}{target}"
            sent.update(self._proxy.headers)
        send = partial(self.send, method, target, body, sent, seconds, keep=keep)
        return self._send_checked(send, repeat=keep and method == "GET")

    def _send_checked(self, send: Callable[[], http.client.HTTPResponse], *, repeat: bool) -> http.client.HTTPResponse:
        """Return a successful response; with `repeat`, send again if the persistent connection was stale."""
        reused = repeat and self.kept is not None
        try:
            response = send()
        except ConnectionFailed as error:
            if not (reused and error.transient):
                raise
            response = send()  # the persistent connection was stale
        if not 200 <= response.status < 300:  # noqa: PLR2004  the range of success
            raise self._error_of(response)
        return response

    def _retry_rate_limited(self, send: Callable[[], http.client.HTTPResponse]) -> http.client.HTTPResponse:
        """Repeat a rate-limited request after its Retry-After, for a few minutes at most.

        A rate-limited request had no effect, so any may be repeated.
        """
        until = time.monotonic() + MAX_RATE_LIMIT_SECONDS
        while True:
            try:
                return send()
            except ServerError as error:
                if error.status != TOO_MANY_REQUESTS or time.monotonic() + error.retry_after > until:
                    raise
                print_message(f"{error} Waiting {error.retry_after:.0f} s…")
                time.sleep(error.retry_after)

    def chunks(self, response: http.client.HTTPResponse, *, limit: int | None = None) -> Iterator[bytes]:
        total = 0
        # A body of unknown length may be a stream: read what has arrived. read1 does not end a body of known length.
        read = response.read1 if response.length is None else response.read
        while True:
            try:
                chunk = read(CHUNK)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                raise self._to_client_error(error) from None
            if not chunk:
                break
            total += len(chunk)
            if limit is not None and total > limit:
                self.close()
                raise ConnectionFailed(f"the response of {self.url} is too large", transient=False)
            yield chunk
        if response.length:
            self.close()
            raise ConnectionFailed(
                f"the connection to {self.url} was lost in the middle of a response", hint="Try again."
            )

    def __del__(self) -> None:
        self.close()

    @contextmanager
    def websocket(self, path: str, query: Mapping[str, object] | None = None) -> Iterator[ClientConnection]:
        from websockets.exceptions import InvalidHandshake
        from websockets.sync.client import connect

        scheme = self._parts.scheme.replace("http", "ws")
        target = f"{scheme}://{self._parts.netloc}{self._parts.path.rstrip('/')}{path}{_encode_query(query)}"
        with ExitStack() as stack:
            try:
                opened = connect(
                    target,
                    additional_headers={"x-api-key": self._key} if self._key else {},
                    user_agent_header="gradient-cli",
                    compression=None,
                    proxy=self._proxy.url if self._proxy else None,
                    open_timeout=RESPONSE_SECONDS,
                    ping_timeout=UNREAD_SECONDS,
                    close_timeout=1,
                )
                connection = stack.enter_context(opened)
            except (InvalidHandshake, OSError) as error:
                raise self._websocket_error(error) from None
            yield connection

    def _websocket_error(self, error: Exception) -> ClientError:
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        if isinstance(error, InvalidStatus):
            answer = error.response
            wait = answer.headers.get("Retry-After")
            return self._server_error(answer.status_code, answer.reason_phrase, bytes(answer.body), wait)
        if isinstance(error, InvalidHandshake):
            return ConnectionFailed(
                f"{self.url} did not open a WebSocket: {sanitize(error)}",
                hint="A proxy in front of the server must forward `Upgrade: websocket`.",
                transient=False,
            )
        return self._to_client_error(error)

    def close(self) -> None:
        """Close the persistent connection; the next request opens another."""
        if self.kept is not None:
            self.kept.close()
            self.kept = None

    def send(
        self, method: str, target: str, body: Body, headers: dict[str, str], seconds: float, *, keep: bool
    ) -> http.client.HTTPResponse:
        if method != "GET":
            self.close()  # only a GET may be repeated after a stale connection
        try:
            connection = self.kept if keep and self.kept else self._connection()
            if connection.sock is None:
                connection.timeout = min(CONNECT_SECONDS, seconds)
                connection.connect()
            connection.sock.settimeout(seconds)
            if keep:
                self.kept = connection
            # A server that refuses an upload answers before it has read it all: its response is more useful than the
            # broken pipe.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, target, body=body, headers=headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._to_client_error(error) from None
        server_clock.record(response.getheader("Date"))
        return response

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            if self._proxy is None:
                return http.client.HTTPSConnection(host, port)
            tunnel = http.client.HTTPSConnection(self._proxy.host, self._proxy.port)
            tunnel.set_tunnel(host, port, self._proxy.headers)
            return tunnel
        return http.client.HTTPConnection(
            *((host, port) if self._proxy is None else (self._proxy.host, self._proxy.port))
        )

    def _error_of(self, response: http.client.HTTPResponse) -> ClientError:
        if 300 <= response.status < 400:  # noqa: PLR2004  the range of redirections
            self.close()
            there = sanitize(response.getheader("Location") or "elsewhere")
            return ConnectionFailed(
                f"{self.url} redirects to {there}", hint="Use that address with --url.", transient=False
            )
        try:
            text = b"".join(self.chunks(response, limit=_ERROR_BYTES))
        except ConnectionFailed:
            text = b""
        return self._server_error(response.status, response.reason, text, response.getheader("Retry-After"))

    def _server_error(self, status: int, reason: str, text: bytes, retry_after: str | None) -> ServerError:
        try:
            error = json.loads(text)["error"]
            return self._parse_error({**error, "status": status, "retryAfter": retry_after})
        except (ValueError, LookupError, TypeError, AttributeError):
            kind = "failed" if status >= 500 else "refused"  # noqa: PLR2004  the server's own failures
            message = f"{self.url} {kind}: HTTP {status} {sanitize(reason)}"
            return self._parse_error({"message": message, "status": status, "retryAfter": retry_after})

    def _parse_error(self, error: dict[str, Any]) -> ServerError:
        status = int(error["status"])
        message, name, field = (sanitize(error.get(part) or "") for part in ("message", "name", "field"))
        hint = _HINTS.get(status, "")
        if status == _UNAUTHORIZED and not self._key:
            message, hint = f"there is no API key for {self.url}", f"{explain_missing_key(self.url)} {_NO_KEY_HINT}"
        wait = _parse_retry_after(str(error.get("retryAfter") or ""))
        return ServerError(message or name, status=status, name=name, field=field, hint=hint, retry_after=wait)

    def _not_our_server(self, response: http.client.HTTPResponse) -> ConnectionFailed:
        kind = sanitize(response.getheader("Content-Type") or "no content type")
        return ConnectionFailed(
            f"{self.url} sent an unexpected response (HTTP {response.status}, {kind})",
            hint="Check the address of the server; set it with --url or `gradient-cli login`.",
            transient=False,
        )

    def _to_client_error(self, error: Exception) -> ConnectionFailed:
        if isinstance(error, ConnectionFailed):
            return error
        if self._proxy and isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
            return ConnectionFailed(
                f"the proxy {self._proxy} of {self._proxy.variable} does not lead to {self.url}: {sanitize(error)}",
                hint=f"Correct {self._proxy.variable}, or add {self._parts.hostname} to NO_PROXY.",
            )
        texts = (getattr(error, name, "") for name in ("verify_message", "reason", "strerror"))
        detail = next((text for text in texts if text), "connection closed")
        for kinds, sentence, hint, transient in _FAILURES:
            if isinstance(error, kinds):
                message = sentence.format(url=self.url, host=self._parts.hostname or "", detail=detail)
                return ConnectionFailed(message, hint=hint, transient=transient)
        raise error


# Error types, message, hint, transient. The first matching row is used: a subclass stands before its base classes.
_FAILURES: tuple[tuple[tuple[type[Exception], ...], str, str, bool], ...] = (
    (
        (ConnectionRefusedError,),
        "nothing answers at {url}",
        "Is the server running? `gradient-server up` starts one on this machine; --url selects another.",
        True,
    ),
    ((socket.gaierror,), "the name {host} cannot be resolved", "Check the address and the network.", True),
    ((TimeoutError,), "{url} did not answer in time", "Check the network, or try again later.", True),
    (
        (ssl.SSLCertVerificationError,),
        "the certificate of {url} is not trusted: {detail}",
        "Check the address; for a private certificate authority, set SSL_CERT_FILE to its certificate.",
        False,
    ),
    ((ssl.SSLError,), "no TLS connection to {url}: {detail}", "If the server does not use TLS, use http://.", True),
    ((http.client.RemoteDisconnected,), "{url} closed the connection without a response", "Try again.", True),
    (
        (http.client.BadStatusLine, http.client.LineTooLong),
        "the server at {url} does not speak HTTP",
        "Check scheme, host and port of the address.",
        False,
    ),
    ((OSError, http.client.HTTPException), "connection to {url} lost: {detail}", "Try again.", True),
)

_NO_KEY_HINT = (
    "For a server on this machine, set GRADIENT_HOME to the folder that it prints as Data, and leave GRADIENT_URL out. "
    "For any other, `gradient-cli login` saves a key."
)
_HINTS = {
    401: "`gradient-cli login` saves a valid key; `gradient-server keys create` creates one.",
    413: "Exclude files with a .gradientignore, or transfer data separately from the workspace.",
    429: "Try again later, or ask the server's operator to raise the limit.",
    500: "Try again; if it keeps failing, check the server's log.",
    502: "A proxy could not reach the server: try again in a minute.",
    503: "The server is starting or overloaded: try again in a minute.",
    504: "The server is starting or overloaded: try again in a minute.",
}


def _parse_retry_after(retry_after: str) -> float:
    """Parse Retry-After as seconds, at most a minute; 5 s if it is not a plain number."""
    return min(float(retry_after), 60.0) if retry_after.isdecimal() and len(retry_after) < 9 else 5.0  # noqa: PLR2004 - at most eight digits


def _encode_query(query: Mapping[str, object] | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"?{urlencode(given)}" if given else ""
