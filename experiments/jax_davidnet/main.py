# /// script
# requires-python = ">=3.11"
# dependencies = ["jax>=0.10", "numpy>=2", "pillow>=11"]
# ///
"""DavidNet in plain JAX, written from its publication: it shares no code with the trainer, and no framework.

D. Page, "How to Train Your ResNet" (myrtle.ai, 2018), parts 3 and 4: a residual network of 9 layers, Nesterov momentum
in PyTorch's form, weight decay in the gradient of every weight, a rate that rises and falls along lines; here without
augmentation. What is not the publication's: the weights begin uniform, as Glorot and Bengio 2010 have it, and a part of
the training images is kept aside. The order of the images is stated again here, so that a seed means the same images as
in the trainer.

Prints a line of JSON: training loss (without the decay) and validation accuracy by step, and the test accuracy.
"""

import argparse
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

WIDTHS = ((3, 64), (64, 128), (128, 128), (128, 128), (128, 256), (256, 512), (512, 512), (512, 512))
"""Channels into and out of each convolution: the first, and three blocks, of which two have a residual."""
POOLED, RESIDUAL = {1, 4, 5}, {2, 6}
"""Convolutions that are followed by 2 x 2 pooling, and that begin a residual of two."""
MEAN, DEVIATION = np.float32([125.31, 122.95, 113.87]), np.float32([62.99, 62.09, 66.70])
CLASSES, LOGIT_SCALE, EPSILON, KEPT = 10, 0.125, 1e-5, 0.9
MOMENTUM, KEPT_ASIDE = 0.9, 0.05
TEST_BATCH = 500

Tree = Any


