"""The followers of a log share what is read of it."""

import asyncio
import errno
import re
import time
from pathlib import Path

from support.deployment import TIMEOUT_SECONDS

from service.auth.authentication import Principal
from service.log_stream.follower import LogStream

FOLLOWERS = 100


class Client:
    """A client of a stream, within the process."""

    def __init__(self, stores, job_id, after=0, key="k1"):
        self.text = bytearray()
        self._lines, self._looked_at = [], 0
        self.gone = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        stream = LogStream(stores, job_id, after, Principal(key, "one"))
        self.task = asyncio.create_task(stream({}, self._receive, self._send))

    def lines(self):
        whole = self.text.rfind(b"\n") + 1
        self._lines += map(int, re.findall(rb"^id: (\d+)$", self.text[self._looked_at : whole], re.MULTILINE))
        self._looked_at = whole
        return self._lines

    async def _receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        await self.reads.wait()
        self.text += message.get("body", b"")


async def wait_for(condition):
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)


async def leave(clients):
    for client in clients:
        client.gone.set()
    await asyncio.gather(*(client.task for client in clients))


def count_calls(monkeypatch, target, name):
    """Record the time of each call of a method from now on."""
    real, calls = getattr(target, name), []

    def counted(*arguments, **options):
        calls.append(time.monotonic())
        return real(*arguments, **options)

    monkeypatch.setattr(target, name, counted)
    return calls


def test_many_followers_cost_as_many_queries_as_one(stores, job_id, worker, monkeypatch):
    worker.start()
    queries = count_calls(monkeypatch, stores.database, "read")

    async def follow():
        began = time.monotonic()
        clients = [Client(stores, job_id) for _ in range(FOLLOWERS)]
        await wait_for(lambda: all(b"event: phase" in client.text for client in clients))
        await wait_for(lambda: len(queries) >= 3)
        assert len(stores.streams.feeds) == 1
        # As often, the messages to send are looked for.
        assert len(queries) <= 2 + 2 * (time.monotonic() - began)
        await leave(clients)

    asyncio.run(follow())
    assert (stores.streams.active, len(stores.streams.feeds)) == (0, 0)


def test_a_follower_that_joins_late_or_reads_slowly_gets_every_line_once(stores, job_id, worker):
    worker.start()

    async def follow():
        quick, slow = Client(stores, job_id), Client(stores, job_id)
        await wait_for(lambda: b"event: phase" in quick.text and b"event: phase" in slow.text)
        slow.reads.clear()
        with stores.logs.open_writer(job_id, 1) as log:
            for number in range(1, 11):
                log.append(b"%s\n" % (b"x" * 1000) * 500, number)
                await wait_for(lambda last=500 * number: len(quick.lines()) == last)
        late, middle = Client(stores, job_id), Client(stores, job_id, after=4990)
        slow.reads.set()
        await wait_for(
            lambda: {len(one.lines()) for one in (quick, slow, late)} == {5000} and len(middle.lines()) == 10
        )
        assert quick.lines() == slow.lines() == late.lines() == list(range(1, 5001))
        assert middle.lines() == list(range(4991, 5001))
        await leave([quick, slow, late, middle])

    asyncio.run(follow())


def test_more_followers_than_may_wait_for_a_thread_get_every_line(stores, job_id, worker):
    worker.start()
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"line\n" * 10, 1)

    async def follow():
        clients = [Client(stores, job_id)]
        await wait_for(lambda: len(clients[0].lines()) == 10)
        clients += [Client(stores, job_id, key=f"k{number % 16}") for number in range(15 * FOLLOWERS)]
        await wait_for(lambda: all(len(client.lines()) == 10 for client in clients))
        await leave(clients)

    asyncio.run(follow())
    assert stores.streams.active == 0


def test_a_log_is_followed_though_the_disk_has_no_room_for_its_folder(stores, job_id, worker, monkeypatch):
    worker.start()

    def full(*_args, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    async def follow():
        with monkeypatch.context() as disk:
            disk.setattr(Path, "mkdir", full)
            client = Client(stores, job_id)
            await wait_for(lambda: b"event: phase" in client.text)
        with stores.logs.open_writer(job_id, 1) as log:
            log.append(b"line\n", 1)
        await wait_for(lambda: client.lines() == [1])
        assert b"event: error" not in client.text
        await leave([client])

    asyncio.run(follow())


def test_a_feed_keeps_little_of_what_all_its_followers_have(stores, job_id, worker, feed, make_follower):
    worker.start()
    follower = make_follower()
    follower.poll()
    with stores.logs.open_writer(job_id, 1) as log:
        for number in range(200):
            log.append(b"%s\n" % (b"x" * 1000) * 10, number)
            follower.poll()
    assert sum(map(len, feed.kept)) < 64 * 1024 + 20_000


def test_followers_end_when_the_service_stops_even_if_a_client_does_not_read(stores, job_id, worker):
    worker.start()

    async def follow():
        clients = [Client(stores, job_id) for _ in range(3)]
        await wait_for(lambda: all(b"event: phase" in client.text for client in clients))
        clients[0].reads.clear()
        with stores.logs.open_writer(job_id, 1) as log:
            log.append(b"line\n", 1)
        await wait_for(lambda: all(client.lines() for client in clients[1:]))
        stores.streams.stop()
        async with asyncio.timeout(60):
            await asyncio.wait([client.task for client in clients])

    asyncio.run(follow())
    assert stores.streams.active == 0


def test_followers_end_when_their_log_cannot_be_read(stores, job_id, worker, monkeypatch):
    worker.start()
    monkeypatch.setattr("core.storage.joblogs.reader.LogReader.section", lambda *_, **__: 1 / 0)

    async def follow():
        async with asyncio.timeout(60):
            await asyncio.gather(*(Client(stores, job_id).task for _ in range(3)))

    asyncio.run(follow())
    assert stores.streams.active == 0


def test_a_follower_of_a_silent_job_gets_signs_of_life(stores, job_id, worker, monkeypatch):
    worker.start()
    monkeypatch.setattr("service.log_stream.follower.KEEP_ALIVE_SECONDS", 0.5)

    async def follow():
        client = Client(stores, job_id)
        await wait_for(lambda: client.text.count(b": still here\n\n") >= 2)
        await leave([client])

    asyncio.run(follow())
    assert stores.streams.active == 0


def test_an_unfinished_line_comes_again_while_nothing_else_does(stores, job_id, worker, monkeypatch):
    worker.start()
    monkeypatch.setattr("service.log_stream.follower.KEEP_ALIVE_SECONDS", 0.5)
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"waits", 1)

        async def follow():
            client = Client(stores, job_id)
            await wait_for(lambda: client.text.count(b'{"message":"waits"}') >= 2)
            await leave([client])

        asyncio.run(follow())
