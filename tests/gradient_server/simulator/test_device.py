"""A TPU job without a TPU: TensorFlow's own gRPC and gs:// clients, with the simulator's device and bucket."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.trainer_process import fork_trainer

from core.settings import Settings
from core.storage.artifacts.store import DirectoryStore
from gradient_server.simulator.tpu.device import DeviceNotStarted, DeviceServer
from worker.backends.tpu.storage import open_bucket

pytestmark = [pytest.mark.integration, pytest.mark.tensorflow, pytest.mark.timeout(600)]

TPU_TEST = Path(__file__).parents[3] / "examples" / "tpu-test" / "main.py"
JOB = "jtpu"
QUICK = {"NO_GCE_CHECK": "true", "GCS_RETRY_CONFIG_MAX_RETRIES": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
MODEL = """\
import keras
from keras import layers
def build(image_shape, classes):
    images = [keras.Input(image_shape), layers.Rescaling(1 / 255)]
    features = [layers.Conv2D(24, 6, strides=3, activation="relu"), layers.Flatten()]
    return keras.Sequential([*images, *features, layers.Dense(96, activation="relu"), layers.Dense(classes)])
"""


@pytest.fixture(scope="module")
def device():
    device = DeviceServer().start(400)
    yield device
    device.stop()


@pytest.fixture
def bucket(gcs, tmp_path):
    settings = Settings(home=tmp_path, gcs=gcs.settings.model_copy(update={"project": f"tpu-{tmp_path.name[-20:]}"}))
    return open_bucket(settings, "us-central1")


def run(command, folder, **environ):
    """Run a job's program with the job's environment, and none of our own settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GRADIENT_", "GOOGLE_"))}
    return subprocess.run(
        [sys.executable, *command], env=env | QUICK | environ, cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_trainer_learns_digits_on_eight_replicas_and_leaves_its_model_in_the_bucket(device, bucket, tmp_path):
    paths = bucket.prepare(JOB)
    environ = {"TPU_NAME": "t", "TPU_GRPC_URL": device.url, "TPU_MODEL_DIR": paths.model_dir, **paths.credentials}
    (tmp_path / "model.py").write_text(MODEL)
    flags = "--model model.py --data digits --epochs 7 --batch-size 32 --learning-rate 0.004"
    ended = fork_trainer(flags.split(), tmp_path, QUICK | environ)
    assert ended.returncode == 0, ended.stdout
    assert "simulated TPU at" in ended.stdout
    assert "replicas  8: 4 examples of a step each; batch size 32 and learning rate 0.004, as given" in ended.stdout
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    assert bucket.complete(JOB, artifacts / "model").skipped == ()
    bucket.remove(JOB)
    assert bucket.jobs() == []
    result = json.loads((artifacts / "model" / "result.json").read_text())
    assert result["test_accuracy"] >= 0.97
    assert (result["replicas"], result["output"]) == (8, paths.model_dir)
    manifest = DirectoryStore(tmp_path / "store").close(JOB, 1, artifacts)
    assert manifest.state == "complete"
    kept = [file.path for file in DirectoryStore(tmp_path / "store").walk(JOB, 1)]
    assert {"model/model.keras", "model/checkpoints/step-00000294.npz"} <= set(kept)


def test_a_program_of_tensorflow_1_runs_on_the_device(device, bucket, tmp_path):
    paths = bucket.prepare(JOB)
    environ = {"TPU_NAME": "t", "TPU_GRPC_URL": device.url, "TPU_MODEL_DIR": paths.model_dir, **paths.credentials}
    ended = run([str(TPU_TEST)], tmp_path, **environ)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("Done!\n")
    assert ended.stdout.count("/job:worker/replica:0/task:0/device:CPU:") == 8
    assert "[[5. 5. 5.]" in ended.stdout
    bucket.complete(JOB, tmp_path / "model")
    assert (tmp_path / "model" / "result.txt").read_text() == f"{[[5.0] * 3] * 3}\n"


def test_a_device_whose_starter_is_killed_ends(tmp_path):
    starter = (
        "import sys, time\n"
        "from gradient_server.simulator.tpu.device import DeviceServer\n"
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
