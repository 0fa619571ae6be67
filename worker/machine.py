"""Which start of this computer it is."""

from pathlib import Path


def boot_id() -> str:
    """Changes with every start of this computer."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
