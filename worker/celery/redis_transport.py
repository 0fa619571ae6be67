"""Kombu's Redis transport, made to skip malformed messages.

Kombu removes an entry from its list and then unpacks it: an entry that is not JSON, or not an envelope, ends the whole
worker.
"""

import logging
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis, virtual

logger = logging.getLogger(__name__)


class Message(virtual.Message):
    """A message that has all the parts that Kombu takes for granted; creating another one raises TypeError."""

    def __init__(self, payload: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - kombu's hook
        properties = payload["properties"]
        kinds = {dict: (payload["headers"], properties["delivery_info"]), str: (properties["delivery_tag"],)}
        if not all(isinstance(value, kind) for kind, values in kinds.items() for value in values):
            raise TypeError("a part of it is of another kind")
        super().__init__(payload, *args, **kwargs)  # type: ignore[no-untyped-call]  # kombu is typed in part


class Channel(redis.Channel):
    """Creates checked messages."""

    Message = Message


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
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
