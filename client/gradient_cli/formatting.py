from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gradient_cli import terminal
from gradient_cli.api import server_clock
from gradient_cli.errors import OK, UsageError
from gradient_cli.next_steps import next_steps

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")
_GAP = "  "
_MIN_WIDTH = 8
_KILO = 1000
_TENTHS_BELOW = 10
_MINUTE = 60
_HOUR = 3600
_DAY = 86400
_LEAST_DOLLARS = 0.0001
_LEAST_GPU_HOURS = 0.01
_MIB, _GIB = 1024**2, 1024**3
_STATE_WORDS = {"Stopped": "Succeeded", "Kept": "Kept for you to look"}  # the API has the original service's words


def print_result(args: argparse.Namespace, result: dict[str, Any], text: str) -> int:
    """Print what a command has done: the JSON object with `--json`, else the text on stderr; return the exit code."""
    if args.json:
        return print_json(result)
    terminal.print_message(text)
    return OK


def print_json(value: object) -> int:
    """Print JSON, indented on a terminal, with the commands that make sense next (of a page: its cursor); return OK."""
    if isinstance(value, dict) and "next" not in value and (steps := next_steps(value)):
        value = {**value, "next": steps}
    print(json.dumps(value, ensure_ascii=False, indent=2 if terminal.is_tty(sys.stdout) else None))
    return OK


def print_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, whole: Sequence[str] = (), spare: Sequence[str] = ()
) -> None:
    """Print a table, fitted to the terminal; in a pipe nothing is cut.

    The first column is never cut, because people copy from it; nor are the columns in `whole`. If the terminal is too
    narrow for all columns, some are left out: first those in `spare`, in their order, then the others from the right.
    """
    lines = [list(heads), *([terminal.sanitize(cell) for cell in row] for row in rows)]
    widths = _widths(lines)
    if terminal.is_tty(sys.stdout):
        left_out = [*spare, *(head for head in reversed(heads[1:]) if head not in {*spare, *whole})]
        while not _shrink(widths, lines[0], whole) and left_out:
            column = lines[0].index(left_out.pop(0))
            for line in lines:
                del line[column]
            widths = _widths(lines)
    for index, line in enumerate(lines):
        text = _GAP.join(_pad(terminal.truncate(cell, room), room) for cell, room in zip(line, widths))
        text = text.rstrip()
        print(terminal.style(text, "bold", sys.stdout) if index == 0 else text)


def print_list(
    args: argparse.Namespace,
    answer: object,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    empty: str = "",
    **columns: Sequence[str],
) -> int:
    """Print what a command lists: the JSON object with `--json`, else a table, or `empty` on stderr if it has no rows.

    `columns`: those of `print_table`. Returns OK.
    """
    if args.json:
        return print_json(answer)
    if rows or not empty:
        print_table(heads, rows, **columns)
    else:
        terminal.print_message(empty)
    if isinstance(answer, dict) and answer.get("next"):
        terminal.print_message(f"only the newest {len(rows)}; --limit N lists more")
    return OK


def describe_port(port: Mapping[str, Any]) -> str:
    """Describe a job's port: `http://host:20001 (its port 8080)`, before it runs `any free port (its port 8080)`."""
    external = port.get("external")
    where = port.get("url") or (f"port {external}" if external else "any free port")
    return f"{where} (its port {port['internal']})"


def print_fields(fields: Mapping[str, str]) -> None:
    """Print one name and value per line, leaving out empty values."""
    shown = {name: text for name, text in fields.items() if text}
    room = max((len(name) for name in shown), default=0)
    for name, text in shown.items():
        label = terminal.style(f"{name:<{room}}", "dim", sys.stdout)
        print(f"{label}{_GAP}{terminal.sanitize(text)}")


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(terminal.display_width, column)) for column in zip(*lines)]


def _shrink(widths: list[int], heads: Sequence[str], whole: Sequence[str]) -> bool:
    """Make columns narrower until they fit, and return whether they do."""
    room = terminal.width() - len(_GAP) * (len(widths) - 1)
    columns = [column for column in range(1, len(widths)) if heads[column] not in whole]
    while sum(widths) > room:
        widest = max(columns, key=widths.__getitem__, default=0)
        if not widest or widths[widest] <= _MIN_WIDTH:
            return False
        widths[widest] -= 1  # one by one: wide columns end up equally wide
    return True


def _pad(text: str, room: int) -> str:
    return text + " " * (room - terminal.display_width(text))


