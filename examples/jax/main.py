# /// script
# requires-python = ">=3.11"
# dependencies = ["jax>=0.10", "numpy", "optax>=0.2", "scikit-learn>=1.7"]
# ///
"""Train a small network in JAX on scikit-learn's handwritten digits. Its requirements are in the script (PEP 723)."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gradient_jobs

OUTPUT = Path(os.environ.get("GRADIENT_ARTIFACTS_DIR", "."))
Parameters = dict[str, jax.Array]


def predict(parameters: Parameters, images: jax.Array) -> jax.Array:
    """Return the logits of the ten digits."""
    hidden = jax.nn.relu(images @ parameters["w1"] + parameters["b1"])
    return hidden @ parameters["w2"] + parameters["b2"]


def loss(parameters: Parameters, images: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean cross entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(predict(parameters, images), targets).mean()


def main() -> None:
    """Train, print the accuracy, and save the parameters."""
    print(f"JAX {jax.__version__} on {jax.devices()}")
    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(digits.data / 16, digits.target, random_state=1)
    first, second = jax.random.split(jax.random.key(1))
    parameters = {
        "w1": jax.random.normal(first, (64, 128)) * 0.1,
        "b1": jnp.zeros(128),
        "w2": jax.random.normal(second, (128, 10)) * 0.1,
        "b2": jnp.zeros(10),
    }
    optimizer = optax.adam(0.01)

    @gradient_jobs.watch
    @jax.jit
    def step(parameters: Parameters, state: optax.OptState) -> tuple[Parameters, optax.OptState, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, train_x, train_y)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, value

    state = optimizer.init(parameters)
    for number in range(1, 201):
        parameters, state, value = step(parameters, state)
        if number % 50 == 0:
            gradient_jobs.log(step=number, loss=value)
            print(f"step {number} loss {value:.4f}", flush=True)
    accuracy = (predict(parameters, test_x).argmax(1) == test_y).mean()
    gradient_jobs.log(step=number, test_accuracy=accuracy)
    np.savez(OUTPUT / "parameters.npz", **parameters)
    print(f"accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
