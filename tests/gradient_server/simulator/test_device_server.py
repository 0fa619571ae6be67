"""A TPU job without a TPU: TensorFlow's own gRPC and gs:// clients, with the simulator's device and bucket."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradient_server.simulator.tpu.device_server import DeviceNotStarted, DeviceServer

pytestmark = [pytest.mark.integration, pytest.mark.tensorflow, pytest.mark.timeout(600)]

QUICK = {"NO_GCE_CHECK": "true", "GCS_RETRY_CONFIG_MAX_RETRIES": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


@pytest.fixture(scope="module")
def device():
    device = DeviceServer().start(400)
    yield device
    device.stop()


def run(command, folder, **environ):
    """Run a job's program with the job's environment, and none of our own settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GRADIENT_", "GOOGLE_"))}
    return subprocess.run(
        [sys.executable, *command], env=env | QUICK | environ, cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_trainer_does_several_steps_between_two_messages(device, tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    environ = {"TPU_NAME": "t", "TPU_GRPC_URL": device.url, "GRADIENT_METRICS_FILE": str(metrics)}
    words = "-m gradient_trainer --data digits --batch-size 32 --steps 30 --output"
    ended = run([*words.split(), str(tmp_path)], tmp_path, **environ)
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    # The first is reported as soon as it is done.
    assert next(line["step"] for line in lines if "loss" in line) == 25
    result, summary = (json.loads((tmp_path / name).read_text()) for name in ("result.json", "summary.json"))
    assert (result["steps"], summary["device"]["steps_per_execution"]) == (30, 25)


@pytest.mark.slow
def test_the_trainer_uses_one_core_of_the_device(device, tmp_path):
    environ = {"TPU_NAME": "t", "TPU_GRPC_URL": device.url}
    words = ["-m", "gradient_trainer", "--data", "digits", "--batch-size", "4", "--steps", "4", "--scale-by-replicas"]
    words += ["--schedule", "one-cycle"]
    for cores in (1, 2):
        output = tmp_path / str(cores)
        ended = run([*words, "--devices", str(cores), "--output", str(output)], tmp_path, **environ)
        assert ended.returncode == 0, ended.stderr
        result = json.loads((output / "result.json").read_text())
        assert (result["replicas"], result["batch_size"]) == (cores, 4 * cores)
    refused = run([*words, "--devices", "9", "--output", str(tmp_path / "9")], tmp_path, **environ)
    assert refused.returncode == 2
    assert "--devices 9 is more than this machine has, which is 8" in refused.stderr


@pytest.mark.slow
def test_a_device_whose_starter_is_killed_ends(tmp_path):
    starter = (
        "import sys, time\n"
        "from gradient_server.simulator.tpu.device_server import DeviceServer\n"
        "device = DeviceServer(replicas=1).start(400)\n"
        "print(device._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", starter], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while running(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running(pid)


def running(pid):
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_device_that_cannot_start_says_why():
    with pytest.raises(DeviceNotStarted, match="did not start"):
        DeviceServer(environment={"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"}).start(60)
