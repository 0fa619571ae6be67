"""Messages to receivers, as far as a service in this process shows them."""

import pytest
from support.live_service import make_job_body

from service.notifications import notices, sender

pytestmark = pytest.mark.integration


def test_an_event_of_which_no_message_can_be_made_holds_up_no_other(client, worker, stores, monkeypatch, caplog):
    saved = client.put("/notifications/team", json={"url": "https://192.0.9.1/hook"})
    assert saved.status_code == 201, saved.text
    worker.register()
    jobs = [client.post("/jobs", json=make_job_body(notify=["team"])).json()["id"] for _ in range(3)]
    for _ in jobs:
        worker.end(worker.start())
    make = notices._of_job

    def fail_for_one(session, event, job, view):
        if job.id == jobs[1]:
            raise LookupError("no words for it")
        return make(session, event, job, view)

    monkeypatch.setattr(notices, "_of_job", fail_for_one)
    assert sender.collect(stores)
    deliveries = client.get("/notifications/team/deliveries").json()["deliveries"]
    assert sum(jobs[0] in delivery["summary"] for delivery in deliveries) == 1
    assert sum(jobs[2] in delivery["summary"] for delivery in deliveries) == 1
    assert not any(jobs[1] in delivery["summary"] for delivery in deliveries)
    assert {record.job_id for record in caplog.records if record.message == "notification_not_made"} == {jobs[1]}
