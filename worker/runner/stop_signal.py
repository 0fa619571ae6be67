from __future__ import annotations

import signal

_MAX_SIGNAL = 64


def signal_number(name: str | None) -> int:
    """Return the number of the signal that a job or its image (STOPSIGNAL) names; SIGTERM if it names none."""
    name = str(name or "").upper()
    name = name.removeprefix("SIG")
    base_name, plus, more = name.partition("+")
    number = int(name) if name.isdecimal() else int(getattr(signal, f"SIG{base_name}", 0))
    number += int(more) if plus and more.isdecimal() else 0
    return number if 0 < number <= _MAX_SIGNAL else signal.SIGTERM
