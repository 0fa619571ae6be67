"""Celery's consumer, restricted to this service's own messages.

Celery trusts every message that its broker delivers. A message whose body is not a list of three ends the thread that
unpacks it and is never acknowledged; after two such messages the worker waits for ever and receives nothing more. A
message of an unknown task without an id ends the worker, returns to the queue, and ends the next worker.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.worker import consumer

from core.errors import StoreUnavailable
from core.notify.celery_app import PING_TASK, WAKE_TASK

logger = logging.getLogger(__name__)

_REFUSED_SECONDS = 1.0
_UNUSED_HEADERS = ("chord", "compression", "eta", "expires", "group", "shadow", "stamped_headers", "timelimit")


class Consumer(consumer.Consumer):  # type: ignore[misc]  # celery ships no types
    """Handles wake-ups and pings; logs and rejects every other message."""

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
            headers["task"] in {WAKE_TASK, PING_TASK}
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
