from __future__ import annotations

import signal
from typing import Any

_MAX_SIGNAL = 64


def stop_signal(config: dict[str, Any]) -> int:
    """Return the number of the signal that ends an image's programs (STOPSIGNAL); SIGTERM if it names none.

    `config`: the image's configuration.
    """
    name = str(config.get("StopSignal") or "").upper()
    name = name.removeprefix("SIG")
    base_name, plus, more = name.partition("+")
    number = int(name) if name.isdecimal() else int(getattr(signal, f"SIG{base_name}", 0))
    number += int(more) if plus and more.isdecimal() else 0
    return number if 0 < number <= _MAX_SIGNAL else signal.SIGTERM
