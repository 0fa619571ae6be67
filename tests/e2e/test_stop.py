"""Stopping: SIGTERM reaches whatever trains, SIGKILL comes after the grace, nothing is left behind."""

import re

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


# It needs its worker processes, and whoever reads its output, until it has saved.
NEEDY = """
import multiprocessing, os, signal, sys, time
stopped = []
def stop(*_):
    stopped.append(1)
    print("asked", flush=True)
def load(_):
    time.sleep(0.05)
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    pool = multiprocessing.Pool(2)
    pool.map(load, range(4))
    signal.signal(signal.SIGTERM, stop)
    print("training", flush=True)
    while True:
        pool.map_async(load, range(4)).get(timeout=60)
        if len(stopped) == 1:
            open(os.environ["GRADIENT_ARTIFACTS_DIR"] + "/checkpoint", "w").write("saved")
            print("saved", flush=True)
            sys.exit(0)
"""


@pytest.fixture
def running(service):
    def start(command, says, **spec):
        job_id = service.submit(command, **spec)
        wait_until(lambda: says in service.raw_log(job_id), f"{says} in the log")
        return job_id

    return start


def script(service, text):
    path = service.datasets / "main.py"
    path.write_text(text)
    return f'python "{path}"'


@pytest.mark.parametrize("shell", ["{}", "true && {}; true", "( {} )", "setsid -w {}", "{} | cat"])
def test_sigterm_reaches_the_training_however_it_was_started(service, running, shell):
    job_id = running(shell.format(script(service, GRACEFUL)), b"training")
    answer = service.request("POST", f"/jobs/{job_id}/stop")
    assert answer.status_code == 200
    job = service.wait_ended(job_id)
    assert (job["state"], job["reason"]) == ("Cancelled", "stopped_by_user")
    assert service.artifact(job_id, "checkpoint") == b"saved"
    if "cat" not in shell:  # which is told to end as well
        assert service.raw_log(job_id) == b"training\nsaved\n"
    assert service.find_job_processes(job_id) == []


@pytest.mark.parametrize(
    ("cause", "shell", "method"),
    [
        ("stop", "{}", "fork"),
        ("stop", "{}", "spawn"),
        ("stop", "timeout 1h {}", "fork"),
        ("stop", "set -o pipefail; {} 2>&1 | tee log", "fork"),
        ("stop", "bash -c '{} | tee log; echo never'", "fork"),
        ("stop", "setsid -w {} | cat", "fork"),
        ("stop", "{} & wait", "fork"),
        ("stop", "python -c 'import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))' {}", "fork"),
        ("stop", "yes | {} | perl -ne 'BEGIN {{ $| = 1; $SIG{{TERM}} = sub {{ exit }} }} print'", "fork"),
        ("limit", "timeout 1h {}", "fork"),
        ("preemption", "{}", "spawn"),
    ],
)
def test_a_program_that_saves_keeps_what_it_needs(service, running, cause, shell, method):
    spec = {"limit": {"timeLimit": 5}, "preemption": {"envVars": {"SIMULATE_PREEMPT_AFTER": "5"}, "maxAttempts": 1}}
    command = shell.format(f"{script(service, NEEDY)} {method}")
    job_id = running(command, b"training", stopGrace=600, **spec.get(cause, {}))
    if cause == "stop":
        service.request("POST", f"/jobs/{job_id}/stop")
    wait_until(lambda: b"saved" in service.raw_log(job_id), "it to save", 60)
    if cause == "preemption":  # which is no attempt that counts
        service.request("POST", f"/jobs/{job_id}/stop")
    service.wait_ended(job_id)
    assert service.artifact(job_id, "checkpoint") == b"saved"
    assert service.raw_log(job_id).split()[:3] == [b"training", b"asked", b"saved"]
    assert b"never" not in service.raw_log(job_id)
    assert service.find_job_processes(job_id) == []


@pytest.mark.parametrize(
    "shell", ["{}", "{}; echo never", "bash -c '{} | tee log; echo never'", "timeout 1h {} & wait"]
)
def test_a_stop_has_the_signal_that_a_job_names(service, running, shell):
    interrupted = """
import os, sys, time
try:
    print("training", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("saved", flush=True)
"""
    job_id = running(shell.format(script(service, interrupted)), b"training", stopSignal="INT", stopGrace=600)
    service.request("POST", f"/jobs/{job_id}/stop")
    service.wait_ended(job_id)
    assert service.raw_log(job_id).split()[:2] == [b"training", b"saved"]
    assert b"never" not in service.raw_log(job_id)
    assert service.find_job_processes(job_id) == []


WARNED = """
import multiprocessing, os, signal, sys, time
def save(*_):
    open(os.environ["GRADIENT_ARTIFACTS_DIR"] + "/checkpoint", "a").write("saved")
def load():
    time.sleep(600)
if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, save)
    multiprocessing.set_start_method(sys.argv[1])
    multiprocessing.Process(target=load, daemon=True).start()
    print("training", flush=True)
    time.sleep(600)
"""


def warnings(service, job_id):
    return [event["message"] for event in service.events(job_id) if event["kind"] == "warned"]


