"""`make experiments`: long trainings of real images on this machine's CPU, with what they reached.

`mnist` trains on all of MNIST and must recognize 99.2 % of the test images, as the publication's GPU did.
`davidnet` trains DavidNet on 10,000 images of CIFAR-10, with the trainer and with plain Keras, and draws both curves.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradient_cli.experiments.chart import draw

ROOT = Path(__file__).parents[1]
PLAIN = Path(__file__).with_name("plain_davidnet.py")
MNIST_ACCURACY = 0.992
SEED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen experiments; return 1 if MNIST is recognized too seldom."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("--only", choices=("mnist", "davidnet"), help="run only this one")
    parser.add_argument("--data", type=Path, default=find_data(), help="folder of mnist.npz and cifar10-subset.zip")
    parser.add_argument("--epochs", type=int, help="epochs (default: 10 of MNIST, 24 of DavidNet)")
    parser.add_argument("--output", type=Path, default=ROOT / ".experiments", help="folder for results")
    chosen = parser.parse_args(arguments)
    if chosen.data is None:
        parser.error("--data: required, because no folder shared/data with mnist.npz was found above this repository")
    chosen.output.mkdir(parents=True, exist_ok=True)
    reached = chosen.only == "davidnet" or train_mnist(chosen.data, chosen.epochs or 10, chosen.output)
    if chosen.only != "mnist":
        train_davidnet(chosen.data, chosen.epochs or 24, chosen.output)
    return 0 if reached else 1


def find_data() -> Path | None:
    """Return the folder of real data sets of this machine, if it has one."""
    folders = [folder / "shared" / "data" for folder in ROOT.parents]
    return next((folder for folder in folders if (folder / "mnist.npz").is_file()), None)


def train_mnist(data: Path, epochs: int, output: Path) -> bool:
    """Train on MNIST; return whether it reached its accuracy."""
    result = run_trainer(output / "mnist", data, ["--data", "mnist", "--epochs", str(epochs)])
    reached = bool(result["test_accuracy"] >= MNIST_ACCURACY)
    print(
        f"MNIST: {result['test_accuracy']:.2%} of 10,000 test images in {result['seconds']:.0f} s, {epochs} epochs, "
        f"{result['steps_per_second']:.1f} steps/s; {MNIST_ACCURACY:.1%} {'reached' if reached else 'MISSED'}"
    )
    return reached


def train_davidnet(data: Path, epochs: int, output: Path) -> None:
    """Train DavidNet with the trainer and with plain Keras, and draw both curves."""
    images = data / "cifar10-subset.zip"
    flags = ["--model", "davidnet-cifar10", "--data", str(images), "--epochs", str(epochs), "--augment", "none"]
    began = time.perf_counter()
    result = run_trainer(output / "davidnet", data, flags)
    seconds = time.perf_counter() - began
    lines = [json.loads(line) for line in (output / "davidnet" / "metrics.jsonl").read_text().splitlines()]
    ours = [(line["step"], line["val_accuracy"]) for line in lines if "val_accuracy" in line]
    began = time.perf_counter()
    plain = json.loads(run([str(PLAIN), str(images), str(epochs), str(SEED)]).splitlines()[-1])
    plain_seconds = time.perf_counter() - began
    svg = draw("DavidNet: validation accuracy", {"trainer": ours, "plain Keras": plain["curve"]})
    if svg:
        (output / "davidnet.svg").write_text(svg)
    print("DavidNet   step   trainer   plain Keras")
    for (step, accuracy), (_, other) in zip(ours, plain["curve"], strict=True):
        print(f"{step:15} {accuracy:9.2%} {other:13.2%}")
    print(
        f"test {result['test_accuracy']:.2%} in {seconds:.0f} s; plain Keras {plain['test_accuracy']:.2%} "
        f"in {plain_seconds:.0f} s; {output / 'davidnet.svg'}"
    )


def run_trainer(output: Path, data: Path, flags: list[str]) -> dict[str, Any]:
    """Train with the trainer and return its result."""
    output.mkdir(exist_ok=True)
    (output / "metrics.jsonl").unlink(missing_ok=True)
    words = ["-m", "gradient_trainer", *flags, "--data-dir", str(data), "--seed", str(SEED), "--restart"]
    run([*words, "--output", str(output)], GRADIENT_METRICS_FILE=str(output / "metrics.jsonl"))
    result: dict[str, Any] = json.loads((output / "result.json").read_text())
    return result


def run(words: list[str], **variables: str) -> str:
    """Run a program of this Python, with its errors on the terminal, and return its output."""
    print(f"$ python {' '.join(words)}", flush=True)
    env = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"} | variables
    done = subprocess.run([sys.executable, *words], env=env, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
