"""Guards of running jobs, with samples and times a hundred times as fast: what fires, and what must not."""

import json

import pytest
from support.deployment import wait_until
from support.servers.receivers import Receiver

SCALE = 100
STEPS = r"""
import json, os, sys, time
def log(step, **values):
    with open(os.environ["GRADIENT_METRICS_FILE"], "a") as file:
        print(json.dumps({"step": step, **values}), file=file, flush=True)
def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
"""
TRAIN = "for step in range(8):\n    log(step, loss=1 / (step + 1))\n    time.sleep(0.1)\n"
NAN = "float('nan')"
NANS = f"for _ in range(3):\n    log(9, loss={NAN})\n"
EXPLODES = "for step in range(20):\n    log(step, **{'train/loss': 2.0 if step < 12 else 1e6})\n"


@pytest.fixture(scope="module")
def service_settings():
    return {
        "GRADIENT_NOTIFICATIONS__ALLOWED": '["127.0.0.1"]',
        "service.notifications.sender.POLL_SECONDS": 0.05,
        "worker.attempt.monitor.SAMPLE_SECONDS": 0.05,
        "worker.attempt.monitor.POLL_SECONDS": 0.05,
        "worker.attempt.guards._BUCKET": 4,
        "worker.attempt.guards._LEAST_PAUSE_SECONDS": 0.3,
        "worker.attempt.guards.SCALE": SCALE,
        "worker.attempt.guards._MAX_GAP_SECONDS": 0.3,
        "worker.attempt.disk_quota.CHECK_SECONDS": 0.1,
        "GRADIENT_DISK__JOB_MB": "64",
    }


@pytest.fixture
def receiver(service):
    receiver = Receiver()
    receiver.name = f"team{receiver.server.port}"
    answer = service.request("PUT", f"/notifications/{receiver.name}", json={"url": receiver.url, "events": ["job.*"]})
    receiver.secret = answer.json()["secret"]
    yield receiver
    receiver.server.check_assertions()
    receiver.server.stop()


def run(service, program, **options):
    code = f"cat > program.py <<'END'\n{STEPS}{program}\nEND\nexec python3 program.py"
    return service.submit(code, stopGrace=1, **options)


def firings(service, job):
    events = service.request("GET", f"/jobs/{job}/events").json()["events"]
    return [(event["reason"], event["message"]) for event in events if event["kind"] == "guard"]


@pytest.mark.parametrize(
    ("options", "program", "state", "reason", "evidence"),
    [
        ({"onIdle": "notify:60s,stop:2m"}, "time.sleep(600)", "Cancelled", "idle", "CPU at most"),
        ({"onStall": "notify:5,stop:8"}, f"{TRAIN}time.sleep(600)", "Failed", "stalled", "no step after 7"),
        ({"onDiverge": "notify,stop"}, f"{TRAIN}{NANS}time.sleep(600)", "Failed", "diverged", "loss is nan at step 9"),
        ({"onDiverge": "stop"}, f"{EXPLODES}time.sleep(600)", "Failed", "diverged",
         "train/loss is 1e+06 at step 14, after at most 2 at first"),
        ({"onDisk": "notify:50,stop:80"}, "open('big', 'wb').write(bytes(58 << 20))\ntime.sleep(600)", "Failed",
         "disk_nearly_full", "% of the space for it is used"),
    ],
)  # fmt: skip
def test_a_guard_tells_and_stops_with_its_evidence(service, receiver, options, program, state, reason, evidence):
    job = run(service, program, notify=[receiver.name], **options)
    ended = service.wait_ended(job)
    assert (ended["state"], ended["reason"]) == (state, reason), ended
    assert evidence in ended["message"]
    found = firings(service, job)
    assert {name for name, _ in found} == {reason}
    assert evidence in found[0][1]
    wait_until(lambda: receiver.types()[f"job.{reason}"] == len(found), "a message of each firing")
    message = next(message for _, message in receiver.messages if message["type"] == f"job.{reason}")
    assert evidence in message["data"]["summary"]


def test_a_stalled_job_is_tried_again(service):
    job = run(service, f"{TRAIN}if os.environ['GRADIENT_ATTEMPT'] == '1':\n    time.sleep(600)", onStall="retry:5",
              maxAttempts=2)  # fmt: skip
    ended = service.wait_ended(job)
    assert (ended["state"], ended["attempt"]) == ("Stopped", 2)
    assert [name for name, _ in firings(service, job)] == ["stalled"]


