"""Workers: their jobs and GPUs, and whether they claim jobs."""

import pytest
from sqlalchemy import insert, update
from support.live_service import make_job_body, record_requests

from core.db.database import now
from core.db.models.jobs import GpuAllocation, Job, Worker
from core.jobs.tracking import metrics
from service.notifications import sender


def test_workers_are_listed_with_their_jobs_and_gpus(client, worker, database):
    assert client.get("/workers").json() == {"workers": []}
    worker.register()
    with database.write() as session:
        session.execute(update(Worker).values(gpus=["0", "1"]))
    client.post("/jobs", json=make_job_body()).raise_for_status()
    job = worker.start()
    with database.write() as session:
        session.add(GpuAllocation(host=job.host, gpu="1", job_id=job.id, attempt=1))
        sample = {"job_id": job.id, "attempt": 1, "source": "system", "offset": 1, "step": None, "at": job.created_at}
        values = {"gpu0_percent": 80.0, "gpu0_memory_bytes": 5e9, "cpu_percent": 3.0}
        metrics.add(session, [sample | {"values": values}])
    (found,) = client.get("/workers").json()["workers"]
    assert (found["state"], found["jobIds"], found["drainedAt"]) == ("ready", [job.id], None)
    free, held = found["gpus"]
    assert (free["gpu"], free["jobId"], free["percent"]) == ("0", None, None)
    assert (held["gpu"], held["jobId"], held["percent"], held["memoryBytes"]) == ("1", job.id, 80.0, 5e9)


def test_broken_gpus_and_drained_hosts_are_told_with_their_evidence(client, worker, stores, database):
    worker.register()
    saved = client.put("/notifications/ops", json={"url": "https://192.0.9.1/hook", "jobs": ["all"], "events": ["*"]})
    assert saved.status_code == 201, saved.text
    why = "3 jobs in turn failed"
    with database.write() as session:
        session.execute(
            update(Worker).values(
                gpus=["0"], gpu_faults={"0": "7 ECC <errors>", "3": "lost"}, drained_at=now(), drain_reason=why
            )
        )
    (found,) = client.get("/workers").json()["workers"]
    assert (found["state"], found["drainReason"]) == ("drained", why)
    assert {gpu["gpu"]: gpu["fault"] for gpu in found["gpus"]} == {"0": "7 ECC <errors>", "3": "lost"}
    page = client.get("/ui/machines").text
    assert ("7 ECC &lt;errors&gt;" in page, why in page, "Resume…" in page) == (True, True, True)
    for _ in range(2):
        sender.collect_states(stores)
    sent = client.get("/notifications/ops/deliveries").json()["deliveries"]
    assert sorted(delivery["event"] for delivery in sent) == ["gpu.drained", "gpu.drained", "worker.drained"]
    assert any("GPU 3 no more, which is broken: lost" in delivery["summary"] for delivery in sent)
    resumed = client.post(f"/workers/{found['name']}/resume").json()
    assert (resumed["drainReason"], [gpu["fault"] for gpu in resumed["gpus"]]) == (None, [None])
    refused = client.put("/notifications/mine", json={"url": "https://192.0.9.1/hook", "events": ["gpu.drained"]})
    assert "gpu.drained is of no job" in refused.text


@pytest.mark.parametrize(
    ("path", "used", "times"),
    [("/workers", '"percent":37.0', 6), ("/ui/machines", "37 %", 6), ("/ui", "6 of 6", 1)],
)
def test_the_number_of_queries_does_not_depend_on_the_number_of_workers(client, database, submit, path, used, times):
    def occupy(job):
        with database.write() as session:
            values = {"host": job.id, "boot_id": "b", "backends": ["process"], "slots": 1, "gpus": ["0"]}
            session.execute(insert(Worker).values(name=job.id, started_at=now(), seen_at=now(), **values))
            held = {"state": "running", "worker": job.id, "host": job.id, "started_at": now(), "attempt": 1}
            session.execute(update(Job).where(Job.id == job.id).values(**held))
            session.add(GpuAllocation(host=job.id, gpu="0", job_id=job.id, attempt=1))
            sample = {"job_id": job.id, "attempt": 1, "source": "system", "offset": 1, "step": None}
            metrics.add(session, [sample | {"at": job.created_at, "values": {"gpu0_percent": 37.0}}])

    def ask():
        with record_requests(database) as statements:
            answer = client.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 200
        assert statements
        return len(statements), answer.text.count(used)

    submit()  # waits
    occupy(submit())
    ask()  # what a process reads once
    one, _ = ask()
    for _ in range(5):
        occupy(submit())
    assert ask() == (one, times)


def test_actions_on_several_jobs_succeed_or_fail_each_by_itself(client, wake_calls):
    ids = [client.post("/jobs", json=make_job_body(name=name)).json()["id"] for name in ("a", "b")]
    wake_calls.clear()

    def act(action, **fields):
        answer = client.post("/jobs/actions", json={"action": action, "ids": [ids[0], "jnone", ids[1]], **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()["results"]

    first, missing, second = act("tag", add=["kept"])
    assert (first["done"], first["job"]["tags"], second["job"]["name"]) == (True, ["kept"], "b")
    assert (missing["done"], missing["error"]["name"], missing["error"]["status"]) == (False, "JobNotFound", 404)
    assert [one["done"] for one in act("tag", add=["x" * 1000])] == [False] * 3
    assert [one["job"]["state"] for one in act("stop") if one["done"]] == ["Cancelled"] * 2
    assert [one["done"] for one in act("delete")] == [True, False, True]
    assert client.get("/jobs").json()["jobs"] == []
    assert wake_calls
    for body in ({"action": "stop", "ids": []}, {"action": "dance", "ids": ids}, {"action": "stop", "ids": ids * 101}):
        assert client.post("/jobs/actions", json=body).status_code == 422
