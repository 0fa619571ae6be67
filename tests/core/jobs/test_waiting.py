"""Why jobs wait, for one and for many at once: both ways must agree."""

from core.jobs import claims, lifecycle, queries, workers
from core.jobs.claims import Offer


def test_places_of_one_and_of_many_agree(database, submit):
    jobs = [submit(priority=priority) for priority in (50, 50, 90, 10, 50)]
    with database.write() as session:
        workers.register(session, Offer("w", "h", ("mock",)), boot_id="b", slots=1)
    with database.read() as session:
        many = queries.waiting_of(session, jobs)
        assert {job.id: queries.waiting(session, job) for job in jobs} == many
        assert queries.waiting_of(session, jobs[3:4]) == {jobs[3].id: many[jobs[3].id]}
    assert [many[job.id].position for job in jobs] == [2, 3, 1, 5, 4]
    assert [many[job.id].reason for job in jobs[2:4]] == ["waiting_for_machine", "behind_jobs"]


def test_only_waiting_jobs_wait(database, submit):
    first, second = submit(), submit()
    with database.write() as session:
        claimed = claims.claim(session, Offer("w", "h", ("mock",)))
    with database.read() as session:
        assert claimed is not None
        assert claimed.id == first.id
        assert queries.waiting_of(session, [claimed]) == {}
        waits = queries.waiting_of(session, [claimed, second])
        assert list(waits) == [second.id]
        assert waits[second.id].reason == "no_worker"
        # Its row was read before it was claimed: still an answer, and the first place.
        assert queries.waiting_of(session, [first, second])[first.id].position == 1


def test_failed_jobs_are_told_apart_by_their_exit_code(database, submit):
    ended = []
    for reason, exit_code in (("exit_nonzero", 1), ("workspace_invalid", None), ("completed", 0)):
        submit()
        with database.write() as session:
            job = claims.claim(session, Offer("w", "h", ("mock",)))
            job = lifecycle.ended(session, job, reason, exit_code=exit_code)
            ended.append(lifecycle.finish(session, job, artifacts_state="none"))

    def found(**wanted):
        with database.read() as session:
            return {job.id for job in queries.page(session, queries.JobFilter(**wanted), limit=10).jobs}

    failed, never_ran, completed = (job.id for job in ended)
    assert found(failed_with_exit_code=True) == {failed, completed}
    assert found(failed_with_exit_code=False) == {never_ran, completed}
    assert found(states=["failed"], failed_with_exit_code=False) == {never_ran}
