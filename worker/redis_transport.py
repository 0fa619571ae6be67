"""Kombu's transport over Redis, in which what is no message at all ends nothing.

Kombu takes an entry off its list and then unpacks it: what is no JSON, or no envelope, ends the whole worker.
"""

import logging
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis, virtual

logger = logging.getLogger(__name__)


class Message(virtual.Message):
    """One that has all the parts that Kombu takes for granted."""

    def __init__(self, payload: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - kombu's hook
        properties = payload["properties"]
        kinds = {dict: (payload["headers"], properties["delivery_info"]), str: (properties["delivery_tag"],)}
        if not all(isinstance(value, kind) for kind, values in kinds.items() for value in values):
            raise TypeError("a part of it is of another kind")
        super().__init__(payload, *args, **kwargs)  # type: ignore[no-untyped-call]  # kombu is typed in part


class Channel(redis.Channel):
    """Makes such messages."""

    Message = Message


class Transport(redis.Transport):
    """Reads on where an entry was none."""

    Channel = Channel

    def on_readable(self, fileno: int) -> None:  # type: ignore[override]  # as its own parent has it
        """Something came."""
        try:
            super().on_readable(fileno)  # type: ignore[no-untyped-call]  # kombu is typed in part
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            # It is off the list already, and not yet among the messages that wait to be acknowledged.
            logger.warning("message_refused")


def install() -> None:
    """Have this process use it for every Redis."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