LEFT_ALONE = {
    "works": ({"onIdle": "stop:60s"}, "work(2)"),
    "works now and then": ({"onIdle": "stop:60s"}, "for n in range(20):\n    work(0.1)\n    time.sleep(0.1)"),
    "writes a checkpoint": (
        {"onIdle": "stop:60s", "onStall": "stop:3"},
        f"{TRAIN}for n in range(20):\n    open(f'{{n % 4}}', 'wb').write(bytes(2 << 20))\n    time.sleep(0.1)",
    ),
    "evaluates": ({"onStall": "stop:3"}, f"{TRAIN}work(3)\n{TRAIN}"),
    "prints": ({"onStall": "stop:3"}, f"{TRAIN}for n in range(20):\n    print(n, flush=True)\n    time.sleep(0.1)"),
    "has no steps": ({"onStall": "stop:3"}, "time.sleep(2)"),
    "is slow": ({"onStall": "stop:4"}, "for step in range(6):\n    log(step)\n    time.sleep(0.6)"),
    "skips batches": ({"onDiverge": "stop"}, f"for step in range(30):\n    log(step, loss={NAN} if step % 3 else 1)"),
    "has no loss": ({"onDiverge": "stop"}, "for step in range(30):\n    log(step, loss_scale=2.0 ** step, x=step)"),
    "begins at zero": ({"onDiverge": "stop"}, "for step in range(30):\n    log(step, loss=-1e3 * (step > 20))"),
}


