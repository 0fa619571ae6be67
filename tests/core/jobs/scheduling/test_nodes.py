"""Nodes: claimed all or none, without starving or being starved, and ended and retried together."""

from dataclasses import replace

import pytest
from sqlalchemy import func, select, update

from core.db.database import now
from core.db.models.jobs import GpuAllocation, Job, Project, Worker
from core.jobs import lifecycle, projects, submission
from core.jobs.scheduling import claims, nodes, workers
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.scheduling.wait_status import wait_status
from core.jobs.spec.arrays import node_members
from core.jobs.spec.job_spec import JobSpec
from core.jobs.states import OWNED, JobState
from core.jobs.submission import NewJob

FIRST, SECOND = (WorkerOffer(name, "h", ("process",)) for name in ("w1", "w2"))
OTHER = WorkerOffer("w3", "other", ("process",))


@pytest.fixture
def submit_nodes(database, catalogue):
    """Return a function that submits a job with nodes, and returns the ids of its array and of its jobs by rank."""
    made = iter("abcdefghijklmnopqrstuvwxyz234567")

    def submit_nodes(count, machine="CPU", project="default", backend="process", **spec):
        array_id = f"a{next(made) * 13}"
        with database.write() as session:
            owner, _ = projects.get_or_create(session, project)
            new_jobs = [
                NewJob(
                    spec=JobSpec(machine_type=machine, command="true", **spec),
                    machine=catalogue.get(machine),
                    backend=backend,
                    project_id=owner.id,
                    submitted_by="tester",
                    array=member,
                )
                for member in node_members(array_id, count)
            ]
            return array_id, [job.id for job in submission.insert_queued(session, new_jobs)]

    return submit_nodes


@pytest.fixture
def register(database):
    def register(*offers, slots=2):
        with database.write() as session:
            for offer in offers:
                workers.register(session, offer, boot_id="b", slots=slots)

    return register


def take(database, offer=FIRST):
    with database.write() as session:
        job = claims.claim(session, offer)
        return job and job.id


def rows(database, ids):
    with database.read() as session:
        found = {job.id: job for job in session.scalars(select(Job).where(Job.id.in_(ids)))}
        return [found[one] for one in ids]


def age(database, ids, seconds):
    with database.write() as session:
        session.execute(update(Job).where(Job.id.in_(ids)).values(created_at=now(-seconds)))


def end(database, job_id, reason="completed", code=0):
    [job] = rows(database, [job_id])
    with database.write() as session:
        return lifecycle.mark_finishing(session, job, reason, exit_code=code)


def close(database, job_id):
    [job] = rows(database, [job_id])
    with database.write() as session:
        return lifecycle.finish(session, job, artifacts_state="none")


def test_all_nodes_are_claimed_for_the_workers_of_a_host_or_none(database, submit_nodes, register):
    register(FIRST, SECOND)
    _, ids = submit_nodes(4)
    register(OTHER, slots=3)
    assert take(database, OTHER) is None, "room for three"
    assert take(database, FIRST) == ids[0]
    claimed = rows(database, ids)
    assert [(job.worker, job.host, job.attempt) for job in claimed] == [(w, "h", 1) for w in ("w1", "w1", "w2", "w2")]
    with database.read() as session:
        assert {job.id for job in workers.starting(session, "w2", "h", Job.nodes.is_not(None))} == set(ids[2:])


JOINED = [replace(offer, nodes_address=f"192.0.2.{i}") for i, offer in enumerate((FIRST, OTHER))]


@pytest.mark.parametrize("backend", ["process", "docker"])
def test_hosts_with_addresses_take_nodes_together_that_fit_on_none(database, submit_nodes, register, backend):
    joined = [replace(offer, backends=(backend,), gpus=("0", "1")) for offer in JOINED]
    register(*joined, slots=3)
    register(WorkerOffer("w4", "apart", (backend,), gpus=("0", "1")), slots=3)
    _, ids = submit_nodes(3, machine="V100", backend=backend)
    _, alone = submit_nodes(3, machine="V100", backend=backend, network="none")
    assert take(database, joined[1]) == ids[0]
    claimed = rows(database, ids)
    assert [(job.worker, job.host) for job in claimed] == [("w3", "other"), ("w3", "other"), ("w1", "h")]
    with database.read() as session:
        held = session.execute(select(GpuAllocation.host, GpuAllocation.gpu).order_by(GpuAllocation.host)).all()
        assert [tuple(one) for one in held] == [("h", "0"), ("other", "0"), ("other", "1")]
        assert nodes.addresses(session, claimed[0]) == ["192.0.2.1", "192.0.2.1", "192.0.2.0"]
    assert {job.state for job in rows(database, alone)} == {JobState.QUEUED}, "without a network they cannot connect"


def test_nodes_with_several_gpus_each_have_those_of_their_own_hosts(database, submit_nodes, register):
    gpus = tuple(map(str, range(8)))
    joined = [replace(offer, gpus=gpus) for offer in JOINED]
    register(*joined, slots=3)
    _, many = submit_nodes(3, machine="8x V100")
    _, ids = submit_nodes(2, machine="8x V100")
    assert take(database, joined[0]) == ids[0], "three would need 24 GPUs"
    with database.read() as session:
        held = session.execute(select(GpuAllocation.job_id, GpuAllocation.host, GpuAllocation.gpu)).all()
        assert sorted(tuple(one) for one in held) == sorted(
            (job.id, job.host, gpu) for job in rows(database, ids) for gpu in gpus
        )
        assert {job.host for job in rows(database, ids)} == {"h", "other"}
        waits = wait_status(session, rows(database, many[:1])[0])
    assert (waits.reason, "have room for only 2" in waits.detail) == ("too_large", True)


def test_hosts_that_name_the_same_address_take_no_nodes_together(database, submit_nodes, register):
    """One reaches itself there: 127.0.0.1, or another host's settings."""
    register(*(replace(offer, nodes_address="127.0.0.1") for offer in JOINED), slots=2)
    _, ids = submit_nodes(3)
    assert [take(database, offer) for offer in JOINED] == [None, None]
    with database.read() as session:
        waits = wait_status(session, rows(database, ids[:1])[0])
    assert (waits.reason, "or on several that have GRADIENT_WORKER__NODES_ADDRESS set" in waits.detail) == (
        "too_large",
        True,
    )


def test_nodes_over_several_hosts_say_which_of_these_refuses_them_and_why(database, submit_nodes, register):
    refusing = replace(OTHER, refusal="nodes together with other hosts: they would be in this host's network")
    register(JOINED[0], refusing, slots=2)
    _, ids = submit_nodes(3)
    with database.read() as session:
        waits = wait_status(session, rows(database, ids[:1])[0])
    assert waits.detail.endswith(
        "; worker w3 takes no nodes together with other hosts: they would be in this host's network"
    )


def test_nodes_that_one_host_has_room_for_are_left_to_it(database, submit_nodes, register):
    register(JOINED[0], slots=2)
    register(JOINED[1], slots=3)
    _, ids = submit_nodes(3)
    assert take(database, JOINED[0]) is None
    assert take(database, JOINED[1]) == ids[0]
    with database.read() as session:
        assert nodes.addresses(session, rows(database, ids)[0]) == []


def test_nodes_over_several_hosts_say_how_much_room_these_have_and_keep_them_in_turn(
    database, submit, submit_nodes, register
):
    register(*JOINED, slots=2)
    submit()
    take(database, JOINED[0])
    _, ids = submit_nodes(4)
    [first] = rows(database, ids[:1])
    with database.read() as session:
        waits = wait_status(session, first)
    assert (waits.reason, waits.detail) == ("waiting_for_nodes", "4 slots at once; 3 are free on 2 machines")
    submit()
    age(database, ids, 61)
    assert take(database, JOINED[1]) is None, "it is kept"


def test_a_worker_does_not_exceed_its_slots_before_it_knows_of_its_nodes(database, submit, submit_nodes, register):
    register(FIRST, SECOND)
    submit_nodes(4)
    take(database, FIRST)
    submit()
    assert take(database, SECOND) is None


def test_nodes_of_several_jobs_on_the_same_hosts_have_ports_of_their_own(database, submit_nodes, register, monkeypatch):
    """A job that only finds a port free would fail as it listens there, after another one."""
    register(FIRST, slots=6)
    monkeypatch.setattr(nodes, "_PORTS", 14)
    jobs = [submit_nodes(count)[1] for count in (3, 1, 2)]
    assert [take(database) for _ in jobs] == [ids[0] for ids in jobs]
    ports = []
    for ids in jobs:
        [first] = {job.nodes_port for job in rows(database, ids)}
        ports += range(first, first + 1 + len(ids))
    assert len(set(ports)) == 4 + 2 + 3


def test_two_jobs_never_hold_half_of_what_each_needs(database, submit_nodes, register):
    register(FIRST, SECOND)
    jobs = [submit_nodes(3)[1] for _ in range(2)]
    assert [take(database, offer) for offer in (FIRST, SECOND, FIRST)] == [jobs[0][0], None, None]
    assert {job.state for job in rows(database, jobs[1])} == {JobState.QUEUED}
    for job_id in jobs[0]:
        end(database, job_id)
        close(database, job_id)
    assert take(database, SECOND) == jobs[1][0]


def test_each_node_has_gpus_of_its_own(database, submit_nodes, register):
    offer = WorkerOffer("w1", "h", ("process",), gpus=("0", "1", "2"))
    register(offer, slots=4)
    _, many = submit_nodes(4, "V100")
    _, few = submit_nodes(3, "V100")
    assert take(database, offer) == few[0], "four GPUs are not there"
    with database.read() as session:
        held = {row.job_id: row.gpu for row in session.scalars(select(GpuAllocation))}
    assert held == dict(zip(few, ("0", "1", "2"), strict=True))
    [first] = rows(database, many[:1])
    with database.read() as session:
        assert wait_status(session, first).reason == "too_large"


@pytest.mark.parametrize("why", ["too many", "no room now", "over quota"])
def test_however_many_jobs_with_nodes_have_no_room_those_behind_them_start(
    database, submit, submit_nodes, register, why
):
    register(FIRST, SECOND)
    many = {"too many": 9, "no room now": 4, "over quota": 3}[why]
    submit()
    take(database)  # so that three have room
    for _ in range(25):
        submit_nodes(many, project="first")
    if why == "over quota":
        with database.write() as session:
            session.execute(update(Project).where(Project.name == "first").values(max_running=2))
    _, ids = submit_nodes(2)
    assert take(database) == ids[0]


def test_a_project_does_not_exceed_its_quota_by_nodes(database, submit_nodes, register):
    register(FIRST, slots=8)
    _, ids = submit_nodes(3)
    with database.write() as session:
        session.execute(update(Project).values(max_running=2))
    assert take(database) is None
    [first] = rows(database, ids[:1])
    with database.read() as session:
        waits = wait_status(session, first)
    assert (waits.reason, waits.detail) == ("project_quota", "2 running jobs (0 running, 3 needed)")
    with database.write() as session:
        session.execute(update(Project).values(max_running=3))
    assert take(database) == ids[0]


@pytest.mark.parametrize(
    ("waited", "kept"), [(0, False), (59, False), (61, True), (119, True), (121, False), (241, True), (481, False)]
)
def test_a_host_is_kept_for_nodes_in_some_periods(database, submit, submit_nodes, register, waited, kept):
    register(FIRST)
    submit()
    running = take(database)
    _, ids = submit_nodes(2)
    behind = submit().id
    age(database, ids, waited)
    assert take(database) == (None if kept else behind)
    if kept:
        end(database, running)
        close(database, running)
        assert take(database) == ids[0]


def test_only_one_of_two_hosts_is_kept_and_none_that_is_too_small(database, submit, submit_nodes, register):
    register(FIRST, OTHER)
    small = WorkerOffer("w4", "tiny", ("process",))
    register(small, slots=1)
    for offer in (FIRST, OTHER):
        submit()
        take(database, offer)
    _, ids = submit_nodes(2)
    age(database, ids, 90)
    behind = [submit().id for _ in range(2)]
    assert [take(database, offer) for offer in (FIRST, OTHER, small)] == [None, *behind]


