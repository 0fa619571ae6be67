"""Runs the trainer, and programs that share no code with it, each in an environment of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from uv import find_uv_bin


def run_trainer(output: Path, data: Path, flags: list[str], *, seed: int, resume: bool = False) -> dict[str, Any]:
    """Train with the trainer and return its result; the metrics are in `output`."""
    output.mkdir(exist_ok=True)
    (output / "metrics.jsonl").unlink(missing_ok=True)
    command = [sys.executable, "-m", "gradient_trainer", *flags, "--data-dir", str(data), "--seed", str(seed)]
    command += ["--output", str(output), *([] if resume else ["--restart"])]
    variables = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    _run(command, variables | {"GRADIENT_METRICS_FILE": str(output / "metrics.jsonl")})
    result: dict[str, Any] = json.loads((output / "result.json").read_text())
    return result


def run_alone(folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Run the program of a folder, there, with the packages that it declares; return the JSON of its last line."""
    wheels = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    printed = _run(
        [find_uv_bin(), "run", "--quiet", "--script", "--python", sys.executable, "main.py", *arguments],
        {"UV_FIND_LINKS": wheels} if wheels else {},
        folder,
    )
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result


def _run(command: list[str], variables: dict[str, str], folder: Path | None = None) -> str:
    """Run a program, with its errors on the terminal, and return its output."""
    print(f"$ {' '.join(command)}", flush=True)
    env = os.environ | variables
    return subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
