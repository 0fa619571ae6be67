from __future__ import annotations

import re

from gradient_cli.errors import UsageError

_SIZE = re.compile(r"\d+|(?P<amount>\d+(?:\.\d+)?)\s*(?P<unit>[MGT])(?:i?B)?", re.IGNORECASE)
_MEBIBYTES = {"m": 1, "g": 1024, "t": 1024**2}


def parse(name: str, value: object) -> int:
    """Parse a number of MiB, or one with a unit such as `16GB` or `1.5GiB`, both with 1024 MiB in one."""
    match = _SIZE.fullmatch(str(value).strip())
    if not match:
        raise UsageError(f"{name}: {value!r} is not a memory size", hint="Write MiB, such as 16384, or 16GB.")
    return round(float(match["amount"]) * _MEBIBYTES[match["unit"].lower()]) if match["unit"] else int(match[0])
