"""Units of sizes, and numbers and times as text."""

from datetime import UTC, datetime, timedelta

MIB = 1024**2
GIB = 1024**3

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KILO = 1000
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_EXACT_SECONDS = 10


def format_bytes(count: int) -> str:
    """Format a number of bytes, in powers of 1000."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < _KILO:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _KILO
    return f"{amount:.1f} TB"


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


def iso_time(at: datetime) -> str:
    """Format a time in UTC with milliseconds, for example `2026-01-31T09:05:00.250Z`."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def iso_time_ms(unix_ms: int) -> str:
    """Format a time given in Unix milliseconds."""
    return iso_time(_EPOCH + timedelta(milliseconds=unix_ms))
