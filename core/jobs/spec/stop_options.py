"""The signals with which a job is stopped, and warned before its end is due."""

from __future__ import annotations

from typing import NamedTuple

from core.errors import SpecInvalid
from core.formatting import format_short_duration, parse_duration
from core.jobs.spec.image_options import quoted

SIGNALS = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2")
MAX_WARNING_SECONDS = 24 * 3600


class EndWarning(NamedTuple):
    seconds: int
    signal: str

    def __str__(self) -> str:
        return f"{format_short_duration(self.seconds)}:{self.signal}"


def parse_signal(text: str, field: str = "stopSignal") -> str:
    """Return a signal's name without SIG."""
    name = text.strip().upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise SpecInvalid(f"{quoted(text)} is not a signal for jobs. Use {', '.join(SIGNALS)}.", field=field)
    return name


def parse_warning(text: str, time_limit: int | None = None) -> EndWarning:
    """Read `TIME` or `TIME:SIGNAL`; without a signal it is SIGTERM."""
    time, colon, name = text.replace(" ", "").partition(":")
    seconds = float(time) if time.isascii() and time.isdecimal() else parse_duration(time)
    if seconds is None:
        raise SpecInvalid(
            f"{quoted(text)} is not TIME or TIME:SIGNAL, such as 300s or 5m:USR1.",
            field="warnBefore",
        )
    if not 1 <= seconds <= MAX_WARNING_SECONDS:
        raise SpecInvalid(f"{quoted(text)} is out of range: 1 to {MAX_WARNING_SECONDS:,} seconds.", field="warnBefore")
    if time_limit is not None and seconds >= time_limit:
        limit = format_short_duration(time_limit)
        raise SpecInvalid(f"{quoted(text)} is not shorter than the time limit of {limit}.", field="warnBefore")
    return EndWarning(round(seconds), parse_signal(name, "warnBefore") if colon else "TERM")
