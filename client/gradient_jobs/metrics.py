"""Metrics of jobs: written inside a job, and read as a table."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, SupportsFloat, TypeVar

from gradient_cli.formatting import parse_time
from gradient_jobs.errors import LibraryMissing

if TYPE_CHECKING:
    import pandas as pd


_Batch = TypeVar("_Batch")
_END = object()
_RESERVED = ("step", "time")
_MOST_IN_LINE = 500  # so that a line is not too long for the server
_KEPT_CHARACTERS = 1000  # of a string; the server stores shorter ones
_MOST_REPORTED = 1000
_LARGEST = 10**300  # larger integers are no floating-point numbers
reported: set[str] = set()


def log(values: Mapping[str, Any] | None = None, /, step: SupportsFloat | None = None, **named: Any) -> None:  # noqa: ANN401 - anything that a program has
    """Record metrics of this job at a step: `log({"loss": 0.31}, step=100)`, or `log(step=100, loss=0.31)`.

    Writes to $GRADIENT_METRICS_FILE; in a program that is not a job, prints to stderr instead. A value that is not a
    number is left out with a message: metrics never end a run.

    Args:
        values: Numbers by name, including NumPy, PyTorch and TensorFlow values that hold a single number. Nested
            dictionaries become names such as `train.loss`.
        step: The step; None: the values only have a time, unless one of them is named `step`.
        named: More values.

    Raises:
        TypeError: There is no value.
    """
    if not isinstance(values, (Mapping, type(None))) or (values is None and not named):
        raise TypeError('log() takes values by name, for example log({"loss": 0.5}, step=1) or log(step=1, loss=0.5)')
    given = dict(_flatten({**(values or {}), **named}, ""))
    if step is not None:
        given["step"] = step
    if "time" in given:
        _report_once("time", "this name is reserved for the time at which values are logged")
        del given["time"]
    converted = {name: _to_number(name, value) for name, value in given.items()}
    stamp = {"time": time.time(), **({"step": converted.pop("step")} if "step" in converted else {})}
    names = list(converted)
    for first in range(0, len(names), _MOST_IN_LINE):
        some = {name: converted[name] for name in names[first : first + _MOST_IN_LINE]}
        if not _write({**stamp, **some}):
            numbers = [("step", stamp.get("step")), *some.items()]
            print("  ".join(f"{name} {value:g}" for name, value in numbers if _is_number(value)), file=sys.stderr)


def log_params(params: Mapping[str, Any]) -> None:
    """Record hyperparameters of this job: `log_params({"lr": 0.01, "optimizer": "adam"})`, or `vars(args)`.

    They are used to find, sort and compare jobs. Hyperparameters given at submission are not changed. In a program
    that is not a job, prints them to stderr instead.

    Args:
        params: Strings, numbers and booleans by name, including NumPy numbers. Nested dictionaries become names such as
            `optimizer.lr`; None is left out; other values become strings.
    """
    flattened = [(name, _to_param(value)) for name, value in _flatten(params, "") if value is not None]
    for first in range(0, len(flattened), _MOST_IN_LINE):
        some = flattened[first : first + _MOST_IN_LINE]
        if not _write({"params": dict(some)}):
            print("  ".join(f"{name} {value}" for name, value in some), file=sys.stderr)


def _flatten(given: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in given.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{name}.")
        else:
            yield name, value


def _to_number(name: str, value: Any) -> Any:  # noqa: ANN401  anything that a program has
    """Return a number; of what is none, a JSON value of its kind, which the server leaves out and tells."""
    with suppress(Exception):  # of any library
        if isinstance(value, int) and abs(value) >= _LARGEST:
            return math.copysign(math.inf, value > 0 or -1)
        if not isinstance(value, str):
            return float(value.item() if hasattr(value, "item") else value)
    _report_once(name, "it is not a single number")
    if value is None or isinstance(value, str):
        return value and value[:_KEPT_CHARACTERS]
    return [] if hasattr(value, "__len__") else {}


def _is_number(value: object) -> bool:
    return isinstance(value, float)


def _to_param(value: Any) -> Any:  # noqa: ANN401  anything that a program has
    if not isinstance(value, (str, bool, int, float)) and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    elif not isinstance(value, (str, bool, int, float)):
        value = float(value) if hasattr(value, "__float__") and not hasattr(value, "ndim") else str(value)
    return value[:_KEPT_CHARACTERS] if isinstance(value, str) else value


def _report_once(name: str, why: str) -> None:
    if name not in reported and len(reported) < _MOST_REPORTED:
        reported.add(name)
        print(f"gradient_jobs.log: {name!r} is left out: {why}", file=sys.stderr)


def _write(record: dict[str, Any]) -> bool:
    """Append a line to the metrics file of this job; return False in a program that is not a job."""
    path = os.environ.get("GRADIENT_METRICS_FILE")
    if not path:
        return False
    line = json.dumps(record) + "\n"
    try:
        # One write that appends: lines of several processes do not mix.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        _report_once(path, str(error))
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
            yield batch  # type: ignore[misc]  # batches of any type
    finally:
        total = time.perf_counter() - began
        if total > waited:  # more than one batch was used
            log(input_wait_share=waited / total)


def to_frame(metrics: dict[str, Any], source: str) -> pd.DataFrame:
    """Return metrics as a table with the columns `step` and `time`, and one for each metric.

    Args:
        metrics: The server's answer.
        source: `job` for metrics that the job wrote, `system` for metrics of the machine.

    Raises:
        LibraryMissing: pandas is not installed.
    """
    try:
        import pandas as pd  # noqa: PLC0415  optional, and slow to import
    except ImportError:
        raise LibraryMissing("job.metrics()", "pandas") from None
    rows: dict[tuple[float | None, str], dict[str, Any]] = {}
    names = []
    for series in metrics["series"]:
        if series["source"] == source:
            names.append(series["name"])
            for point in series["points"]:
                row = rows.setdefault((point["step"], point["time"]), dict.fromkeys(_RESERVED))
                row.update(step=point["step"], time=parse_time(point["time"]))
                row[series["name"]] = float(point["value"])  # NaN and infinities are strings
    ordered = sorted(rows.values(), key=lambda row: row["time"])
    return pd.DataFrame(ordered, columns=[*_RESERVED, *names])
