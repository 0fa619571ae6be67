"""Calls between API processes: their answers, their errors, and what ends before it answers."""

import asyncio
from contextlib import contextmanager
from functools import wraps

import pytest

from core.errors import LimitReached
from service.siblings import Siblings, open_channels


def in_event_loop(test):
    @wraps(test)
    def run():
        asyncio.run(test())

    return run


@contextmanager
def siblings(**answers):
    """Two of them in one event loop, of which the first answers."""
    channels = open_channels(2)
    first, second = Siblings(), Siblings()
    for number, each in enumerate((first, second)):
        each.join(number, channels)
        each.answers |= answers
    first.start()
    yield first, second
    first.stop()
    for channel in channels:
        for end in channel:
            end.close()


@in_event_loop
async def test_a_process_answers_itself_and_another():
    async def join(*words):
        await asyncio.sleep(0)
        return "-".join(words)

    with siblings(join=join) as both:
        for each in both:
            assert await each.call(0, "join", "a" * 300_000, "b", seconds=10) == "a" * 300_000 + "-b"
        many = [both[1].call(0, "join", str(number), seconds=10) for number in range(50)]
        assert await asyncio.gather(*many) == [str(number) for number in range(50)]


@in_event_loop
async def test_an_error_is_raised_as_it_is():
    async def refuse():
        raise LimitReached("Three are open.", 7)

    with siblings(refuse=refuse) as (_, second):
        with pytest.raises(LimitReached, match=r"Three are open\. Try again in 7 seconds") as raised:
            await second.call(0, "refuse", seconds=10)
        assert raised.value.retry_after == 7


@in_event_loop
async def test_no_answer_is_an_os_error():
    async def fail():
        raise ValueError("a mistake")

    async def wait():
        await asyncio.Event().wait()

    with siblings(fail=fail, wait=wait) as (first, second):
        with pytest.raises(ConnectionError):
            await second.call(0, "fail", seconds=10)
        with pytest.raises(TimeoutError):
            await second.call(0, "wait", seconds=0.05)
        with pytest.raises(TimeoutError):  # it is not started
            await first.call(1, "wait", seconds=0.05)
