"""Messages that the other side of a tunnel must not send, and late ones."""

import asyncio
import struct

import pytest

from core.jobs.exec.channel import ChannelBroken
from core.jobs.exec.tunnel import WINDOW_BYTES, Tunnel

OPEN, DATA, TAKEN, END = range(4)


def message(kind, number, payload=b""):
    return struct.pack("!BI", kind, number) + payload


async def never():
    await asyncio.Event().wait()


def run(messages, connect=never):
    """Take these messages; return what is sent for them."""
    answers = []

    async def received():
        for one in messages:
            yield one
        await asyncio.sleep(0)

    async def send(message):
        answers.append(message)

    asyncio.run(Tunnel(send, connect).run(received()))
    return answers


@pytest.mark.parametrize(
    "messages",
    [
        [b""],
        [b"\1\0"],
        [message(OPEN, 1), message(OPEN, 1)],
        [message(OPEN, 1), message(TAKEN, 1, b"\0")],
        [message(OPEN, 1), message(DATA, 1, bytes(WINDOW_BYTES)), message(DATA, 1, b"x")],
        [message(OPEN, 1), *[message(END, 1)] * (WINDOW_BYTES + 1)],
    ],
)
def test_what_breaks_its_rules_ends_the_tunnel(messages):
    with pytest.raises(ChannelBroken):
        run(messages)


def test_a_worker_opens_no_connection_at_the_service():
    with pytest.raises(ChannelBroken):
        run([message(OPEN, 1)], connect=None)


def test_messages_of_a_connection_that_has_ended_are_passed_over():
    assert run([message(DATA, 7, b"late"), message(TAKEN, 7, b"\0\0\0\1"), message(END, 7)]) == []
