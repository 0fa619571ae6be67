"""A TPU job from end to end with one command: a simulated cloud, its bucket, and TensorFlow on its device."""

import json
import subprocess

import pytest
from support.deployment import CLI_PROGRAM, Deployment
from support.google.tpu_faults import ControlledTpuProject
from support.google.tpu_vm_deployment import nothing_left
from support.job_packages import share_environments

from gradient_server.simulator.cloud import SimulatedCloud

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
    world.tpus.cloud = ControlledTpuProject(("127.0.0.1", world.device.port), machines=world.machines)
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
    flags = "--model model.py --data digits --steps 4 --batch-size 32 --learning-rate 0.03 --seed 1"
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
    files = {file["path"]: file for file in service.artifacts(job_id)["files"]}
    assert {"model.keras", "result.json", "checkpoints/step-00000004.npz"} <= files.keys()
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


def test_the_service_brings_the_made_up_cloud_itself_when_asked(tmp_path):
    deployment = Deployment(tmp_path / "home")
    try:
        deployment.api = deployment.start("up", "--port", "0", "--tpu-simulator")
        deployment.wait_ready(deployment.api)
        spec = {"machineType": "TPU", "command": "true"}
        plan = deployment.request("POST", "/jobs?dryRun=true", json=spec).json()
        assert (plan["machineType"]["backend"], plan["machineType"]["simulated"]) == ("tpu-simulator", True)
    finally:
        deployment.stop()
