"""Workers: their jobs and GPUs, and whether they claim jobs."""

from sqlalchemy import update
from support.live_service import make_job_body

from core.db.models.jobs import GpuAllocation, Worker
from core.jobs.tracking import metrics


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
