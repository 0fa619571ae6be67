import asyncio

import pytest
from support.live_service import make_job_body

from service.log_stream.feed import Authorization, JobFeed
from service.log_stream.follower import Follower


@pytest.fixture
def job_id(client):
    return client.post("/jobs", json=make_job_body()).json()["id"]


class PolledFollower(Follower):
    """A follower of a feed that reads only when it is polled."""

    def __init__(self, runner, feed, authorize, max_behind):
        super().__init__(feed, Authorization(authorize), 0, max_behind)
        self._runner = runner
        feed.followers[self] = None

    def poll(self):
        """Have the feed read, and return the events that are new to this follower."""
        return self._runner.run(self._poll()).decode()

    async def _poll(self):
        await self._feed.publish(await asyncio.to_thread(self._feed.poll))
        events = b""
        while new := await self.next_events():
            events += new
            if self._done:
                break
        return events


@pytest.fixture
def feed(stores, job_id):
    return JobFeed(stores, job_id)


@pytest.fixture
def make_follower(feed):
    """Makes followers of one feed."""
    with asyncio.Runner() as runner:
        yield lambda authorize=lambda: None, max_behind=None: PolledFollower(runner, feed, authorize, max_behind)
