from __future__ import annotations

import json
import selectors
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gradient_cli.errors import ConnectionFailed, ServerError
from gradient_cli.terminal import sanitize

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection


CHUNK = 16_384  # fits into what the kernel takes of a socket that is writable
_CONFLICT = 409


class Session:
    """An exec session. Any thread may send; one receives.

    `request`: the first message to send; None: none. Raises `ServerError`: it was refused.
    """

    def __init__(self, connection: ClientConnection, request: dict[str, Any] | None = None) -> None:
        self._connection = connection
        # the last message, once `outputs` has ended: `exit` with the exit code, or `ended` with a reason
        self.result: dict[str, Any] = {}
        if request is not None:
            self.send(request)
        for _ in self.outputs():
            break
        if "refused" in self.result:
            name = str(self.result.get("name", ""))
            raise ServerError(sanitize(self.result["refused"]), status=_CONFLICT, name=name)
        self.id = str(self.result.get("started"))

    def send(self, message: dict[str, Any] | bytes) -> bool:
        """Send a message, or input; return whether the session still takes it."""
        from websockets.exceptions import ConnectionClosed

        try:
            if isinstance(message, bytes):
                self._wait_until_writable()
            self._connection.send(message if isinstance(message, bytes) else json.dumps(message))
        except (ConnectionClosed, ValueError):  # ValueError: the socket is closed
            return False
        return True

    def send_input(self, read: Callable[[], bytes]) -> None:
        """Send what a function reads, until its end or the session's."""
        with suppress(OSError):  # what it reads from is closed
            while data := read():
                if not self.send(data):
                    return
        self.send({"eof": True})

    def _wait_until_writable(self) -> None:
        """Wait here until the service takes more: while `websockets` waits for that itself, it receives nothing."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection.socket, selectors.EVENT_WRITE)
            selector.select()

    def outputs(self) -> Iterator[tuple[int, bytes]]:
        """Yield stream number and data until the session ends, and (0, nothing) at its start."""
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, bytes):
                    yield message[0], message[1:]
                    continue
                self.result = json.loads(message)
                if "started" not in self.result:
                    return
                yield 0, b""
        except ConnectionClosed:
            raise ConnectionFailed("the connection was lost, which ended the session", hint="Try again.") from None
