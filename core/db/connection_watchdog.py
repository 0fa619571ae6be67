"""A watchdog that closes database connections which hang.

TCP's timers detect a dead server, and the server ends slow statements. Neither detects a server, or a proxy in front
of it, that accepts data and never answers: the thread would wait forever.
"""

import logging
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from sqlalchemy import event

from core.db.database import Database

logger = logging.getLogger(__name__)

MAX_CHECKOUT_SECONDS = 45.0
"""Longer than any transaction takes: the server ends statements after 15 s and waits for a lock after 5 s."""


class ConnectionWatchdog:
    """A thread that shuts down connections which have been checked out for too long.

    The thread that waits on one gets an error, and can retry on a new connection.
    Nothing is done for SQLite.
    """

    def __init__(self, database: Database) -> None:
        self._checked_out: dict[int, tuple[float, Any]] = {}
        self._thread = threading.Thread(target=self._run, name="connection-watchdog", daemon=True)
        if not database.is_sqlite:
            # Inserted before the ping that checks the connection, which may hang as well.
            event.listen(database.engine, "checkout", self._on_checkout, insert=True)
            event.listen(database.engine, "checkin", self._on_checkin)
            self._thread.start()

    def _on_checkout(self, connection: Any, record: object, _fairy: object) -> None:  # noqa: ANN401 - the driver's own
        self._checked_out[id(record)] = (time.monotonic(), connection)

    def _on_checkin(self, _connection: object, record: object) -> None:
        self._checked_out.pop(id(record), None)

    def _run(self) -> None:
        while True:
            time.sleep(MAX_CHECKOUT_SECONDS / 10)
            late = time.monotonic() - MAX_CHECKOUT_SECONDS
            for key, (taken_at, connection) in list(self._checked_out.items()):
                if taken_at < late:
                    self._checked_out.pop(key, None)
                    logger.error("connection_broken", extra={"seconds": MAX_CHECKOUT_SECONDS})
                    _shutdown_socket(connection)


def _shutdown_socket(connection: Any) -> None:  # noqa: ANN401 - the driver's own
    """Shut down the connection's socket, which ends the wait of the thread that uses it."""
    # It may be closed by now.
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)
