"""The boot ID of this machine."""

from pathlib import Path


def boot_id() -> str:
    """Return the kernel's boot ID, which changes with every start of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
