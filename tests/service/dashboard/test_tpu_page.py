"""The page of billed TPUs."""

import time

import pytest
from sqlalchemy import update
from support.live_service import make_job_body

from core.db.database import now
from core.db.models.jobs import Job
from worker.database_resource_inventory import DatabaseResourceInventory


@pytest.fixture
def tpu(client, database):
    job_id = client.post("/jobs", json=make_job_body(name="on <a> TPU", machineType="TPU")).json()["id"]
    made = DatabaseResourceInventory(database, "here").record_intent(
        "tpu_queued", f"us-central1-b/gj-{job_id}-1", job_id=job_id, attempt=1
    )
    return job_id, made


def test_a_tpu_is_shown_until_it_is_gone(signed_in_browser, tpu, database):
    job_id, made = tpu
    asked = signed_in_browser.get("/ui/tpus").text
    assert f"<code>gj-{job_id}-1</code>" in asked
    assert "intended" in asked
    assert "not yet" in asked
    assert "on &lt;a&gt; TPU" in asked
    assert f'href="/ui/jobs/{job_id}"' in asked
    DatabaseResourceInventory(database, "here").update(made, state="READY", health="HEALTHY")
    DatabaseResourceInventory(database, "here").record_billing(made, since=time.time())
    billed = signed_in_browser.get("/ui/tpus").text
    assert "READY" in billed
    assert "HEALTHY" in billed
    assert "not yet" not in billed
    DatabaseResourceInventory(database, "here").record_deletion(made, gone=True)
    assert "nothing is billed" in signed_in_browser.get("/ui/tpus").text


def test_what_deleted_jobs_have_cost_is_not_lost(client, signed_in_browser, tpu, database):
    _, made = tpu
    inventory = DatabaseResourceInventory(database, "here")
    inventory.record_billing(made, since=time.time() - 3600, until=time.time())
    inventory.record_deletion(made, gone=True)
    with database.write() as session:
        session.execute(update(Job).values(simulated=False))
    with database.write() as session:
        session.execute(update(Job).values(deleted_at=now()))
    assert client.get("/tpus").json() == {"tpus": [], "unowned": {}, "recentCost": 4.5, "refusal": None}
    assert "last 30 days cost $4.50" in signed_in_browser.get("/ui/tpus").text


def test_what_google_bills_for_others_is_shown_until_it_is_gone(client, signed_in_browser, database):
    inventory = DatabaseResourceInventory(database, "here")
    inventory.record_unowned({"us-west4-a/gj-x": "the installation gx"})
    inventory.record_unowned({"us-west4-a/gj-y": "the installation <gy>"})
    page = signed_in_browser.get("/ui/tpus").text
    assert "<code>us-west4-a/gj-y</code> of the installation &lt;gy&gt;" in page
    assert "gj-x" not in page
    assert "nothing is billed" not in page
    inventory.record_unowned({})
    assert client.get("/tpus").json()["unowned"] == {}


def test_a_refused_worker_is_said_with_the_words_for_those_with_a_key(client, signed_in_browser, database):
    inventory = DatabaseResourceInventory(database, "here")
    for why in ("us-west4-a: invalid_grant", "us-west4-a: another"):  # since the first time
        inventory.record_refusal(why)
    assert "us-west4-a: invalid_grant" in signed_in_browser.get("/ui/tpus").text
    ready = client.get("/readiness")
    assert (ready.status_code, "invalid_grant" in ready.text) == (200, False)
    assert "Google has refused the workers' requests or not answered since 20" in ready.json()["checks"]["tpus"]
    inventory.record_refusal(None)
    assert "tpus" not in client.get("/readiness").json()["checks"]
    assert "Google refuses the workers" not in signed_in_browser.get("/ui/tpus").text
