"""A logistic regression on two moons in plain Python, which writes metrics and outputs of several types."""

import argparse
import csv
import json
import math
import os
import random
import struct
import time
import zlib
from pathlib import Path

POINTS, SIDE = 400, 96


def main() -> None:
    """Train, and leave a model, its predictions, a picture and a report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0, help="seconds to wait after each step")
    parser.add_argument("--scripted", default="", help="pauses of simulated machine types: CPU=0.02,V100=0.001")
    args = parser.parse_args()
    pauses = dict(each.split("=") for each in args.scripted.split(",") if each)
    pause = float(pauses.get(os.environ["GRADIENT_MACHINE_TYPE"], args.pause))
    numbers = random.Random(7 + int(os.environ.get("SEED", "0")))
    data = [moon(numbers, index % 2) for index in range(POINTS)]
    weights = [0.0] * 4
    with open(os.environ["GRADIENT_METRICS_FILE"], "a", buffering=1) as metrics:
        for step in range(1, args.steps + 1):
            batch = numbers.sample(data, 64)
            loss = descend(weights, batch, args.rate)
            accuracy = sum((predict(weights, x, y) > 0.5) == label for x, y, label in data) / POINTS
            values = {
                "step": step,
                "time": time.time(),
                "train/loss": loss,
                "val/accuracy": accuracy,
                "learning_rate": args.rate,
            }
            metrics.write(json.dumps(values) + "\n")
            if step % 20 == 0:
                print(f"step {step:4d}  loss {loss:.4f}  accuracy {accuracy:.4f}", flush=True)
            time.sleep(pause)
    save(Path(os.environ["GRADIENT_ARTIFACTS_DIR"]), weights, data, accuracy)


def moon(numbers: random.Random, label: int) -> tuple[float, float, int]:
    """Return a point of one of the moons."""
    angle = numbers.uniform(0, math.pi)
    x, y = (1 - math.cos(angle), 0.5 - math.sin(angle)) if label else (math.cos(angle), math.sin(angle))
    return x + numbers.gauss(0, 0.15), y + numbers.gauss(0, 0.15), label


def features(x: float, y: float) -> tuple[float, float, float, float]:
    """Return the inputs of the model."""
    return 1.0, x, y, x * x * x


def predict(weights: list[float], x: float, y: float) -> float:
    """Return the probability of the second moon."""
    return 1 / (1 + math.exp(-sum(w * f for w, f in zip(weights, features(x, y)))))


def descend(weights: list[float], batch: list[tuple[float, float, int]], rate: float) -> float:
    """Make one step of gradient descent; return the mean loss before it."""
    slope, loss = [0.0] * len(weights), 0.0
    for x, y, label in batch:
        found = predict(weights, x, y)
        loss -= math.log(found if label else 1 - found)
        for index, value in enumerate(features(x, y)):
            slope[index] += (found - label) * value
    for index, value in enumerate(slope):
        weights[index] -= rate * value / len(batch)
    return loss / len(batch)


def save(folder: Path, weights: list[float], data: list[tuple[float, float, int]], accuracy: float) -> None:
    """Write the outputs."""
    (folder / "model").mkdir()
    (folder / "model" / "weights.json").write_text(json.dumps({"weights": weights, "accuracy": accuracy}, indent=2))
    with open(folder / "predictions.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("x", "y", "label", "probability"))
        rows.writerows((f"{x:.3f}", f"{y:.3f}", label, f"{predict(weights, x, y):.4f}") for x, y, label in data)
    (folder / "REPORT.md").write_text(
        f"# Two moons\n\nA logistic regression recognizes **{accuracy:.1%}** of {POINTS} points.\n\n"
        "| input | weight |\n|---|---:|\n"
        + "".join(f"| `{name}` | {weight:.3f} |\n" for name, weight in zip(("1", "x", "y", "x³"), weights))
    )
    cells = [
        {"cell_type": "markdown", "source": ["## Weights"]},
        {
            "cell_type": "code",
            "execution_count": 1,
            "source": ["weights"],
            "outputs": [{"output_type": "execute_result", "data": {"text/plain": [str(weights)]}}],
        },
    ]
    (folder / "analysis.ipynb").write_text(json.dumps({"nbformat": 4, "cells": cells}))
    pixels = b"".join(
        b"\0"
        + bytes(
            round(255 * predict(weights, column * 4 / SIDE - 1.3, 1.5 - row * 2.5 / SIDE)) for column in range(SIDE)
        )
        for row in range(SIDE)
    )
    (folder / "map.png").write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(pixels))
        + chunk(b"IEND", b"")
    )


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return a part of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


main()