@pytest.mark.parametrize(
    ("cause", "options", "shell", "method"),
    [
        ("its time limit", {"timeLimit": 9}, "{}", "fork"),
        ("its time limit", {"timeLimit": 9}, "bash -c '{} | tee log'", "spawn"),
        ("its machine is taken away", {"envVars": {"SIMULATE_PREEMPT_AFTER": "9"}}, "{} & wait", "fork"),
    ],
)
def test_a_program_is_warned_before_its_time_is_up(service, running, cause, options, shell, method):
    command = shell.format(f"{script(service, WARNED)} {method}")
    job_id = running(command, b"training", warnBefore="7s:USR1", stopGrace=1, **options)
    service.wait_ended(job_id)
    assert service.artifact(job_id, "checkpoint") == b"saved"
    assert [re.sub("[1-7]s", "7s", message) for message in warnings(service, job_id)] == [f"SIGUSR1, 7s before {cause}"]


def test_a_warning_that_no_program_handles_is_sent_to_none(service, running):
    job_id = running("sleep 600 | cat & echo begun; wait", b"begun", timeLimit=4, warnBefore="3", stopGrace=1)
    job = service.wait_ended(job_id)
    assert (job["reason"], job["durationSeconds"] >= 4) == ("time_limit", True)
    assert warnings(service, job_id) == ["not sent: no program handled SIGTERM"]


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize(
    ("end", "state", "reason"),
    [
        ("itself", {0: "Stopped", 3: "Failed"}, {0: "completed", 3: "exit_nonzero"}),
        ("stop", {0: "Cancelled", 3: "Cancelled"}, {0: "stopped_by_user", 3: "stopped_by_user"}),
        ("limit", {0: "Failed", 3: "Failed"}, {0: "time_limit", 3: "time_limit"}),
        ("preemption", {0: "Failed", 3: "Failed"}, {0: "preempted", 3: "preempted"}),
    ],
)
def test_an_end_is_called_by_who_asked_for_it(service, running, end, state, reason, code):
    """A program that saves ends with the code that it likes, and by the signal of its own choice."""
    options = {"limit": {"timeLimit": 2}, "preemption": {"envVars": {"SIMULATE_PREEMPT_AFTER": "2"}}}.get(end, {})
    wait = "kill -TERM $!" if end == "itself" else "true"
    job_id = running(f"trap 'exit {code}' TERM; sleep 600 & echo begun; {wait}; wait; exit {code}", b"begun", **options)
    if end == "stop":
        service.request("POST", f"/jobs/{job_id}/stop")
    job = service.wait_ended(job_id)
    assert (job["state"], job["reason"], job["exitCode"]) == (state[code], reason[code], code)
    service.cli("jobs", "wait", job_id, code=0 if end == "itself" and code == 0 else code or 1)


def test_what_a_program_does_not_pass_on_reaches_the_rest_before_the_grace_is_over(service, running):
    deaf = "import signal, subprocess, sys; signal.signal(15, lambda *_: 0); subprocess.call(sys.argv[1:])"
    job_id = running(f'python -c "{deaf}" {script(service, GRACEFUL)}', b"training", stopGrace=20)
    service.request("POST", f"/jobs/{job_id}/stop")
    service.wait_ended(job_id)
    assert service.artifact(job_id, "checkpoint") == b"saved"


def test_what_ignores_sigterm_is_killed_after_its_grace(service, running):
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    job_id = running(script(service, deaf), b"deaf", stopGrace=1)
    service.request("POST", f"/jobs/{job_id}/stop")
    job = service.wait_ended(job_id)
    assert (job["state"], job["exitCode"]) == ("Cancelled", 137)
    assert service.find_job_processes(job_id) == []


def test_a_second_stop_at_once_ends_a_grace_period(service, running):
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    job_id = running(script(service, deaf), b"deaf", stopGrace=3600)
    service.request("POST", f"/jobs/{job_id}/stop")
    wait_until(lambda: service.job(job_id)["stopRequested"], "the first request")
    hurried = service.request("POST", f"/jobs/{job_id}/stop?now=true")
    assert hurried.status_code == 200
    job = service.wait_ended(job_id)
    assert (job["state"], job["exitCode"], job["reason"]) == ("Cancelled", 137, "stopped_by_user")
    events = service.request("GET", f"/jobs/{job_id}/events").json()["events"]
    assert [one["message"] for one in events if one["kind"] == "stop_requested"] == [None, "at once"]


def test_double_forks_do_not_escape(service, running):
    hidden = "(setsid sh -c 'trap \"\" TERM; echo hidden; while :; do sleep 1; done' &) ; sleep 600"
    job_id = running(hidden, b"hidden", stopGrace=1)
    service.request("POST", f"/jobs/{job_id}/stop")
    assert service.wait_ended(job_id)["state"] == "Cancelled"
    assert service.find_job_processes(job_id) == []


def test_a_time_limit_counts_running_time_and_says_so(service, running):
    job_id = running("echo begun; sleep 600", b"begun", timeLimit=3, stopGrace=1)
    job = service.wait_ended(job_id)
    assert (job["state"], job["reason"]) == ("Failed", "time_limit")
    assert "time limit of 3s" in job["message"]
    assert "--timeLimit" in job["message"]


def test_deleting_a_running_job_ends_and_hides_it(service, running):
    job_id = running("echo begun; sleep 600", b"begun", stopGrace=1)
    assert service.request("DELETE", f"/jobs/{job_id}").status_code == 204
    assert service.request("GET", f"/jobs/{job_id}").status_code == 404
    wait_until(lambda: not service.find_job_processes(job_id), "its processes to end")
    wait_until(lambda: f"{job_id}-1" not in service.scratch(), "its folders to go")