def format_size(size: int) -> str:
    """Format a number of bytes in powers of ten: `12.3 MB`."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < _KILO:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= _KILO
    return f"{value:.1f} TB"


def format_memory(size: float) -> str:
    """Format a size of memory, in powers of 1024: `400 MiB`, `1.5 GiB`."""
    amount, unit = (size / _GIB, "GiB") if size >= _GIB else (size / _MIB, "MiB")
    return f"{amount:,.1f} {unit}".replace(".0 ", " ")


def format_duration(seconds: float | None) -> str:
    """Format a duration: `4.2s` (`4s` of whole seconds), `3m 05s`, `2h 10m`, `1d 3h`."""
    if seconds is None:
        return ""
    if seconds < _TENTHS_BELOW and isinstance(seconds, float):
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m {whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h {whole % _HOUR // _MINUTE:02d}m"
    return f"{whole // _DAY}d {whole % _DAY // _HOUR}h"


def format_money(dollars: float | None) -> str:
    """Format dollars; small amounts have four decimals, so that a short job does not seem free: `$3.06`, `$0.0012`."""
    if dollars is None:
        return ""
    if 0 < dollars < _LEAST_DOLLARS:
        return f"<${_LEAST_DOLLARS}"
    return f"${dollars:,.2f}" if dollars == 0 or dollars >= 1 else f"${dollars:.4f}"


def format_cost(job: Mapping[str, Any], machine_type: str = "") -> str:
    """Format what a job has cost: in dollars, or on a free machine what it took of GPUs: `1.5 GPU hours (A100)`."""
    hours = job.get("gpuHours") or 0.0
    if job.get("cost") or not hours:
        return format_money(job.get("cost"))
    amount = f"{hours:,.2f}".rstrip("0").rstrip(".") if hours >= _LEAST_GPU_HOURS else f"<{_LEAST_GPU_HOURS}"
    unit = "GPU hour" if amount == "1" else "GPU hours"
    return f"{amount} {unit} ({machine_type})" if machine_type else f"{amount} {unit}"


def format_price(job_or_machine: Mapping[str, Any]) -> str:
    """Format the hourly price of a job or a machine type; empty if it has none."""
    hourly = job_or_machine.get("pricePerHour")
    return "" if hourly is None else f"${hourly:,.2f}/hour"


def format_past(moment: str | None) -> str:
    """Format a past time, given as the server writes it: `3m ago`."""
    if not moment:
        return ""
    seconds = _seconds_since(moment)
    if seconds is None:
        return moment
    if seconds < -_MINUTE:  # a file may have any time
        return format_moment(moment)
    return "just now" if seconds < 1 else f"{_format_roughly(seconds)} ago"


def format_moment(moment: str) -> str:
    """Format a time, given as the server writes it, in this machine's time zone: `2026-01-31 14:05:09 CET`."""
    try:
        return f"{parse_time(moment).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    except (OverflowError, ValueError):
        return moment


def format_moment_and_age(moment: str | None) -> str:
    """Format a past time with its age: `2026-01-31 14:05:09 CET (3m ago)`."""
    return f"{format_moment(moment)} ({format_past(moment)})" if moment else ""


def format_future(moment: str | None) -> str:
    """Format the time left until an estimated time, given as the server writes it: `~4m`; `soon` if it has passed."""
    seconds = _seconds_since(moment) if moment else None
    if seconds is None:
        return ""
    return "soon" if seconds > -1 else f"~{_format_roughly(-seconds)}"


def format_start(moment: str | None) -> str:
    """Format the time left for use inside a sentence: `in about 4m`."""
    left = format_future(moment)
    return f"in about {left[1:]}" if left.startswith("~") else left


def format_ordinal(number: int) -> str:
    """Format an ordinal number: `1st`, `2nd`, `3rd`, `11th`."""
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def parse_duration(name: str, value: object) -> int:
    """Parse a duration such as `90m`, `1h30m`, `2d` or plain seconds, and return its seconds."""
    text = str(value).replace(" ", "")
    if text.isdecimal() and not isinstance(value, bool):
        return int(text)
    if not _DURATION.fullmatch(text):
        raise UsageError(f"{name}: {value!r} is not a duration", hint="Write 90m, 1h30m, 2d, or seconds.")
    return round(sum(float(part) * _SECONDS[unit] for part, unit in re.findall(r"([\d.]+)([dhms])", text)))


def parse_time(text: str) -> datetime:
    """Parse a date and time in ISO 8601, which Python reads with a `Z` only from 3.11 on.

    Raises `ValueError`: the text is not such a time.
    """
    return datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)


def _seconds_since(moment: str) -> float | None:
    try:
        return (server_clock.now() - parse_time(moment)).total_seconds()
    except (AttributeError, TypeError, ValueError):
        return None


