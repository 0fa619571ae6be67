"""The use of a TPU's chips, as a VM reports it."""

import re

_NAME = re.compile(r"tpu([0-9]|1[0-5])_(percent|memory_bytes)")
_TOO_LARGE = 1 << 60


def parse_chips(reported: object) -> dict[str, float]:
    """Return the figures among what a VM reported: the job can write there too, so only known names are accepted."""
    if not isinstance(reported, dict):
        return {}
    return {
        name: float(value)
        for name, value in reported.items()
        if _NAME.fullmatch(str(name)) and type(value) in {int, float} and 0 <= value < _TOO_LARGE
    }