@pytest.mark.parametrize(("options", "program"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_a_job_that_works_is_left_alone(service, options, program):
    job = run(service, program, **options)
    ended = service.wait_ended(job)
    assert (ended["state"], firings(service, job)) == ("Stopped", [])


FIRST = "os.environ['GRADIENT_ATTEMPT'] == '1'"
MARKED = {
    "is not finite": (f"{TRAIN}{NANS}", "loss is nan at step 9, after at most 1 at first"),
    "explodes": (EXPLODES, "train/loss is 1e+06 at step 14, after at most 2 at first"),
    "has another loss": (f"{NANS}log(10, val_loss=1)", "loss is nan at step 9"),
    "recovers": (f"{TRAIN}{NANS}log(10, loss=1)", None),
    "skips batches": (LEFT_ALONE["skips batches"][1], None),
    "is tried again": (f"for _ in range(3 * ({FIRST})):\n    log(9, loss={NAN})\nsys.exit({FIRST})", None),
}


@pytest.mark.parametrize(("program", "evidence"), MARKED.values(), ids=MARKED)
def test_a_job_without_a_guard_is_marked_if_it_diverged(service, program, evidence):
    job = run(service, program, maxAttempts=2)
    ended = service.wait_ended(job)
    assert (ended["state"], ended["diverged"], firings(service, job)) == ("Stopped", evidence, [])
    found = service.request("GET", f"/jobs?q=id:{job} is:diverged").json()["jobs"]
    assert [one["diverged"] for one in found] == ([evidence] if evidence else [])
    assert ("Succeeded (diverged)" in service.cli("jobs", "list").stdout.split(job)[1].split("\n")[0]) == bool(evidence)
    shown = [line.split(maxsplit=1) for line in service.cli("jobs", "show", job).stdout.splitlines()]
    assert (["diverged", evidence] in shown) == bool(evidence)


def touch(deployment, job, name):
    """Create a file in a job, once its worker can be reached."""
    enter = ("jobs", "exec", job, "--", "touch", name)
    wait_until(lambda: deployment.cli(*enter, code=None).returncode == 0, "the worker")


def test_a_mark_outlives_the_worker_and_ends_when_the_job_recovers(deployment):
    deployment.start_api()
    worker = deployment.start_worker()
    wait = "while not os.path.exists({!r}):\n    time.sleep(0.02)\n".format
    explodes = f"{wait('explode')}for step in range(12, 15):\n    log(step, loss=1e6)\n"
    recovers = f"{wait('recover')}log(15, loss=2)\ntime.sleep(600)"
    job = run(deployment, f"for step in range(12):\n    log(step, loss=2)\n{explodes}{recovers}")
    wait_until(lambda: deployment.request("GET", f"/jobs/{job}/metrics").json()["series"], "its first values")
    worker.kill()
    worker = deployment.start_worker()
    touch(deployment, job, "explode")
    wait_until(lambda: deployment.job(job)["diverged"], "the mark")
    assert deployment.job(job)["diverged"] == "loss is 1e+06 at step 14, after at most 2 at first"
    worker.kill()
    deployment.start_worker()
    wait_until(lambda: [event["kind"] for event in deployment.events(job)].count("adopted") == 2, "its adoption")
    assert deployment.job(job)["diverged"]
    touch(deployment, job, "recover")
    wait_until(lambda: not deployment.job(job)["diverged"], "the end of the mark")


def test_an_array_has_the_mark_of_its_members(service):
    bad = "os.environ['GRADIENT_ARRAY_INDEX'] != '1'"
    first = run(service, f"for _ in range(3 * ({bad})):\n    log(9, loss={NAN})", array="0-2")
    array = service.job(first)["arrayId"]
    for member in service.request("GET", f"/jobs?array={array}").json()["jobs"]:
        service.wait_ended(member["id"])
    [row] = service.request("GET", f"/jobs?q=array:{array}&fold=true").json()["jobs"]
    assert row["diverged"] == "2 of them: loss is nan at step 9"
    [other] = service.request("GET", f"/jobs?q=array:{array} -is:diverged").json()["jobs"]
    assert other["arrayIndex"] == 1


def test_a_job_in_which_somebody_is_does_not_idle(service):
    job = run(service, "time.sleep(600)", onIdle="stop:10m")
    wait_until(lambda: service.job(job)["state"] == "Running", "the job")
    service.cli("jobs", "exec", job, "--", "sleep", "8")
    assert service.job(job)["state"] == "Running"
    assert service.wait_ended(job)["reason"] == "idle"


def test_a_line_of_the_log_is_told_once_and_only_to_whom_it_concerns(service, receiver):
    names = [f"{receiver.name}:job.log=CUDA (error|out), or worse"]
    job = service.submit("for n in 1 2 3; do echo step $n: CUDA error, or worse: $n; done", notify=names)
    service.wait_ended(job)
    [(_, message)] = receiver.wait_for(1)
    assert message["type"] == "job.log"
    assert "step 1: CUDA error, or worse: 1" in message["data"]["summary"]
    assert [reason for reason, _ in firings(service, job)] == ["log"]


def test_members_of_an_array_are_one_message(service, receiver):
    body = {
        "machineType": "CPU",
        "command": "sleep 600",
        "onIdle": "stop:60s",
        "array": "0-3",
        "notify": [receiver.name],
    }
    array = service.request("POST", "/jobs", json=body | {"stopGrace": 1}).json()["arrayId"]
    wait_until(lambda: receiver.types()["array.ended"], "the end")
    assert receiver.types() == {"job.idle": 1, "array.ended": 1}
    assert json.dumps(receiver.messages[-1][1]).count(array)


@pytest.mark.parametrize(
    ("options", "field", "text"),
    [
        ({"onIdle": "stop"}, "onIdle", "has no TIME"),
        ({"onIdle": "stop:10s"}, "onIdle", "too few samples"),
        ({"onIdle": "retry:2h"}, "onIdle", "use each of notify:TIME, stop:TIME at most once"),
        ({"onIdle": "stop:1h,stop:2h"}, "onIdle", "at most once"),
        ({"onIdle": ""}, "onIdle", "at most once"),
        ({"onStall": "retry"}, "onStall", "maxAttempts above 1"),
        ({"onStall": "stop:1"}, "onStall", "2 to 1,000"),
        ({"onStall": "stop,retry", "maxAttempts": 2}, "onStall", "both stop and retry"),
        ({"onDiverge": "stop:3"}, "onDiverge", "notify, stop"),
        ({"onDisk": "stop:100%"}, "onDisk", "50 to 99"),
        ({"notify": ["team:job.log"]}, "notify", "what a line has to match"),
        ({"notify": ["team:job.log=("]}, "notify", "RE2"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(service, options, field, text):
    error = service.request("POST", "/jobs", json={"machineType": "CPU", "command": "true"} | options).json()["error"]
    assert (error["field"], text in error["message"]) == (field, True), error
