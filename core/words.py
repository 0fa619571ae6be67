"""Human-readable numbers."""

_KILO = 1000


def size(count: int) -> str:
    """Format a number of bytes, in powers of 1000."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < _KILO:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _KILO
    return f"{amount:.1f} TB"
