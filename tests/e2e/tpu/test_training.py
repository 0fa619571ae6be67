"""A TPU job from end to end with one command: a simulated cloud, its bucket, and TensorFlow on its device."""

import json
import subprocess
import sys

import pytest
from support.deployment import CLI_PROGRAM, Deployment, wait_until
from support.google.tpu_vm_deployment import nothing_left
from support.job_packages import share_environments

from gradient_server.simulator.cloud import SimulatedCloud

# What the managed service's own sample does: connect to the address, compute a·x + y there, leave something, say so.
SAMPLE = """
import os

import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
print("TPU", os.environ["TPU_NAME"])
with v1.Session(os.environ["TPU_GRPC_URL"]) as session:
    devices = [one.name for one in session.list_devices() if one.device_type == "CPU"]
    print(len(devices), "devices")
    with tf.device(devices[-1]):
        a, x, y = v1.placeholder(tf.float32), v1.placeholder(tf.float32), v1.placeholder(tf.float32)
        made = session.run(a * x + y, {a: 3.0, x: [1.0, 2.0], y: [0.5, 0.5]})
print(made.tolist())
with tf.io.gfile.GFile(os.environ["TPU_MODEL_DIR"] + "/result.txt", "w") as file:
    file.write(str(made.tolist()))
print("Done!")
"""

MODEL = """\
import keras
from keras import layers
def build(image_shape, classes):
    layers_of_one = [keras.Input(image_shape), layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(classes)]
    return keras.Sequential(layers_of_one)
"""

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("trainer_packages"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def world():
    """One for all tests: its device takes TensorFlow's time to start."""
    world = SimulatedCloud().start()
    yield world
    world.stop()


@pytest.fixture(scope="module")
def service(world, tmp_path_factory):
    home = tmp_path_factory.mktemp("whole") / "home"
    deployment = Deployment(home, **world.environment(), **share_environments(home))
    deployment.start_up()
    yield deployment
    deployment.stop()


def test_one_command_trains_on_eight_replicas_and_brings_the_model_home(service, world, tmp_path):
    world.tpus.cloud.record.clear()
    (tmp_path / "model.py").write_text(MODEL)
    env = service.environment() | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    flags = "--model model.py --data digits --epochs 1 --batch-size 32 --learning-rate 0.03 --seed 1"
    create = ["jobs", "create", "--machineType", "TPU", "--command", f"python -m gradient_trainer {flags}"]
    done = subprocess.run([CLI_PROGRAM, *create], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "simulated TPU at grpc://" in done.stdout
    assert ": 8 CPU devices" in done.stdout
    assert "replicas  8: 4 examples of a step each; batch size 32 and learning rate 0.03, as given" in done.stdout

    job = service.request("GET", "/jobs").json()["jobs"][0]
    job_id, name = job["id"], f"gj-{job['id']}-1"
    assert (job["state"], job["simulated"], job["artifactsState"]) == ("Stopped", True, "complete")
    [accuracy] = service.request("GET", f"/jobs/{job_id}/metrics?name=test_accuracy").json()["series"]
    assert accuracy["last"] >= 0.85
    files = {file["path"]: file for file in service.artifacts(job_id)["files"]}
    assert {"model.keras", "result.json", "checkpoints/step-00000042.npz"} <= files.keys()
    assert all(file["sha256"] for file in files.values()), "the manifest has every file's checksum"
    result = json.loads(service.artifact(job_id, "result.json"))
    assert result["test_accuracy"] == pytest.approx(accuracy["last"])
    assert result["replicas"] == 8
    written = [one for one in world.storage.requests if f"jobs%2F{job_id}%2Fmodel%2Fmodel.keras" in one]
    assert written, "the model came by way of the bucket"

    assert nothing_left(world.tpus, world.storage)
    assert world.tpus.cloud.record == [
        ("created", f"queuedResources/{name}"),
        ("created", f"nodes/{name}"),
        ("deleted", f"nodes/{name}"),
        ("deleted", f"queuedResources/{name}"),
    ]


def test_a_program_computes_on_the_device_and_its_output_comes_back_through_the_bucket(service, world):
    program = service.home / "main.py"
    program.write_text(SAMPLE)
    job_id = service.submit(f"{sys.executable} {program}", machineType="TPU")
    job = service.wait_ended(job_id, seconds=500)
    said = service.raw_log(job_id).decode()
    assert (job["state"], job["simulated"]) == ("Stopped", True), said
    assert f"TPU gj-{job_id}-1\n" in said
    assert "8 devices\n[3.5, 6.5]\n" in said
    assert said.endswith("Done!\n")
    assert service.artifact(job_id, "result.txt") == b"[3.5, 6.5]"
    wait_until(lambda: service.request("GET", "/tpus").json()["tpus"] == [], "the TPU to be gone")
    assert nothing_left(world.tpus, world.storage)


def test_the_service_brings_the_made_up_cloud_itself_when_asked(tmp_path):
    deployment = Deployment(tmp_path / "home")
    try:
        deployment._api = deployment.start("up", "--port", "0", "--tpu-simulator")
        deployment.wait_ready(deployment._api)
        spec = {"machineType": "TPU", "command": "true"}
        plan = deployment.request("POST", "/jobs?dryRun=true", json=spec).json()
        assert (plan["machineType"]["backend"], plan["machineType"]["simulated"]) == ("tpu-simulator", True)
    finally:
        deployment.stop()
