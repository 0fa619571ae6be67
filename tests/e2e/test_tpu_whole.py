"""The whole way of a TPU job on one command: a made-up cloud, its bucket, and TensorFlow on its device."""

import sys

import pytest
from deployment import Deployment, wait_until

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


@pytest.fixture
def service(tmp_path):
    deployment = Deployment(tmp_path / "home")
    deployment._api = deployment.start("up", "--port", "0", "--tpu-simulator")
    deployment.wait_ready(deployment._api)
    yield deployment
    deployment.stop()


@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_a_program_computes_on_the_device_and_its_output_comes_back_through_the_bucket(service):
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
    wait_until(lambda: service.request("GET", "/tpus").json() == {"tpus": []}, "the TPU to be gone")
