"""A sweep from the command line: with its folder and its file, early stops, its table, its end, and its deletion."""

import json
import subprocess

import pytest
from support.deployment import CLI_PROGRAM, Deployment

# Trial after trial, `x` decides: a bad one logs its value, and then runs until it is stopped.
TRAIN = """\
import json, os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
x = json.loads(os.environ["GRADIENT_PARAMS"])["x"]
assert f"--x={x}" in sys.argv, sys.argv
with open(os.environ["GRADIENT_METRICS_FILE"], "a") as metrics:
    print(json.dumps({"step": 1, "loss": x}), file=metrics, flush=True)
pathlib.Path(os.environ["GRADIENT_ARTIFACTS_DIR"], "x").write_text(str(x))
while x > 3:
    time.sleep(0.1)
with open(os.environ["GRADIENT_METRICS_FILE"], "a") as metrics:
    print(json.dumps({"step": 1, "loss": x}), file=metrics)
"""
SWEEP = """\
method = "grid"
metric = "loss:min"
stop = "asha"
parallel = 1
machineType = "CPU"
command = "python train.py $GRADIENT_ARRAY_VALUE"

[params]
x = [1, 0, 9]
"""


@pytest.fixture
def service(tmp_path):
    deployment = Deployment(tmp_path / "home")
    deployment.start_api()
    deployment.start_worker()
    yield deployment
    deployment.stop()


def test_a_folder_is_tried_with_each_value(service, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "sweep.toml").write_text(SWEEP)

    def cli(*arguments, code=0):
        done = subprocess.run(
            [str(CLI_PROGRAM), *arguments],
            env=service.client_environment(),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done

    made = cli("sweeps", "create", "sweep.toml", "--name", "steps", "--stopGrace", "60")
    sweep_id = made.stdout.strip()
    ended = cli("sweeps", "wait")
    assert "loss 0 in trial 1: x=0" in ended.stdout
    assert "All 3 trials have ended." in ended.stderr
    found = json.loads(cli("sweeps", "show", sweep_id, "--json").stdout)
    assert [trial["state"] for trial in found["trials"]] == ["complete", "complete", "pruned"]
    assert found["trials"][2]["reason"] == "value 1 of loss, 9, is not in the best third of 3"
    shown = cli("sweeps", "show", "@last").stdout
    assert "3 of 3: 2 complete, 1 pruned" in shown
    assert "1*" in shown, "the best is marked"
    stopped = service.request("GET", f"/jobs/{found['trials'][2]['jobId']}").json()
    assert (stopped["state"], stopped["reason"]) == ("Cancelled", "stopped_by_sweep")
    cli("jobs", "artifacts", "get", sweep_id)
    assert (folder / f"artifacts-{sweep_id}" / "2" / "x").read_text() == "9", "also of one that was stopped"
    assert f"{sweep_id}" in cli("sweeps", "list").stdout
    assert "has ended, and none of its trials failed" in cli("sweeps", "resume", sweep_id, code=4).stderr
    assert "steps[2]" in cli("jobs", "list", "--array", sweep_id).stdout
    refused = cli(
        "sweeps", "create", "--param", "x=2..1", "--trials", "3", "--metric", "loss:min", "sweep.toml", code=4
    )
    assert "the range '2..1' is empty: 2 is not below 1" in refused.stderr
    assert "param: a sweep needs at least one" in cli("sweeps", "create", "--command", "true", code=2).stderr
    help_text = cli("sweeps", "create", "--help").stdout
    assert not {"--array", "--after", "--nodes"} & set(help_text.split()), "they are refused"
    assert "--param" in help_text
    cli("sweeps", "delete", sweep_id)
    assert "no sweeps" in cli("sweeps", "list").stderr
