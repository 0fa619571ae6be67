"""Stopping: SIGTERM reaches whatever trains, SIGKILL comes after the grace, nothing is left behind."""

import pytest
from support.deployment import wait_until

GRACEFUL = """
import os, signal, sys, time
def save(*_):
    open(os.environ["GRADIENT_ARTIFACTS_DIR"] + "/checkpoint", "w").write("saved")
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("training", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def running(deployment):
    deployment.start_up()

    def start(command, says, **spec):
        job_id = deployment.submit(command, **spec)
        wait_until(lambda: says in deployment.raw_log(job_id), f"{says} in the log")
        return job_id

    return start


def script(deployment, text):
    path = deployment.datasets / "main.py"
    path.write_text(text)
    return f'python "{path}"'


@pytest.mark.parametrize("shell", ["{}", "true && {}; true", "( {} )", "setsid -w {}", "{} | cat"])
def test_sigterm_reaches_the_training_however_it_was_started(deployment, running, shell):
    job_id = running(shell.format(script(deployment, GRACEFUL)), b"training")
    answer = deployment.request("POST", f"/jobs/{job_id}/stop")
    assert answer.status_code == 200
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["reason"]) == ("Cancelled", "stopped_by_user")
    assert deployment.artifact(job_id, "checkpoint") == b"saved"
    if "cat" not in shell:  # which is told to end as well
        assert deployment.raw_log(job_id) == b"training\nsaved\n"
    assert deployment.find_job_processes(job_id) == []


def test_what_ignores_sigterm_is_killed_after_its_grace(deployment, running):
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    job_id = running(script(deployment, deaf), b"deaf", stopGrace=1)
    deployment.request("POST", f"/jobs/{job_id}/stop")
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["exitCode"]) == ("Cancelled", 137)
    assert deployment.find_job_processes(job_id) == []


def test_a_second_stop_at_once_ends_a_grace_period(deployment, running):
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    job_id = running(script(deployment, deaf), b"deaf", stopGrace=3600)
    deployment.request("POST", f"/jobs/{job_id}/stop")
    wait_until(lambda: deployment.job(job_id)["stopRequested"], "the first request")
    hurried = deployment.request("POST", f"/jobs/{job_id}/stop?now=true")
    assert hurried.status_code == 200
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["exitCode"], job["reason"]) == ("Cancelled", 137, "stopped_by_user")
    events = deployment.request("GET", f"/jobs/{job_id}/events").json()["events"]
    assert [one["message"] for one in events if one["kind"] == "stop_requested"] == [None, "at once"]


def test_double_forks_do_not_escape(deployment, running):
    hidden = "(setsid sh -c 'trap \"\" TERM; echo hidden; while :; do sleep 1; done' &) ; sleep 600"
    job_id = running(hidden, b"hidden", stopGrace=1)
    deployment.request("POST", f"/jobs/{job_id}/stop")
    assert deployment.wait_ended(job_id)["state"] == "Cancelled"
    assert deployment.find_job_processes(job_id) == []


def test_a_time_limit_counts_running_time_and_says_so(deployment, running):
    job_id = running("echo begun; sleep 600", b"begun", timeLimit=3, stopGrace=1)
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["reason"]) == ("Failed", "time_limit")
    assert "3 seconds" in job["message"]
    assert "--timeLimit" in job["message"]


def test_deleting_a_running_job_ends_and_hides_it(deployment, running):
    job_id = running("echo begun; sleep 600", b"begun", stopGrace=1)
    assert deployment.request("DELETE", f"/jobs/{job_id}").status_code == 204
    assert deployment.request("GET", f"/jobs/{job_id}").status_code == 404
    wait_until(lambda: not deployment.find_job_processes(job_id), "its processes to end")
    wait_until(lambda: deployment.scratch() == [], "its folders to go")
