"""Kombu's Redis transport, made to skip malformed messages and to survive acknowledgements that fail.

Kombu removes an entry from its list and then unpacks it: an entry that is not JSON, or not an envelope, ends the whole
worker. And it counts a message as being handled until Redis has taken its acknowledgement: as many failures as a worker
may handle messages at a time, while Redis restarts, and the worker never asks for another message, nor notices that its
connection is lost.
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
    """Creates checked messages, and counts those that are being handled."""

    Message, QoS = Message, QoS


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
