"""Ports of hosts: who has which, who waits for whom, and that all are free in the end."""

import pytest
from sqlalchemy import delete, func, insert, select, update

from core.db.models.credentials import JobRegistryPassword
from core.db.models.jobs import Job, PortAllocation, PortRequest
from core.errors import SpecInvalid
from core.jobs import lifecycle
from core.jobs.scheduling import claims, port_allocations, workers
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.scheduling.port_allocations import PortRange
from core.jobs.scheduling.wait_status import wait_status
from core.jobs.spec.ports import PortMapping, parse_ports
from core.jobs.states import JobState

SMALL = PortRange(20_000, 20_001, "h.example")
HOST = WorkerOffer("w", "h", ("process",), ports=SMALL)


@pytest.mark.parametrize(
    ("written", "port"),
    [
        ("8888:8888", PortMapping(8888, 8888)),
        ("0:6006", PortMapping(0, 6006)),
        (":6006", PortMapping(0, 6006)),
        ("6006", PortMapping(0, 6006)),
        ("6006:https", PortMapping(0, 6006, "https")),
        ("9443:443:https", PortMapping(9443, 443, "https")),
        (" 8000:80 ", PortMapping(8000, 80)),
    ],
)
def test_a_port_is_read_as_it_is_written(written, port):
    assert PortMapping.parse(written) == port
    assert PortMapping.parse(str(port)) == port


@pytest.mark.parametrize(
    "written",
    [
        "",
        "a",
        "80:80",
        "1023:80",
        "65536:80",
        "8080:0",
        "8080:65536",
        "8080:80:80",
        "8080:80:HTTP",
        "1:2:3:4",
        "-1",
        "²",
    ],
)
def test_what_is_no_port_is_refused(written):
    with pytest.raises(SpecInvalid) as refused:
        PortMapping.parse(written)
    assert refused.value.field == "ports"


def test_lists_and_commas_are_the_same_and_doubles_are_refused():
    assert parse_ports(("8080:80, 6006", "9000:90")) == parse_ports(("8080:80", "6006", "9000:90"))
    for twice in ("8080:80,8080:81", "80,81:80:http,8080:80"):
        with pytest.raises(SpecInvalid):
            parse_ports((twice,))
    with pytest.raises(SpecInvalid, match="at most 20"):
        parse_ports((",".join(str(number) for number in range(1, 22)),))


# ---- Claims


def take(database, offer=HOST):
    with database.write() as session:
        return claims.claim(session, offer)


def end(database, job, reason="completed", code=0):
    with database.write() as session:
        job = lifecycle.mark_finishing(session, lifecycle.mark_running(session, job, {}), reason, exit_code=code)
        return lifecycle.finish(session, job, artifacts_state="none")


def held(database):
    with database.read() as session:
        rows = session.scalars(select(PortAllocation))
        return {(row.host, row.port): (row.job_id, row.internal) for row in rows}


def count(database, table):
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(table))


def test_two_jobs_never_have_the_same_port(database, submit):
    first, second, third = (submit(ports=("80",)).id for _ in range(3))
    jobs = [take(database) for _ in range(3)]
    assert [job and job.id for job in jobs] == [first, second, None], "there are no more ports than two"
    assert {port for _, port in held(database)} == {20_000, 20_001}
    assert [held(database)["h", port][1] for port in (20_000, 20_001)] == [80, 80]
    end(database, jobs[0])
    assert take(database).id == third
    assert {job for job, _ in held(database).values()} == {second, third}


def test_who_names_a_taken_port_is_passed_over_until_it_is_free(database, submit):
    first, second, other = submit(ports=("9000:80",)), submit(ports=("9000:81",), priority=100), submit()
    job = take(database)
    assert job.id == second.id
    assert take(database).id == other.id
    assert take(database) is None
    assert take(database, WorkerOffer("w2", "h2", ("process",), ports=SMALL)).id == first.id, "another host has it free"
    assert {port: job for port, (job, _) in held(database).items()} == {("h", 9000): second.id, ("h2", 9000): first.id}
    end(database, job)
    assert held(database).keys() == {("h2", 9000)}


def test_a_named_port_out_of_the_hosts_own_is_not_given_away(database, submit):
    named = submit(ports=("20000:80", "81"))
    assert take(database).id == named.id
    assert held(database) == {("h", 20_000): (named.id, 80), ("h", 20_001): (named.id, 81)}
    submit(ports=("80",))
    assert take(database) is None


def test_another_attempt_gets_new_ports(database, submit):
    job_id = submit(ports=("9000:80", "81"), max_attempts=2).id
    job = end(database, take(database), "exit_nonzero", 1)
    assert (job.state, held(database)) == (JobState.QUEUED, {})
    assert count(database, PortRequest) == 1, "it still wants the one it names"
    with database.write() as session:
        session.execute(update(Job).values(run_after=None))
    again = take(database)
    assert {owner for owner, _ in held(database).values()} == {job_id}
    end(database, again)
    assert (held(database), count(database, PortRequest)) == ({}, 0)


def test_a_job_that_is_stopped_before_it_ran_wants_nothing_more(database, submit):
    job = submit(ports=("9000:80",))
    assert count(database, PortRequest) == 1
    with database.write() as session:
        lifecycle.request_stop(session, job.id)
    assert count(database, PortRequest) == 0


def test_what_an_earlier_release_left_is_swept_and_what_is_in_use_is_not(database, submit):
    """It ends jobs without a word about ports and passwords."""
    gone, lives = submit(ports=("9000:80",)), submit(ports=("9001:80",))
    for _ in range(2):
        take(database)
    with database.write() as session:
        for job in (gone, lives):
            session.execute(insert(JobRegistryPassword).values(job_id=job.id, sealed="x"))
        session.execute(update(Job).where(Job.id == gone.id).values(state=JobState.SUCCEEDED))
    with database.write() as session:
        assert port_allocations.release_orphaned_ports(session) == 3
        assert port_allocations.release_orphaned_ports(session) == 0
    assert held(database).keys() == {("h", 9001)}
    assert (count(database, PortRequest), count(database, JobRegistryPassword)) == (1, 1)


# ---- Why it waits


def why(database, job):
    with database.read() as session:
        found = wait_status(session, job)
    return found.reason, found.detail


def test_who_waits_for_a_port_says_for_whose(database, submit):
    with database.write() as session:
        workers.register(session, HOST, boot_id="b", slots=4)
    _, second = submit(ports=("9000:80",)), submit(ports=("9000:80",))
    assert why(database, second)[0] == "behind_jobs"
    take(database)
    assert why(database, second) == ("waiting_for_port", "port 9000 of h, which another job uses")
    with database.write() as session:
        workers.register(session, WorkerOffer("w2", "h2", ("process",), ports=SMALL), boot_id="b", slots=4)
    assert why(database, second)[0] == "waiting_for_machine", "the other host has it free"
    with database.write() as session:
        session.execute(delete(PortAllocation))
    assert why(database, second)[0] == "waiting_for_machine"
