"""Metrics of jobs: written inside a job, and read as a table."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, SupportsFloat, TypeVar

from gradient_cli.formatting import parse_time
from gradient_jobs.errors import LibraryMissing

if TYPE_CHECKING:
    import pandas as pd

_Batch = TypeVar("_Batch")
_END = object()
_RESERVED = ("step", "time")


def log(*, step: float | None = None, **values: SupportsFloat) -> None:
    """Record metrics of this job at a step: `log(step=100, loss=0.31, accuracy=0.91)`.

    Writes one line to $GRADIENT_METRICS_FILE; in a program that is not a job, prints it to stderr instead.

    Args:
        step: The step; None: the values have only a time.
        values: Numbers by name, also those of NumPy, PyTorch and TensorFlow that hold one number.

    Raises:
        TypeError: There is no value, or one is not a number.
    """
    if not values:
        raise TypeError("log() needs at least one value, for example log(step=1, loss=0.5)")
    numbers = {name: _to_number(name, value) for name, value in values.items()}
    if step is not None:
        numbers = {"step": _to_number("step", step), **numbers}
    if not _write({"time": time.time(), **numbers}):
        print("  ".join(f"{name} {value:g}" for name, value in numbers.items()), file=sys.stderr)


def log_params(params: Mapping[str, Any]) -> None:
    """Record hyper-parameters of this job: `log_params({"lr": 0.01, "optimizer": "adam"})`, or `vars(args)`.

    Jobs are found, sorted and compared by them. Those that the job was submitted with stay as they are. In a program
    that is not a job, prints them to stderr instead.

    Args:
        params: Texts, numbers and booleans by name, also numbers of NumPy. Dictionaries in it become names such as
            `optimizer.lr`; None is left out; other values become text.
    """
    found = dict(_flatten(params, ""))
    if not _write({"params": found}):
        print("  ".join(f"{name} {value}" for name, value in found.items()), file=sys.stderr)


def _flatten(params: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in params.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{name}.")
        elif isinstance(value, (str, bool, int, float)):
            yield name, value
        elif value is not None:
            yield name, float(value) if hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0 else str(value)


def _write(found: dict[str, Any]) -> bool:
    """Append a line to the metrics file of this job; return False in a program that is not a job."""
    path = os.environ.get("GRADIENT_METRICS_FILE")
    if not path:
        return False
    line = json.dumps(found) + "\n"
    # One write that appends: lines of several processes do not mix.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
    return True


def watch_input(batches: Iterable[_Batch]) -> Iterator[_Batch]:
    """Yield the batches of a training loop, and record at the end the share of time in which the loop waited for them.

    `for batch in watch_input(loader)` records the metric `input_wait_share`. The first batch, for which the loader
    starts, is left out. On a GPU let the loop wait for its step, for example by reading the loss: otherwise the device
    still computes while the loop waits.

    Args:
        batches: An iterable of batches, such as a data loader.
    """
    remaining = iter(batches)
    for first in remaining:
        yield first
        break
    began, waited = time.perf_counter(), 0.0
    try:
        while True:
            before = time.perf_counter()
            batch = next(remaining, _END)
            waited += time.perf_counter() - before
            if batch is _END:
                break
            yield batch  # type: ignore[misc]
    finally:
        total = time.perf_counter() - began
        if total > waited:  # more than one batch was used
            log(input_wait_share=waited / total)


def _to_number(name: str, value: Any) -> float:  # noqa: ANN401  anything that float() takes
    if name == "time" or isinstance(value, str):
        raise TypeError(f"log(): {name}={value!r} is not a value: give numbers by name; the time is added")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"log(): {name}={value!r} is not one number: {error}") from None


def to_frame(found: dict[str, Any], source: str) -> pd.DataFrame:
    """Return metrics as a table with the columns `step` and `time`, and one for each metric.

    Args:
        found: The server's answer.
        source: `job` for those that the job wrote, `system` for those of the machine.

    Raises:
        LibraryMissing: pandas is not installed.
    """
    try:
        import pandas as pd  # noqa: PLC0415  optional, and slow to import
    except ImportError:
        raise LibraryMissing("job.metrics()", "pandas") from None
    rows: dict[tuple[float | None, str], dict[str, Any]] = {}
    names = []
    for series in found["series"]:
        if series["source"] == source:
            names.append(series["name"])
            for point in series["points"]:
                row = rows.setdefault((point["step"], point["time"]), dict.fromkeys(_RESERVED))
                row.update(step=point["step"], time=parse_time(point["time"]))
                row[series["name"]] = point["value"]
    ordered = sorted(rows.values(), key=lambda row: row["time"])
    return pd.DataFrame(ordered, columns=[*_RESERVED, *names])
