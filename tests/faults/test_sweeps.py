"""Kill the API while it begins the trials of a sweep: none is lost, and none has two jobs."""

import signal

import pytest
from support.deployment import wait_until

TRIALS = 6


@pytest.mark.parametrize(
    ("name", "service"),
    [
        pytest.param("submit_before_commit", "deployment", marks=pytest.mark.slow),
        ("submit_after_commit", "postgres_deployment"),
    ],
)
def test_no_trial_is_lost_or_doubled(request, name, service):
    deployment = request.getfixturevalue(service)
    api = deployment.start_api()
    deployment.start_worker()
    body = {
        "machineType": "CPU",
        "command": """echo '{"loss": 1}' > $GRADIENT_METRICS_FILE""",
        "space": {"lr": "log:1e-5..1e-1"},
        "metric": "loss:min",
        "stop": "asha",
        "trials": TRIALS,
        "parallel": 2,
    }
    made = deployment.request("POST", "/sweeps", json=body).json()
    api.kill()
    for _ in range(2):  # each dies when it begins the next trials
        doomed = deployment.start("api", "--port", "0", GRADIENT_FAILPOINT=name)
        assert doomed.wait() == -signal.SIGKILL, doomed.read_log()
    for _ in range(2):  # both at once
        api = deployment.start_api()

    def show():
        return deployment.request("GET", f"/sweeps/{made['id']}").json()

    wait_until(lambda: show()["counts"].get("complete", 0) >= TRIALS // 2, "half of the trials")
    api.kill()
    deployment.start_api()
    wait_until(lambda: show()["state"] == "finished", "the end of the sweep")
    trials = show()["trials"]
    jobs = deployment.request("GET", f"/jobs?q=sweep:{made['id']}&limit=200").json()["jobs"]
    assert sorted(job["arrayIndex"] for job in jobs) == list(range(TRIALS))
    assert [trial["jobId"] for trial in trials] == [
        job["id"] for job in sorted(jobs, key=lambda job: job["arrayIndex"])
    ]
    assert [(trial["state"], trial["value"]) for trial in trials] == [("complete", 1.0)] * TRIALS
    assert len({trial["params"]["lr"] for trial in trials}) == TRIALS
