"""Fits a line to noisy points by gradient descent, and records the loss of every step."""

import json
import os
import random
from pathlib import Path

import gradient_jobs

rate = float(os.environ.get("RATE", "0.1"))
generator = random.Random(1)  # noqa: S311  noise, not a secret
points = [(x / 100, 3 * x / 100 + 1 + generator.gauss(0, 0.1)) for x in range(100)]
slope = bias = 0.0
for step in range(1, 51):
    errors = [slope * x + bias - y for x, y in points]
    slope -= rate * sum(2 * error * x for error, (x, _) in zip(errors, points, strict=True)) / len(points)
    bias -= rate * sum(2 * error for error in errors) / len(points)
    loss = sum(error**2 for error in errors) / len(points)
    gradient_jobs.log(step=step, loss=loss)
    if step % 10 == 0:
        print(f"step {step}  loss {loss:.4f}")

folder = Path(os.environ.get("GRADIENT_ARTIFACTS_DIR", "."))
(folder / "model.json").write_text(json.dumps({"slope": slope, "bias": bias, "loss": loss}))
