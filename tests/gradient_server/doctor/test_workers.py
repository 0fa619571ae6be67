"""The doctor's findings about offline, drained and deaf workers, the sweeps' repairs, and a disk that fills."""

import shutil
from types import SimpleNamespace

import pytest
from sqlalchemy import update

from core.db.database import now
from core.db.models.jobs import Attempt, Worker
from core.formatting import GIB
from core.jobs.guarded_updates import set_output_sizes
from core.jobs.scheduling import claims, workers
from core.jobs.scheduling.claims import WorkerOffer
from core.monitoring import snapshot
from core.settings import Settings
from gradient_server.checks import jobs
from gradient_server.checks import workers as fleet
from gradient_server.checks.finding import Status

OK, WARNING, PROBLEM = Status.OK, Status.WARNING, Status.PROBLEM
OFFER = WorkerOffer("w", "h", ("process",))


@pytest.fixture
def found(database, tmp_path, monkeypatch):
    """A look at the one finding of a check; the disk has 100 GiB free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100 * GIB))

    def look(check):
        with database.read() as session:
            taken = snapshot.collect(session)
            growth = jobs.disk_growth(Settings(home=tmp_path), session)
        (finding,) = [one for one in (*fleet.check(taken), jobs.queue(taken), growth) if one.check == check]
        assert finding.message.endswith(".")
        assert (finding.fix is None) == (finding.status is OK)
        return finding

    return look


@pytest.fixture
def change(database):
    def change(table, **values):
        with database.write() as session:
            session.execute(update(table).values(**values))

    with database.write() as session:
        workers.register(session, OFFER, boot_id="b", slots=2)
    return change


def test_a_worker_that_takes_other_machine_types_or_is_drained_takes_no_job(found, change, submit):
    submit()
    assert found("queue").status is OK
    change(Worker, machine_types=["V100"])
    assert found("queue").status is PROBLEM
    change(Worker, machine_types=None, drained_at=now(-7200))
    assert found("queue").status is PROBLEM


def test_a_worker_that_is_silent(found, change):
    assert found("silent").status is OK
    change(Worker, seen_at=now(-600))
    finding = found("silent")
    assert (finding.status, "w on h (last seen 10 min 0" in finding.message) == (WARNING, True)
    change(Worker, seen_at=now(-90_000))
    assert found("silent").status is OK


@pytest.mark.usefixtures("change")
def test_a_worker_that_takes_no_jobs(database, found):
    with database.write() as session:
        workers.refuse(session, "w", "It has no mark.")
        workers.refuse(session, "other", "Its token is unknown.", host="far")
    finding = found("refusing")
    said = "Workers that refuse some or all jobs: other on far (Its token is unknown); w on h (It has no mark)."
    assert (finding.status, finding.message) == (WARNING, said)
    with database.write() as session:
        workers.register(session, OFFER, boot_id="b", slots=2)
        workers.register(session, WorkerOffer("other", "far", ("process",)), boot_id="b", slots=2)
    assert found("refusing").status is OK


@pytest.mark.parametrize(("left", "days_ago", "status"), [(70, 0, WARNING), (70, 8, OK), (35, 0, OK)])
def test_a_disk_that_jobs_will_have_filled_soon(database, found, change, submit, left, days_ago, status):
    submit()
    with database.write() as session:
        job = claims.claim(session, OFFER)
        set_output_sizes(session, job, log_bytes=GIB, artifact_bytes=(left - 1) * GIB)
    change(Attempt, ended_at=now(-86400 * days_ago - 60))
    finding = found("growth")
    assert finding.status is status
    assert f"{0 if days_ago else left / 7:.2f} GiB a day" in finding.message
