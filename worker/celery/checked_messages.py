"""Celery's consumer for wake-ups alone, and Kombu's Redis transport, which skips malformed messages.

It runs no scripts.

Kombu removes an entry from its list and then unpacks it: an entry that is not JSON, or not an envelope, ends the whole
worker. And it counts a message as being handled until Redis has taken its acknowledgement: as many failures as a worker
may handle messages at a time, while Redis restarts, and the worker never asks for another message, nor notices that its
connection is lost.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from celery.worker import consumer
from kombu.transport import TRANSPORT_ALIASES, redis, virtual

from core.errors import StoreUnavailable
from core.notify.celery_app import WAKE_TASK

logger = logging.getLogger(__name__)
_REFUSED_SECONDS = 1.0
_UNUSED_HEADERS = ("chord", "compression", "eta", "expires", "group", "shadow", "stamped_headers", "timelimit")


@contextmanager
def mutex(client: Any, name: str, expire: int) -> Iterator[None]:  # noqa: ANN401 - a Redis client of kombu's
    """Let one worker at a time restore messages, as Kombu's does, without a script, which workers may not run.

    Two at once would deliver a message twice, which does no harm.
    """
    if not client.set(name, "1", nx=True, ex=expire):
        raise redis.MutexHeld
    yield
    client.delete(name)


class QoS(redis.QoS):
    """Counts the messages that are being handled."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message; if that fails, Redis delivers it again later, and it is no longer counted here."""
        try:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call]  # kombu is typed in part
        except self.channel.connection_errors:
            virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]  # the same
            raise


class Channel(redis.Channel):
    """Counts the messages that are being handled."""

    QoS = QoS


class Transport(redis.Transport):
    """Skips a malformed entry."""

    Channel = Channel

    def on_readable(self, fileno: int) -> None:  # type: ignore[override]  # as its own parent has it
        """Read an entry; log and drop a malformed one."""
        try:
            super().on_readable(fileno)  # type: ignore[no-untyped-call]  # kombu is typed in part
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            # The entry is off the list already, and not yet among the unacknowledged messages.
            logger.warning("message_refused")


def install() -> None:
    """Make this process use the transport for every Redis URL."""
    vars(redis)["Mutex"] = mutex
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"


class Consumer(consumer.Consumer):  # type: ignore[misc]  # celery ships no types
    """Handles wake-ups; logs and rejects every other message."""

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        self._log_away(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Log that the broker is away, and close the connection."""
        self._log_away(exc)
        with suppress(Exception):
            self.connection.collect()

    def _log_away(self, exc: Exception) -> None:
        logger.warning("broker_unreachable", exc_info=StoreUnavailable(str(exc)))
        if not isinstance(exc, self.connection_errors):
            time.sleep(_REFUSED_SECONDS)  # it answers with an error at once: kombu waits only for one that does not

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], None]:  # noqa: ANN401 - celery's hook
        handle = super().create_task_handler(*args, **kwargs)

        def handle_ours(message: Any) -> None:  # noqa: ANN401 - celery's hook
            if _is_own_message(message):
                handle(message)
            else:
                logger.warning("message_refused")  # its content is not logged
                message.reject_log_error(logger, self.connection_errors)

        return handle_ours


def _is_own_message(message: Any) -> bool:  # noqa: ANN401 - celery's
    try:
        headers = message.headers
        args, kwargs, embedded = message.decode()
        return (
            headers["task"] == WAKE_TASK
            and isinstance(headers["id"], str)
            # Reject Celery's ways to delay, repeat or chain a task.
            and all(headers.get(name) in (None, [None, None]) for name in _UNUSED_HEADERS)
            and not headers.get("retries")
            and isinstance(args, list)
            and kwargs == {}
            and not any(embedded.values())
        )
    except Exception:  # noqa: BLE001 - whatever an unreadable message makes of us
        return False