def test_the_loss_of_one_host_ends_all_with_its_rank_and_all_run_again(database, submit_nodes, register):
    register(FIRST, SECOND)
    array_id, ids = submit_nodes(3, max_attempts=2)
    take(database)
    for job in rows(database, ids):
        with database.write() as session:
            lifecycle.mark_running(session, job, {})
    with database.write() as session:
        lifecycle.fail_lost(session, rows(database, ids[2:])[0], "worker_lost", "15 minutes")
        beats = workers.heartbeat(session, FIRST, boot_id="b")
    failure = beats[ids[0]].node_failure
    assert failure.startswith("Rank 2, on h: The worker's machine sent no heartbeat for 15 minutes")
    assert beats[ids[1]].node_failure == failure
    for job_id in ids[:2]:
        end(database, job_id, "node_failed", 143)
    assert [close(database, job_id).state for job_id in ids[:2]] == [JobState.QUEUED] * 2
    again = rows(database, ids)
    assert {(job.state, job.attempt, job.machine_faults) for job in again} == {(JobState.QUEUED, 1, 1)}
    with database.write() as session:
        session.execute(update(Job).where(Job.array_id == array_id).values(run_after=None))
    assert take(database) == ids[0]


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_a_start_that_fails_after_another_node_began_is_retried_only_if_allowed(
    database, submit_nodes, register, max_attempts
):
    register(FIRST)
    _, ids = submit_nodes(2, max_attempts=max_attempts)
    take(database)
    with database.write() as session:
        lifecycle.mark_running(session, rows(database, ids)[0], {})
    end(database, ids[1], "launch_failed", None)
    end(database, ids[0], "node_failed", 143)
    assert nodes_ended(database, ids[0])
    expected = JobState.QUEUED if max_attempts == 2 else JobState.FAILED
    assert [close(database, one).state for one in ids] == [expected] * 2


def nodes_ended(database, job_id):
    with database.read() as session:
        return nodes.all_ended(session, rows(database, [job_id])[0])


def test_a_worker_that_is_drained_gets_no_nodes(database, submit_nodes, register):
    register(FIRST, SECOND)
    submit_nodes(4)
    with database.write() as session:
        session.execute(update(Worker).where(Worker.name == "w2").values(drained_at=now()))
    assert take(database, FIRST) is None
    with database.read() as session:
        assert session.scalar(select(func.count()).where(Job.state.in_(OWNED))) == 0


@pytest.mark.parametrize("reason", ["completed", "exit_nonzero"])
def test_a_host_lost_while_it_stores_its_outputs_does_not_wait_for_nodes_that_have_ended(
    database, submit_nodes, register, reason
):
    register(FIRST)
    _, ids = submit_nodes(2, max_attempts=2 if reason == "completed" else 1)
    take(database)
    for job in rows(database, ids):
        with database.write() as session:
            lifecycle.mark_running(session, job, {})
    end(database, ids[0], reason, 0 if reason == "completed" else 3)
    end(database, ids[1], "completed" if reason == "completed" else "node_failed")
    first = close(database, ids[0]).state
    assert first is (JobState.SUCCEEDED if reason == "completed" else JobState.FAILED)
    with database.write() as session:
        lifecycle.fail_lost(session, rows(database, ids[1:])[0], "worker_lost", "15 minutes")
    assert [(job.state, job.reason) for job in rows(database, ids[1:])] == [(JobState.FAILED, "worker_lost")]


def test_a_node_that_was_to_run_again_ends_with_one_that_may_not(database, submit_nodes, register):
    """Its host was lost before the start of the other's command was known."""
    register(FIRST)
    _, ids = submit_nodes(2)
    take(database)
    with database.write() as session:
        lifecycle.fail_lost(session, rows(database, ids[1:])[0], "worker_lost", "15 minutes")
    assert rows(database, ids[1:])[0].state is JobState.QUEUED
    with database.write() as session:
        lifecycle.mark_running(session, rows(database, ids)[0], {})
    end(database, ids[0], "node_failed", 143)
    assert close(database, ids[0]).state is JobState.FAILED
    [other] = rows(database, ids[1:])
    assert (other.state, other.reason) == (JobState.CANCELLED, "node_failed")
    assert other.reason_detail.startswith("Rank 1, on h: The worker's machine sent no heartbeat")
