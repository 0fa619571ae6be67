"""Trainings over two nodes, of one host and of two: MultiWorkerMirroredStrategy, torchrun (gloo), jax.distributed."""

import json
import os
import subprocess
import sys

import pytest
from support.deployment import Deployment
from support.far_worker import FarWorker
from support.job_packages import ROOT, SHARED, index_settings
from uv import find_uv_bin

pytestmark = pytest.mark.slow

# Each rank sees its own half of y = 3x; the weights are the same on both only if gradients are exchanged.
TENSORFLOW = """
import json, os
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weight = tf.Variable(0.0)
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
x = tf.constant([1.0, 2.0] if rank == 0 else [3.0, 4.0])

@tf.function
def step():
    def replica():
        gradient = tf.reduce_mean(2 * (weight * x - 3 * x) * x)
        total = tf.distribute.get_replica_context().all_reduce("MEAN", gradient)
        weight.assign_sub(0.05 * total)
    strategy.run(replica)

for _ in range(50):
    step()
print(f"RESULT {strategy.num_replicas_in_sync} {weight.numpy():.3f}", flush=True)
"""
PYTORCH = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weight = torch.zeros(())
x = torch.tensor([1.0, 2.0] if dist.get_rank() == 0 else [3.0, 4.0])
for _ in range(50):
    gradient = (2 * (weight * x - 3 * x) * x).mean()
    dist.all_reduce(gradient)
    weight -= 0.05 * gradient / dist.get_world_size()
print(f"RESULT {dist.get_world_size()} {weight:.3f}", flush=True)
dist.destroy_process_group()
"""
JAX = """
import os
import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.config.update("jax_cpu_collectives_implementation", "gloo")
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
jax.distributed.initialize(f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", size, rank)
weight, x = jnp.zeros(()), jnp.array([1.0, 2.0] if rank == 0 else [3.0, 4.0])
for _ in range(50):
    gradients = multihost_utils.process_allgather((2 * (weight * x - 3 * x) * x).mean())
    weight = weight - 0.05 * gradients.mean()
print(f"RESULT {jax.process_count()} {float(weight):.3f}", flush=True)
"""


def install_torch():
    """Return the programs of an environment with the requirements of the example; all tests share it."""
    folder, requirements = SHARED / "torchrun", ROOT / "examples" / "pytorch" / "requirements.txt"
    env = os.environ | index_settings() | {"UV_CACHE_DIR": str(SHARED / "cache"), "VIRTUAL_ENV": str(folder)}
    SHARED.mkdir(exist_ok=True)
    for words in (
        ["venv", "--allow-existing", "--python", sys.executable, folder],
        ["pip", "install", "--index-strategy", "unsafe-best-match", "-r", requirements],
    ):
        subprocess.run([find_uv_bin(), *words], env=env, check=True)
    return folder / "bin"


@pytest.fixture(scope="module", params=["one host", "two hosts"])
def service(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    deployment = Deployment(folder / "home")
    deployment.start_api()
    if request.param == "one host":
        deployment.start_worker("w1", GRADIENT_WORKER__SLOTS="2")
    else:
        for number, name in enumerate(("ada", "bob"), 1):
            settings = {"GRADIENT_WORKER__SLOTS": "1", "GRADIENT_WORKER__NODES_ADDRESS": f"127.0.0.{number}"}
            FarWorker(deployment, folder / name, deployment.cli_json["url"], name, **settings).start()
    yield deployment
    deployment.stop()


@pytest.mark.parametrize("library", [pytest.param("tensorflow", marks=pytest.mark.tensorflow), "pytorch", "jax"])
def test_two_ranks_exchange_gradients_and_have_the_same_weights(service, library, tmp_path):
    source, start = {"tensorflow": TENSORFLOW, "pytorch": PYTORCH, "jax": JAX}[library], sys.executable
    if library == "pytorch":
        ranks = "--nnodes $WORLD_SIZE --node-rank $RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
        start = f"{install_torch() / 'torchrun'} {ranks}"
    (tmp_path / "main.py").write_text(source)
    words = ["jobs", "create", "--machineType", "CPU", "--nodes", "2", "--command", f"{start} main.py", "--json"]
    array_id = json.loads(service.cli(*words, "--detach", folder=tmp_path).stdout)["arrayId"]
    listed = json.loads(service.cli("jobs", "show", array_id, "--json").stdout)["jobs"]
    logs = [(service.wait_ended(job["id"], 240), service.raw_log(job["id"]).decode())[1] for job in listed]
    results = [line for log in logs for line in log.splitlines() if line.startswith("RESULT")]
    assert results == ["RESULT 2 3.000"] * 2, logs
