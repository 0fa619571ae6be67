"""Group commit: submissions that wait together are committed together, and each gets its own answer."""

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import select
from support.live_service import count_jobs, make_job_body, wait_until

from core.db.models.jobs import Job
from core.errors import SpecInvalid, StoreUnavailable
from service.submission.group_commit import GroupCommit


def run_together(group, items, commit):
    """Run each item in a thread of its own, the first alone and all others while it is committed."""
    entered, go = threading.Event(), threading.Event()

    def gated(batch):
        if batch == [items[0]] and not entered.is_set():
            entered.set()
            assert go.wait(60)
        return commit(batch)

    def run(item):
        try:
            return group.run(item, gated)
        except Exception as error:  # noqa: BLE001 - the outcome of this item
            return error

    with ThreadPoolExecutor(len(items)) as pool:
        first = pool.submit(run, items[0])
        assert entered.wait(60)
        others = [pool.submit(run, item) for item in items[1:]]
        wait_until(lambda: len(group._waiting) == len(others))
        go.set()
        return [each.result() for each in (first, *others)]


def test_an_unexpected_error_fails_no_other():
    def commit(batch):
        if 2 in batch:
            raise OverflowError("of the second")
        return list(batch)

    first, second, third = run_together(GroupCommit(), [1, 2, 3], commit)
    assert (first, third) == (1, 3)
    assert isinstance(second, OverflowError)


def test_a_database_that_does_not_answer_is_not_tried_again_for_each():
    batches = []

    def commit(batch):
        batches.append(list(batch))
        raise StoreUnavailable("The database does not answer.")

    outcomes = run_together(GroupCommit(), [1, 2, 3], commit)
    assert [type(each) for each in outcomes] == [StoreUnavailable] * 3
    assert len(batches) == 2


def test_what_coroutines_submit_together_is_committed_together():
    batches, refused = [], SpecInvalid("no")

    def commit(batch):
        batches.append(list(batch))
        return [refused if item == 2 else item * 10 for item in batch]

    async def run():
        group = GroupCommit()
        first = await asyncio.gather(*(group.run_async(item, commit) for item in (1, 2, 3)), return_exceptions=True)
        return first, await group.run_async(4, commit)

    assert asyncio.run(run()) == ([10, refused, 30], 40)
    assert batches == [[1, 2, 3], [4]]


def test_a_coroutine_is_not_forgotten_when_a_thread_commits_its_item():
    group = GroupCommit()
    outcomes = []

    async def run():
        for number in range(200):
            together = [asyncio.to_thread(group.run, -number - 1, list), group.run_async(number + 1, list)]
            outcomes.append(await asyncio.wait_for(asyncio.gather(*together), 20))

    asyncio.run(run())
    assert outcomes == [[-number - 1, number + 1] for number in range(200)]


def test_a_thread_that_takes_what_the_writer_has_just_seen_does_not_silence_it():
    group = GroupCommit()

    class SeenOnce(deque):
        """A queue with the item of a thread, which the thread takes right after the writer's look between commits."""

        seen = True

        def __bool__(self):
            if not self.seen and not group._committing.locked():
                self.seen = True
                return True
            return len(self) > 0

    def commit(batch):
        group._waiting.seen = False
        return list(batch)

    async def run():
        return [await asyncio.wait_for(group.run_async(item, commit), 10) for item in (1, 2)]

    group._waiting = SeenOnce()
    assert asyncio.run(run()) == [1, 2]


def test_submissions_that_share_a_commit_are_answered_each_by_itself(live_server, stores, database, monkeypatch):
    def fail(*_args):
        raise SpecInvalid("not this one")

    monkeypatch.setattr("core.security.credentials.save_git_login", fail)
    commits = []
    write = database.write
    monkeypatch.setattr(database, "write", lambda: commits.append(1) or write())
    bodies = [make_job_body(name=f"n{number}") for number in range(8)]
    bodies[3]["workspace"] = "git+https://ann:x@github.com/a/b.git"

    def post(number):
        with live_server.client() as client:
            headers = {"Idempotency-Key": f"k{number % 7}"}
            return client.post("/jobs", json=bodies[number], headers=headers).status_code

    stores.submissions._committing.acquire()
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(post, number) for number in range(8)]
        wait_until(lambda: len(stores.submissions._waiting) == 8)
        stores.submissions._committing.release()
        statuses = [each.result() for each in found]
    assert statuses[1:7] == [201, 201, 400, 201, 201, 201]
    assert sorted((statuses[0], statuses[7])) == [201, 422], "two requests with the same key"
    assert len(commits) == 1
    assert count_jobs(database) == 6
    with database.read() as session:
        assert "n3" not in set(session.scalars(select(Job.name)))
