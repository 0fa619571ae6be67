"""Which computer this is, and which of its starts."""

import socket
from pathlib import Path


def host_id() -> str:
    """Stays the same over restarts and changes of the host's name: a job must find its machine again by it."""
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()


def boot_id() -> str:
    """Changes with every start of this computer."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