def _format_roughly(seconds: float) -> str:
    for length, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"


def describe_members(states: Mapping[str, int]) -> str:
    """Describe how many members of an array are in which state: `1 Failed, 19 Succeeded`."""
    counts = {state_word(state): count for state, count in states.items()}
    return ", ".join(f"{count:,} {word}" for word, count in sorted(counts.items()))


def state_word(state: str | None) -> str:
    """Return the word that people read for a state of the API."""
    return _STATE_WORDS.get(state or "", state or "")


def job_word(job: Mapping[str, Any]) -> str:
    """Return the word for the state of a job, also of one that was asked to stop."""
    state = job.get("state")
    return "Stopping" if job.get("stopRequested") and state in {"Pending", "Running"} else state_word(state)


def describe_removed(removed: Mapping[str, Any]) -> str:
    """Describe what a retention policy deleted, and how long ago."""
    return terminal.sanitize(f"{removed['message']} ({format_past(removed.get('at'))})")


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: `1 file`, `3 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def describe_attempt(job: Mapping[str, Any]) -> str:
    attempt, most, faults = job.get("attempt"), job.get("maxAttempts"), job.get("machineFaults") or 0
    if not attempt or not most:
        return ""
    lost = f", not counting {format_count(faults, 'attempt')} ended by a machine fault" if faults else ""
    return f"{attempt - faults} of {most}{lost}"


def describe_gpus(job: Mapping[str, Any]) -> str:
    """Describe the GPUs: `2 x NVIDIA A100-SXM4-40GB, 40 GiB each, driver 550.54 (CUDA 12.4), host GPUs 0 and 3`."""
    number = job.get("gpuCount")
    if not number:
        return ""
    name, memory, driver, cuda = (job.get(f"gpu{what}") for what in ("Name", "Mem", "Driver", "Cuda"))
    indexes = " and ".join(str(gpu.get("index")) for gpu in job.get("gpus") or [])
    parts = [
        f"{number} x {name}" if name else f"{number} of unknown model",
        f"{format_memory(memory)}{' each' * (number > 1)}" if memory else "",
        f"driver {driver}" + (f" (CUDA {cuda})" if cuda else "") if driver else "",
        f"host GPU{'s' * (number > 1)} {indexes}" if indexes else "",
    ]
    return ", ".join(part for part in parts if part)


def describe_tpu(job: Mapping[str, Any]) -> str:
    """Describe the TPU: `us-central1-b/gj-jabc-1, v2-8, grpc://10.0.0.2:8470`."""
    tpu = job.get("tpu")
    if not tpu:
        return ""
    nodes = f"{len(tpu['nodes'])} nodes" if tpu.get("nodes") else None
    parts = [f"{tpu.get('zone')}/{tpu.get('name')}", tpu.get("type"), nodes, tpu.get("grpcUrl")]
    return ", ".join(part for part in parts if part)


def describe_slurm(job: Mapping[str, Any]) -> str:
    """Describe the allocation in Slurm: `job 4711 in gpu, 2 nodes`."""
    slurm = job.get("slurm")
    nodes = f", {job['nodes']} nodes" if job.get("nodes") else ""
    return f"job {slurm['jobId']} in {slurm['partition']}{nodes}" if slurm else ""


def list_nodes(job: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the hosts of a job that runs on several: of its TPU slice, or of its allocation in Slurm."""
    nodes: Sequence[Mapping[str, Any]] = (job.get("tpu") or job.get("slurm") or {}).get("nodes", ())
    return nodes


def describe_usage(job: Mapping[str, Any]) -> str:
    """Describe the peak usage: `memory 1.1 GiB; CPU 180%, 95% on average; GPU 100%, 71% on average, …`."""
    usage = job.get("usage") or {}
    memory, gpu_memory = usage.get("peakMemoryBytes"), usage.get("peakGpuMemoryBytes")
    gpu = [_percent(usage, "Gpu"), f"{format_memory(gpu_memory)} of its memory" if gpu_memory is not None else ""]
    parts = {
        "memory": format_memory(memory) if memory is not None else "",
        "CPU": _percent(usage, "Cpu"),
        "GPU": ", ".join(part for part in gpu if part),
    }
    return "; ".join(f"{what} {text}" for what, text in parts.items() if text)


def _percent(usage: Mapping[str, Any], what: str) -> str:
    peak, mean = usage.get(f"peak{what}Percent"), usage.get(f"mean{what}Percent")
    if peak is None:
        return ""
    return f"{peak:.0f}%" + (f", {mean:.0f}% on average" if mean is not None else "")
