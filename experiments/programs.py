"""Runs the trainer, and other programs of this Python."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_trainer(output: Path, data: Path, flags: list[str], *, seed: int) -> dict[str, Any]:
    """Train with the trainer and return its result; the metrics are in `output`."""
    output.mkdir(exist_ok=True)
    (output / "metrics.jsonl").unlink(missing_ok=True)
    words = ["-m", "gradient_trainer", *flags, "--data-dir", str(data), "--seed", str(seed), "--restart"]
    run([*words, "--output", str(output)], GRADIENT_METRICS_FILE=str(output / "metrics.jsonl"))
    result: dict[str, Any] = json.loads((output / "result.json").read_text())
    return result


def run(words: list[str], **variables: str) -> str:
    """Run a program of this Python, with its errors on the terminal, and return its output."""
    print(f"$ python {' '.join(words)}", flush=True)
    env = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"} | variables
    done = subprocess.run([sys.executable, *words], env=env, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout
