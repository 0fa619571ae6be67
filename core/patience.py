"""Breaks connections that keep a thread waiting although nothing will come any more.

A server that died is noticed by TCP's own timers, a slow statement by the server. A server, or something before it,
that takes what is sent and never answers is noticed by neither: the thread would wait for ever.
"""

import logging
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from sqlalchemy import event

from core.db import Database

logger = logging.getLogger(__name__)


class Patience:
    """A thread that breaks connections which were taken from the pool too long ago.

    Whoever waits on one gets an error, and tries again on a new one.

    Args:
        database: Over PostgreSQL; SQLite needs none of this.
        seconds: How long a connection may be out: longer than any of our transactions lasts, whose statements the
            server ends after 15 s and whose waits for a lock after 5 s.
    """

    def __init__(self, database: Database, seconds: float) -> None:
        self._seconds = seconds
        self._out: dict[int, tuple[float, Any]] = {}
        self._thread = threading.Thread(target=self._run, name="patience", daemon=True)
        if not database.is_sqlite:
            # Before the ping that finds out whether the connection lives: that may wait for ever, too.
            event.listen(database.engine, "checkout", self._taken, insert=True)
            event.listen(database.engine, "checkin", self._given_back)
            self._thread.start()

    def _taken(self, connection: Any, record: object, _fairy: object) -> None:  # noqa: ANN401 - the driver's own
        self._out[id(record)] = (time.monotonic(), connection)

    def _given_back(self, _connection: object, record: object) -> None:
        self._out.pop(id(record), None)

    def _run(self) -> None:
        while True:
            time.sleep(self._seconds / 10)
            late = time.monotonic() - self._seconds
            for key, (taken_at, connection) in list(self._out.items()):
                if taken_at < late:
                    self._out.pop(key, None)
                    logger.error("connection_broken", extra={"seconds": self._seconds})
                    _break(connection)


def _break(connection: Any) -> None:  # noqa: ANN401 - the driver's own
    """Shut the connection's socket down under whoever waits on it."""
    # It may be closed by now.
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)
