"""Celery's consumer, which takes our own messages and no others.

Celery trusts whoever reaches its broker. A message whose body is no list of three ends the thread that unpacks it and
is never acknowledged: two of them, and the worker waits for those for ever and hears nothing more. A message of an
unknown task without an id ends the worker, goes back into the queue, and ends the next one.
"""

import logging
from collections.abc import Callable
from typing import Any

from celery.worker import consumer

from core.queue import PING, RING

logger = logging.getLogger(__name__)

_UNUSED_HEADERS = ("chord", "compression", "eta", "expires", "group", "shadow", "stamped_headers", "timelimit")


class Consumer(consumer.Consumer):  # type: ignore[misc]  # celery ships no types
    """Hands rings and pings on; whatever else comes is logged and gone."""

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], None]:  # noqa: ANN401 - celery's hook
        """What is called with each message."""
        handle = super().create_task_handler(*args, **kwargs)

        def handle_ours(message: Any) -> None:  # noqa: ANN401 - celery's hook
            if _is_ours(message):
                handle(message)
            else:
                logger.warning("message_refused")  # of what it holds nothing is repeated
                message.reject_log_error(logger, self.connection_errors)

        return handle_ours


def _is_ours(message: Any) -> bool:  # noqa: ANN401 - celery's
    try:
        headers = message.headers
        args, kwargs, embedded = message.decode()
        return (
            headers["task"] in {RING, PING}
            and isinstance(headers["id"], str)
            # None of Celery's ways to have a task called later, again, or followed by another.
            and all(headers.get(name) in (None, [None, None]) for name in _UNUSED_HEADERS)
            and not headers.get("retries")
            and isinstance(args, list)
            and kwargs == {}
            and not any(embedded.values())
        )
    except Exception:  # noqa: BLE001 - whatever an unreadable message makes of us
        return False
