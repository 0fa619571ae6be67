"""`make experiments`: long trainings of real images on this machine's CPU, with what they reached.

`mnist` trains on all of MNIST and must recognize 99.2 % of the test images, as the publication's GPU did.
`davidnet` trains DavidNet on 10,000 images of CIFAR-10, with the trainer and with a program in JAX that shares no
code with it, from several seeds; and sets a few steps from the same weights beside each other.
Each prints its report when it ends, and writes it to `mnist.md` or `davidnet.md` in the output folder.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import davidnet
from experiments.programs import run_trainer

ROOT = Path(__file__).parents[1]
MNIST_ACCURACY = 0.992
MNIST_EPOCHS, DAVIDNET_EPOCHS, DAVIDNET_BATCH = 10, 24, 512
SEEDS = 3
REPORT = """\
## MNIST

| device | test accuracy | time |
|---|--:|--:|
| Tesla T4, published (Fenwicks tutorial 9, 2019) | 99.2 % | |
| TPU v2, published there, too | 99.4 % | |
| {device}, {epochs} epochs, measured | {percent:.2f} % | {seconds:.0f} s |
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen experiments; return 1 if MNIST is recognized too seldom or the two programs disagree."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("--only", choices=("mnist", "davidnet"), help="run only this one")
    parser.add_argument("--data", type=Path, default=find_data(), help="folder of mnist.npz and cifar10-subset.zip")
    parser.add_argument("--epochs", type=int, help="epochs (default: 10 of MNIST, 24 of DavidNet)")
    parser.add_argument("--batch-size", type=int, default=DAVIDNET_BATCH, help="DavidNet's (512); scales its rate, too")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="trainings of DavidNet with each program (3)")
    parser.add_argument("--output", type=Path, default=ROOT / ".experiments", help="folder for results")
    chosen = parser.parse_args(arguments)
    if chosen.data is None:
        parser.error("--data: required, because no folder shared/data with mnist.npz was found above this repository")
    chosen.output.mkdir(parents=True, exist_ok=True)
    reached = agreed = True
    if chosen.only != "davidnet":
        report, reached = train_mnist(chosen.data, chosen.epochs or MNIST_EPOCHS, chosen.output)
        publish(report, chosen.output / "mnist.md")
    if chosen.only != "mnist":
        setting = davidnet.Setting(chosen.epochs or DAVIDNET_EPOCHS, chosen.batch_size, chosen.seeds)
        report, agreed = davidnet.compare(setting, chosen.data, chosen.output)
        publish(report, chosen.output / "davidnet.md")
    return 0 if reached and agreed else 1


def publish(report: str, file: Path) -> None:
    """Write a report to its file, and print it."""
    file.write_text(report)
    print(report, flush=True)


def find_data() -> Path | None:
    """Return the folder of real data sets of this machine, if it has one."""
    folders = [folder / "shared" / "data" for folder in ROOT.parents]
    return next((folder for folder in folders if (folder / "mnist.npz").is_file()), None)


def train_mnist(data: Path, epochs: int, output: Path) -> tuple[str, bool]:
    """Train on MNIST; return the report, and whether it reached its accuracy."""
    result = run_trainer(output / "mnist", data, ["--data", "mnist", "--epochs", str(epochs)], seed=1)
    accuracy = float(result["test_accuracy"])
    return REPORT.format(**result | {"epochs": epochs, "percent": 100 * accuracy}), accuracy >= MNIST_ACCURACY


if __name__ == "__main__":
    sys.exit(main())
