"""Counts for monitoring: correct, and at a cost that does not grow with the number of ended jobs."""

import pytest
from sqlalchemy import true, update

from core.db.database import now
from core.db.models.jobs import Job, Worker
from core.jobs.scheduling import workers
from core.jobs.scheduling.claims import WorkerOffer
from core.monitoring import snapshot


@pytest.fixture
def taken(database):
    def take():
        with database.read() as session:
            return snapshot.collect(session)

    return take


def register(database, name, *, slots=2, backends=("process",)):
    with database.write() as session:
        workers.register(session, WorkerOffer(name, "h", tuple(backends)), boot_id="b", slots=slots)


def change(database, table, *, seq=None, **values):
    with database.write() as session:
        session.execute(update(table).where(Job.seq == seq if seq else true()).values(**values))


@pytest.mark.parametrize(
    ("values", "takes"),
    [
        ({"slots": 3}, True),
        ({"machine_types": ["CPU"]}, True),
        ({"machine_types": ["V100", "P4000"]}, False),
        ({"backends": ["docker"]}, False),
        ({"drained_at": now(-5)}, False),
        ({"seen_at": now(-61)}, False),
    ],
)
def test_which_workers_take_jobs_of_a_pool(database, submit, taken, values, takes):
    submit()
    register(database, "w")
    change(database, Worker, **values)
    assert taken().count_workers(("process", "CPU")) == takes
