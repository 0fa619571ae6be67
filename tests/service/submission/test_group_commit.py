"""Group commit: jobs that wait together are inserted together, and each gets its own answer."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select
from support.live_service import count_jobs, make_job_body, wait_until

from core.db.models.jobs import Job
from core.errors import SpecInvalid, StoreUnavailable
from service.submission.group_commit import GroupCommit


def run_together(commit):
    """Insert 1, 2 and 3 in a thread each, the first alone and the others together while it is committed."""
    group, entered, go = GroupCommit(), threading.Event(), threading.Event()

    def gated(batch):
        if not entered.is_set():
            entered.set()
            assert go.wait(60)
        return commit(batch)

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(group.insert, 1, gated)
        assert entered.wait(60)
        others = [pool.submit(group.insert, job, gated) for job in (2, 3)]
        wait_until(lambda: group.waiting == 2)
        go.set()
        return [future.exception() or future.result() for future in (first, *others)]


@pytest.mark.parametrize(
    ("error", "failed", "batches"),
    [(OverflowError("of the second"), {2}, 4), (SpecInvalid("no"), {2}, 4), (StoreUnavailable("away"), {2, 3}, 2)],
)
def test_an_error_is_that_of_its_job_and_a_database_that_is_away_is_asked_once(error, failed, batches):
    tried = []

    def commit(batch):
        tried.append(list(batch))
        if 2 in batch:
            raise error
        return list(batch)

    assert run_together(commit) == [error if job in failed else job for job in (1, 2, 3)]
    assert len(tried) == batches


def test_submissions_that_share_a_commit_are_answered_each_by_itself(live_server, stores, database, monkeypatch):
    def fail(*_args):
        raise SpecInvalid("not this one")

    monkeypatch.setattr("core.security.credentials.save_git_login", fail)
    bodies = [make_job_body(name=f"n{number}") for number in range(8)]
    bodies[3]["workspace"] = "git+https://ann:x@github.com/a/b.git"
    bodies[4]["after"] = ["j000000000000"]

    def post(number):
        with live_server.client() as client:
            headers = {"Idempotency-Key": f"k{number % 7}"}
            return client.post("/jobs", json=bodies[number], headers=headers).status_code

    with ThreadPoolExecutor(8) as pool:
        with database.write():  # the first one waits for this, all others for the first one
            answers = [pool.submit(post, number) for number in range(8)]
            wait_until(lambda: stores.submissions.waiting == 7)
        statuses = [answer.result() for answer in answers]
    assert statuses[1:7] == [201, 201, 400, 400, 201, 201]
    assert sorted((statuses[0], statuses[7])) == [201, 422], "two requests with the same key"
    assert count_jobs(database) == 5
    with database.read() as session:
        assert {"n3", "n4"}.isdisjoint(session.scalars(select(Job.name)))
