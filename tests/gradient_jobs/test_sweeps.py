"""Loops of one's own over the trials of a sweep: ends, early stops, and deaths of the API and of the program."""

import logging
import subprocess
import sys
import threading

import pytest
from support.deployment import Deployment, wait_until
from support.free_port import free_port

import gradient_jobs

pytestmark = pytest.mark.integration

LOOP = """\
import sys
import time
import gradient_jobs

with gradient_jobs.Client() as client:
    for trial in client.sweeps.get(sys.argv[1]).ask():
        for step in range(3):
            trial.report(trial.params["x"] + step, step)
            print(trial.number, step, flush=True)
            time.sleep(3600 if trial.number == int(sys.argv[2]) else 0.1)
"""


@pytest.mark.usefixtures("folder")
def test_a_loop_completes_fails_and_prunes_trials(client):
    sweep = client.sweeps.create({"x": [1, 9, 8, 2]}, method="grid", metric="loss:min", stop="asha", name="mine")
    seen = []
    for trial in sweep.ask():
        seen.append(trial.params["x"])
        with trial:
            for step in range(3):
                trial.report(trial.params["x"] / (step + 1))
                if trial.should_stop:
                    break
    assert seen == [1, 9, 8, 2]
    assert [trial["state"] for trial in sweep.refresh().trials] == ["complete", "complete", "pruned", "pruned"]
    assert sweep.trials[0]["step"] == 2
    assert sweep.best["params"] == {"x": 1}
    wait_until(lambda: sweep.refresh().state == "finished", "the end of the sweep")
    assert list(sweep.ask()) == []
    assert repr(client.sweeps.get(sweep.id)) == f"<Sweep {sweep.id} finished>"


@pytest.mark.usefixtures("folder")
def test_a_trial_whose_loop_is_left_has_failed(client):
    sweep = client.sweeps.create({"x": "0..1.0"}, method="random", metric="loss:min", trials=9)

    def leave_by_an_exception():
        for trial in sweep.ask():
            trial.report(1)
            raise ValueError("x")

    def say_why():
        for trial in sweep.ask():
            with trial:
                raise ValueError("x")

    for leave in (leave_by_an_exception, say_why):
        with pytest.raises(ValueError, match="x"):
            leave()
    for trial in sweep.ask():
        trial.complete()
        break
    found = sweep.refresh().trials
    assert [(trial["state"], trial["reason"]) for trial in found] == [
        ("failed", "The loop was left before the trial ended."),
        ("failed", "ValueError: x"),
        ("failed", "It reported no value of loss. Report one with trial.report(value)."),
    ]
    assert sweep.resume().data["counts"] == {"waiting": 3}
    for trial in sweep.ask():
        trial.report(9, step=5)
        trial.report(float("nan"), step=5)
        trial.report(7 + trial.number, step=1)
        if trial.number == 2:
            break
    assert [trial["value"] for trial in sweep.refresh().trials] == [7, 8, 9], "the last, whatever its step"
    assert (sweep.stop().state, list(sweep.ask())) == ("stopped", [])


@pytest.mark.usefixtures("folder")
def test_a_loop_waits_while_its_sweep_is_paused(client, caplog):
    sweep = client.sweeps.create({"x": [1, 2]}, method="grid")
    other = gradient_jobs.Client()
    trials = sweep.ask()
    assert next(trials).params == {"x": 1}
    other._api.change_template("sweeps", sweep.id, "pause")
    resumed = threading.Timer(1, lambda: other._api.change_template("sweeps", sweep.id, "resume"))
    resumed.start()
    with caplog.at_level(logging.WARNING, "gradient_jobs"):
        assert [trial.params for trial in trials] == [{"x": 2}]
    resumed.join()
    assert f"sweep {sweep.id} is paused: Paused by its owner." in caplog.text
    assert [trial["state"] for trial in sweep.refresh().trials] == ["complete", "complete"]


def test_options_of_jobs_need_a_command(client, folder):
    with pytest.raises(gradient_jobs.UsageError, match="time_limit is an option of jobs"):
        client.sweeps.create({"x": [1, 2]}, method="grid", time_limit="1h")
    (folder / "train.py").write_text("import gradient_jobs; gradient_jobs.log(step=1, loss=2)")
    sweep = client.sweeps.create(
        {"x": [1, 2]}, metric="loss:min", method="grid", command="python train.py", machine_type="CPU", parallel=2
    )
    wait_until(lambda: sweep.refresh().state == "finished", "the end of the sweep")
    assert [trial["value"] for trial in sweep.trials] == [2, 2]


def test_the_api_and_the_program_may_die_in_the_middle(tmp_path):
    service = Deployment(tmp_path / "home")
    try:
        port = str(free_port())
        api = service.start("api", "--port", port)
        service.wait_ready(api)
        body = {"space": {"x": [3, 1, 2, 4, 5, 6]}, "method": "grid", "metric": "loss:min"}
        made = service.request("POST", "/sweeps", json=body).json()

        def run(hangs_in="-1"):
            return subprocess.Popen(
                [sys.executable, "-c", LOOP, made["id"], hangs_in],
                env=service.client_environment(),
                stdout=subprocess.PIPE,
                text=True,
            )

        def show():
            return service.request("GET", f"/sweeps/{made['id']}").json()

        first = run("2")
        assert first.stdout.readline() == "0 0\n"
        api.kill()
        api = service.start("api", "--port", port)
        service.wait_ready(api)
        wait_until(lambda: len(show()["trials"]) == 3 and show()["trials"][2]["value"], "the third trial")
        first.kill()
        first.communicate()
        second = run()
        wait_until(lambda: show()["counts"].get("complete") == 5, "all but the trial of the dead program")
        assert second.poll() is None, "it waits for that trial"
        assert [(trial["state"], trial["value"]) for trial in show()["trials"]] == [
            ("complete", x + 2.0) if x != 2 else ("running", 2.0) for x in (3, 1, 2, 4, 5, 6)
        ]
        second.kill()
        second.communicate()
    finally:
        service.stop()
