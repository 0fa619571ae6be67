"""The inventory of cloud resources in the database, from the intent to the deletion."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

from core.db.database import now
from core.db.models.jobs import Job
from core.jobs import cloud_resources
from core.jobs.cloud_resources import CloudResource
from core.jobs.costs import amounts
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from worker.database_resource_inventory import DatabaseResourceInventory

NAME = "us-central1-b/gj-x-1"


@pytest.fixture
def inventory(database):
    return DatabaseResourceInventory(database, "here")


@pytest.fixture
def job(database, submit):
    submit()
    with database.write() as session:
        return claims.claim(session, WorkerOffer("w1", "here", ("process",)))


def row(database):
    with database.read() as session:
        return session.scalars(select(CloudResource)).one()


def test_one_attempt_at_a_time_holds_a_name(inventory, job, submit):
    other = submit()
    first = inventory.record_intent("tpu_pool", NAME, job_id=job.id, attempt=1)
    assert inventory.record_intent("tpu_pool", NAME, job_id=other.id, attempt=1) is None
    inventory.record_deletion(first, gone=True)
    assert inventory.record_intent("tpu_pool", NAME, job_id=other.id, attempt=1) is not None


def test_what_is_being_deleted_is_no_more_of_this_host_and_not_forgotten(inventory, job, database):
    entry = inventory.record_intent("tpu_node", NAME, job_id=job.id, attempt=1)
    inventory.record_deletion(entry, gone=False, detail="not available in time")
    assert inventory.list_on_host() == []
    assert inventory.list_of_attempt(job.id, 1)[0].over
    inventory.update(entry, state="READY")
    assert (row(database).state, row(database).detail) == ("deleting", "not available in time")
    with database.read() as session:
        assert [one.id for one in cloud_resources.list_open(session)] == [entry.id]
    inventory.record_deletion(entry, gone=True)
    with database.read() as session:
        assert cloud_resources.list_open(session) == []


def test_another_attempts_are_unowned(inventory, job):
    inventory.record_intent("tpu_node", NAME, job_id=job.id, attempt=7)
    assert len(inventory.list_orphaned()) == 1


def billed_seconds(database, job):
    with database.read() as session:
        return amounts.of_jobs(session, [job.id])[job.id][0] * 3600 / job.price_per_hour


def test_it_bills_from_ready_until_it_is_deleted(inventory, job, database):
    entry = inventory.record_intent("tpu_node", NAME, job_id=job.id, attempt=1)
    assert billed_seconds(database, job) == 0.0
    with database.read() as session:
        assert amounts.of_jobs(session, []) == {}
    current = time.time()
    inventory.record_billing(entry, until=current)
    inventory.record_billing(entry, since=current - 1000)
    assert billed_seconds(database, job) == pytest.approx(1000, abs=60), "an end before the start is none"
    inventory.record_deletion(entry, gone=False)
    with database.write() as session:
        session.execute(update(CloudResource).values(deleting_at=now(-40)))
    assert billed_seconds(database, job) == pytest.approx(1000, abs=60), "Google bills until it is deleted"
    inventory.record_deletion(entry, gone=True)
    assert billed_seconds(database, job) == pytest.approx(1000, abs=60)
    inventory.record_billing(entry, until=current - 200)
    assert billed_seconds(database, job) == pytest.approx(800, abs=1), "it was seen to be gone earlier"
    inventory.record_billing(entry, until=current)
    assert billed_seconds(database, job) == pytest.approx(800, abs=1)


def test_a_spot_device_has_its_own_price_and_no_cost_is_lost(inventory, job, database):
    current = time.time()
    for name, price in ((NAME, job.price_per_hour / 4), (f"{NAME}b", None)):
        entry = inventory.record_intent("tpu_node", name, job_id=job.id, attempt=1, price=price)
        inventory.record_billing(entry, since=current - 3600, until=current)
    assert billed_seconds(database, job) == pytest.approx(3600 * 1.25)
    with database.write() as session:
        session.execute(update(Job).values(deleted_at=now(), simulated=False))
    with database.read() as session:
        moment = datetime.fromtimestamp(current, UTC)
        total = cloud_resources.total_cost(session, moment - timedelta(seconds=1800))
        assert total == pytest.approx(job.price_per_hour * 1.25 / 2)
        assert cloud_resources.total_cost(session, moment + timedelta(seconds=1)) == 0


def test_a_resource_of_an_unknown_job_is_not_recorded(inventory):
    assert inventory.record_intent("tpu_node", NAME, job_id="jnone", attempt=1) is None