def predict(weights: Tree, statistics: Tree, images: jax.Array, *, training: bool) -> tuple[jax.Array, Tree]:
    """Return the logits, and the moving statistics after these images."""
    hidden, after, residual = (images.astype(jnp.float32) - MEAN) / DEVIATION, [], images
    for number, (kernel, scale, shift) in enumerate(weights["convolutions"]):
        if number in RESIDUAL:
            residual = hidden
        hidden = jax.lax.conv_general_dilated(
            hidden, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        mean, variance = before = statistics[number]
        if training:
            mean, variance = hidden.mean((0, 1, 2)), hidden.var((0, 1, 2))
        after.append([KEPT * old + (1 - KEPT) * new for old, new in zip(before, (mean, variance), strict=True)])
        hidden = jax.nn.relu((hidden - mean) / jnp.sqrt(variance + EPSILON) * scale + shift)
        if number in POOLED:
            hidden = jax.lax.reduce_window(hidden, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        if number - 1 in RESIDUAL:
            hidden += residual
    return LOGIT_SCALE * hidden.max((1, 2)) @ weights["dense"], after


def cross_entropy(weights: Tree, statistics: Tree, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, Tree]:
    """Return the mean loss of a batch, and the moving statistics after it."""
    logits, after = predict(weights, statistics, images, training=True)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
    return -chosen.mean(), after


@jax.jit
def train_step(state: Tree, images: jax.Array, labels: jax.Array, rate: float, decay: float) -> tuple[Tree, jax.Array]:
    """Return the state after a step, and the loss before it."""
    weights, momenta, statistics = state
    differentiate = jax.value_and_grad(cross_entropy, has_aux=True)
    (loss, statistics), gradients = differentiate(weights, statistics, images, labels)
    gradients = jax.tree.map(lambda gradient, weight: gradient + decay * weight, gradients, weights)
    momenta = jax.tree.map(lambda momentum, gradient: MOMENTUM * momentum + gradient, momenta, gradients)
    weights = jax.tree.map(lambda w, g, m: w - rate * (g + MOMENTUM * m), weights, gradients, momenta)
    return (weights, momenta, statistics), loss


@jax.jit
def count_right(state: Tree, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return how many images are recognized."""
    logits, _ = predict(state[0], state[2], images, training=False)
    return (logits.argmax(1) == labels).sum()


def measure_accuracy(state: Tree, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of the images that are recognized."""
    starts = range(0, len(labels), TEST_BATCH)
    parts = ((images[start : start + TEST_BATCH], labels[start : start + TEST_BATCH]) for start in starts)
    return sum(int(count_right(state, *part)) for part in parts) / len(labels)


def begin(seed: int) -> Tree:
    """Return weights, momenta and moving statistics before the first step."""
    random = np.random.default_rng(seed)

    def uniform(shape: tuple[int, ...], fan_in: int, fan_out: int) -> jax.Array:
        limit = (6 / (fan_in + fan_out)) ** 0.5
        return jnp.asarray(random.uniform(-limit, limit, shape), jnp.float32)

    convolutions = [
        [uniform((3, 3, into, out), 9 * into, 9 * out), jnp.ones(out), jnp.zeros(out)] for into, out in WIDTHS
    ]
    weights = {"convolutions": convolutions, "dense": uniform((WIDTHS[-1][1], CLASSES), WIDTHS[-1][1], CLASSES)}
    return weights, jax.tree.map(jnp.zeros_like, weights), [[jnp.zeros(out), jnp.ones(out)] for _, out in WIDTHS]


def read_checkpoint(path: Path) -> Tree:
    """Return the state in a checkpoint of the trainer: arrays named after Keras' variables, in order of the layers."""
    with np.load(path) as stored:
        named = {name: jnp.asarray(stored[name]) for name in sorted(stored.files) if name != "meta"}

    def found(end: str) -> list[jax.Array]:
        return [array for name, array in named.items() if name.endswith(end)]

    def tree(end: str, join: str) -> Tree:
        *kernels, dense = found(f"{join}kernel{end}")
        parts = zip(kernels, found(f"{join}gamma{end}"), found(f"{join}beta{end}"), strict=True)
        return {"convolutions": [list(part) for part in parts], "dense": dense}

    statistics = zip(found("/moving_mean"), found("/moving_variance"), strict=True)
    return tree("", "/"), tree("_momentum", "_"), [list(part) for part in statistics]


def read_images(path: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels in `PART/CLASS/*.jpg` of a .zip; classes count in order of their names."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.startswith(f"{part}/") and name.endswith(".jpg"))
        images = [np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("RGB")) for name in names]
    classes = sorted({name.split("/")[1] for name in names})
    return np.stack(images), np.int32([classes.index(name.split("/")[1]) for name in names])


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="a .zip with train/CLASS/*.jpg and test/CLASS/*.jpg")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--steps", type=int, help="length in steps instead of epochs")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--rate", type=float, default=0.4, help="the highest learning rate")
    parser.add_argument("--rise", type=float, default=100 * 5 / 24, help="percent of the steps until the highest rate")
    parser.add_argument("--decay", type=float, default=0.0005)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-steps", type=int, default=10)
    parser.add_argument("--checkpoint", type=Path, help="begin after the first step, with this checkpoint's state")
    chosen = parser.parse_args()
    images, labels = read_images(chosen.data, "train")
    shuffled = np.random.default_rng(0).permutation(len(labels))
    aside, used = np.split(shuffled, [max(1, round(KEPT_ASIDE * len(labels)))])
    used.sort()
    per_epoch = len(used) // chosen.batch_size
    total = chosen.steps or chosen.epochs * per_epoch
    rise = round(total * chosen.rise / 100)
    state, done = (read_checkpoint(chosen.checkpoint), 1) if chosen.checkpoint else (begin(chosen.seed), 0)
    losses, curve, since = [], [], []
    for step in range(done, total):
        epoch, position = divmod(step, per_epoch)
        order = np.random.default_rng([chosen.seed, epoch]).permutation(used)
        batch = order[position * chosen.batch_size : (position + 1) * chosen.batch_size]
        rate = chosen.rate * min(step / max(1, rise), (total - step) / max(1, total - rise))
        state, loss = train_step(state, images[batch], labels[batch], rate, chosen.decay)
        since.append(loss)
        ended = position + 1 == per_epoch
        if ended or step == 0 or (step + 1) % chosen.log_steps == 0:
            losses.append((step + 1, float(np.mean(since))))
            since.clear()
        if ended:
            curve.append((step + 1, measure_accuracy(state, images[aside], labels[aside])))
    accuracy = measure_accuracy(state, *read_images(chosen.data, "test"))
    print(json.dumps({"losses": losses, "curve": curve, "test_accuracy": accuracy}))


if __name__ == "__main__":
    main()
