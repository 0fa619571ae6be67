from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

MIB = 1024**2
GIB = 1024**3

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_KILO = 1000
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_EXACT_SECONDS = 10
_UNITS = {"d": _DAY, "h": _HOUR, "m": _MINUTE, "s": 1}
_TYPED_UNITS = _UNITS | {"w": 7 * _DAY}
_PART = r"(\d{1,12}(?:\.\d{1,12})?)([smhdw])"
_DURATION = re.compile(f"(?:{_PART})+", re.ASCII | re.IGNORECASE)
_EXACT_DOLLARS = 1
_LEAST_DOLLARS = 0.0001
_LEAST_GPU_HOURS = 0.01


def format_bytes(count: int) -> str:
    """Format a number of bytes, in powers of 1000."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < _KILO:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _KILO
    return f"{amount:.1f} TB"


def format_memory(size: float) -> str:
    """Format a size of memory, in powers of 1024: `400 MiB`, `1.5 GiB`."""
    amount, unit = (size / GIB, "GiB") if size >= GIB else (size / MIB, "MiB")
    return f"{amount:,.1f} {unit}".replace(".0 ", " ")


def format_duration(seconds: float) -> str:
    """Format a duration: `0.4 s`, `42 s`, `3 min 05 s`, `2 h 10 min`, `3 d 4 h`."""
    if seconds < _EXACT_SECONDS:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02d} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def format_short_duration(seconds: int) -> str:
    """Format a duration as `parse_duration` reads it: `1h30m`."""
    parts, rest = "", seconds
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        parts += f"{count}{unit}" if count else ""
    return parts or "0s"


def parse_duration(text: str) -> float | None:
    """Return the seconds of `90m`, `1h30m` or `2d`; None if the text is not such a duration."""
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(count) * _TYPED_UNITS[unit] for count, unit in re.findall(_PART, text.lower(), re.ASCII))


def format_dollars(amount: float) -> str:
    """Format an amount of US dollars; small ones with four decimals, so that a short job does not seem free."""
    if 0 < amount < _LEAST_DOLLARS:
        return f"<${_LEAST_DOLLARS}"
    return f"${amount:,.2f}" if amount >= _EXACT_DOLLARS or amount == 0 else f"${amount:.4f}"


def format_cost(dollars: float, gpu_hours: float = 0.0, machine_type: str = "") -> str:
    """Format a cost: in dollars, or where machines are free, what it took of GPUs: `1.5 GPU hours (A100)`."""
    if dollars or not gpu_hours:
        return format_dollars(dollars)
    hours = f"{gpu_hours:,.2f}".rstrip("0").rstrip(".") if gpu_hours >= _LEAST_GPU_HOURS else f"<{_LEAST_GPU_HOURS}"
    unit = "GPU hour" if hours == "1" else "GPU hours"
    return f"{hours} {unit} ({machine_type})" if machine_type else f"{hours} {unit}"


def format_amounts(dollars: float, simulated: float, gpu_hours: Mapping[str, float]) -> list[str]:
    """Format the cost of several jobs: dollars, what simulated machines would cost, and GPU hours of free machines."""
    amounts = [f"{format_dollars(simulated)} simulated"] if simulated else []
    amounts += [format_cost(0.0, hours, machine_type) for machine_type, hours in sorted(gpu_hours.items()) if hours]
    return [format_dollars(dollars), *amounts] if dollars or not amounts else amounts


def format_price(amount: float) -> str:
    """Format a price in US dollars with two decimals, or up to four if needed."""
    whole, _, rest = f"{amount:,.4f}".partition(".")
    return f"${whole}.{rest[:2]}{rest[2:].rstrip('0')}"


def format_moment(moment: datetime) -> str:
    """Format a time in UTC for a sentence."""
    return f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def iso_time(at: datetime) -> str:
    """Format a time in UTC with milliseconds, for example `2026-01-31T09:05:00.250Z`."""
    return at.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def iso_time_ms(unix_ms: int) -> str:
    return iso_time(_EPOCH + timedelta(milliseconds=unix_ms))
