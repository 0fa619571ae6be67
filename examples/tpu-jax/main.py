# /// script
# requires-python = ">=3.11"
# dependencies = ["jax>=0.10", "numpy"]
# ///
"""Fit a line by gradient descent on every device of a TPU, or of a slice of several hosts; also on a CPU."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

OUTPUT = Path(os.environ.get("GRADIENT_ARTIFACTS_DIR", "."))
STEPS, EXAMPLES_PER_DEVICE = 100, 1024


def join_slice() -> None:
    """Connect the hosts of a slice; the job's variables name them. A single host needs nothing."""
    addresses = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    if len(addresses) > 1:
        jax.distributed.initialize(num_processes=len(addresses), process_id=int(os.environ["TPU_WORKER_ID"]))


@jax.jit
def step(weights: jax.Array, inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return better weights and the loss; XLA adds up the gradients of all devices."""

    def loss(weights: jax.Array) -> jax.Array:
        return jnp.mean((inputs * weights[0] + weights[1] - targets) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradients, value


def main() -> None:
    """Train on data that each host makes for its own devices, and save the weights once."""
    join_slice()
    rank, hosts = jax.process_index(), jax.process_count()
    print(f"host {rank} of {hosts}: {jax.local_device_count()} of {jax.device_count()} {jax.default_backend()} devices")
    mesh = Mesh(np.array(jax.devices()), ("data",))
    local = np.random.default_rng(rank).normal(size=EXAMPLES_PER_DEVICE * jax.local_device_count()).astype("float32")
    split = NamedSharding(mesh, PartitionSpec("data"))
    inputs = jax.make_array_from_process_local_data(split, local)
    targets = jax.make_array_from_process_local_data(split, 3 * local + 2)
    weights = jax.device_put(jnp.zeros(2), NamedSharding(mesh, PartitionSpec()))
    for number in range(1, STEPS + 1):
        weights, value = step(weights, inputs, targets)
        if number % 25 == 0 and rank == 0:
            print(f"step {number} loss {float(value):.6f}", flush=True)
    multihost_utils.sync_global_devices("trained")
    if rank == 0:
        slope, offset = np.asarray(weights)
        np.savez(OUTPUT / "weights.npz", slope=slope, offset=offset)
        print(f"y = {slope:.2f} x + {offset:.2f}")


if __name__ == "__main__":
    main()
