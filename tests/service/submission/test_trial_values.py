"""Values of trials that are jobs: which one counts, what is said without one, and how parameters reach a command."""

import math

import pytest
from support.live_service import wait_until

from core.jobs.tracking.metrics import FILE_STREAM as FILE
from core.jobs.tracking.metrics import LOG_STREAM as LOG
from service.submission.sweeps import advance

EVENTS, MORE_EVENTS = 0, 1


@pytest.mark.parametrize("together", [True, False], ids=["together", "one by one"])
@pytest.mark.parametrize(
    "logged",
    [
        [([11, 10, 9, 8, -1], {"steps": [1, 2, 3, 1, 2]})],
        [([11, 10, 9, -1], {"steps": [1, 10**12, 2, 3]})],
        [([11, -1], {"steps": [5, 5]})],
        [([11, 10], {"stream": EVENTS}), ([5, -1], {"stream": FILE, "seconds": -9})],
        [([5, -1], {"stream": LOG}), ([11, 10], {"stream": EVENTS, "seconds": 9})],
        [([11], {"stream": EVENTS}), ([10, -1], {"stream": MORE_EVENTS, "seconds": 1})],
        [([11], {"stream": MORE_EVENTS}), ([10, -1], {"stream": EVENTS, "seconds": 1})],
        [([11], {"stream": LOG}), ([-1], {"stream": FILE, "seconds": 1})],
        [([11], {"attempt": 1}), ([9], {"attempt": 2}), ([-1], {"attempt": 2, "stream": LOG, "seconds": 1})],
    ],
)
def test_the_value_of_a_trial_is_the_last_that_it_wrote(worker, log, sweep, show, logged, together, settle):
    worker.register()
    made = sweep(trials=1, parallel=1, stop="median")
    job = worker.start()
    for values, options in logged:
        if together:
            log(job, values, **options)
            continue
        for step, value in zip(options.get("steps", range(len(values))), values, strict=True):
            log(job, [value], **options | {"steps": [step]})
            settle(made, lambda found, value=value: found["trials"][0]["value"] in (value, -1))
    worker.end(job)
    settle(made, lambda found: found["state"] == "finished")
    assert (show(made)["best"]["value"], show(made)["trials"][0]["best"]) == (-1, -1)


def test_an_attempt_that_repeats_steps_is_not_judged_again(stores, worker, log, sweep, show, settle):
    worker.register()
    made = sweep(stop="median", trials=1, parallel=1)
    job = worker.start()
    log(job, [3.0, 2.0, 1.0])
    wait_until(lambda: not advance(stores, made["id"]) and show(made)["trials"][0]["step"] == 3)
    log(job, [9.0, 9.0, 9.0, 0.5])
    wait_until(lambda: not advance(stores, made["id"]) and show(made)["trials"][0]["step"] == 4)
    assert (show(made)["trials"][0]["value"], show(made)["trials"][0]["best"]) == (0.5, 0.5)
    log(job, [math.nan and None], first=5)
    worker.end(job)
    settle(made, lambda found: found["state"] == "finished")
    [trial] = show(made)["trials"]
    assert (trial["state"], trial["value"], trial["best"]) == ("complete", None, 0.5)
    assert trial["reason"] == "Its last value of loss is not a finite number."
    assert show(made)["best"] is None


def test_a_metric_that_no_trial_logs_is_said_after_the_first(worker, log, sweep, show, settle):
    worker.register()
    made = sweep(trials=9, parallel=1, metric="val:min")
    for number in range(2):
        job = worker.start()
        if number == 0:
            log(job, [1.0], name="v")
            log(job, [2.0], name="acc")
        worker.end(job)
        settle(made, lambda found, ended=number + 1: found["counts"].get("failed") == ended)
        why = "acc, v." if number == 0 else "no metrics. Log it with gradient_jobs.log(step=…, val=…)."
        why = f"It logged no value of 'val', the sweep's metric; it logged {why}"
        assert show(made)["trials"][number]["reason"] == why
        assert show(made)["reason"] == f"No trial has logged 'val' so far. Trial {number}: {why}"
    job = worker.start()
    log(job, [1.0], name="val")
    worker.end(job)
    settle(made, lambda found: found["counts"].get("complete"))
    assert show(made)["reason"] is None


def test_values_that_are_not_finite_pause_nothing(worker, log, sweep, show, settle):
    worker.register()
    made = sweep(trials=7, parallel=1, space={"x": "1..7"})
    for ended in range(1, 8):
        job = worker.start()
        log(job, [None])
        worker.end(job)
        settle(made, lambda found, ended=ended: found["counts"].get("complete") == ended)
    assert (show(made)["state"], show(made)["best"]) == ("finished", None)


@pytest.mark.parametrize(
    ("space", "options"),
    [
        ({"amp": "true,false"}, ["--amp", "--no-amp"]),
        ({"amp": "flag"}, ["--amp", ""]),
        ({"amp": ["true", "false"]}, ["--amp=true", "--amp=false"]),
        ({"v": '"2.10",2.10'}, ["--v=2.10", "--v=2.1"]),
        ({"v": "--lr,*"}, ["--v=--lr", "--v=*"]),
        ({"size": "2 4,8"}, ["'--size=2 4'", "--size=8"]),
    ],
)
def test_a_command_gets_the_values_of_the_page(client, sweep, space, options):
    made = sweep(space=space, method="grid", trials=None, parallel=9)
    jobs = client.get("/jobs", params={"q": f"sweep:{made['id']}"}).json()["jobs"]
    assert [job["arrayValue"] for job in reversed(jobs)] == options
