"""Deletes a node that serves its TPU to jobs elsewhere when nobody has been connected to it for too long.

The worker that follows a job stays connected. Run as `python3 runner.pyz on_vm.connection_watch FILE`.
"""

import json
import sys
import time
from pathlib import Path

from .deletion import delete_vm

_STEP_SECONDS = 5.0
_ESTABLISHED = "01"


def is_connected(port: int) -> bool:
    """Return whether anybody is connected to a port of this machine."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            _, local, _, state, *_ = line.split()
            if state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port:
                return True
    return False


def watch(port: int, seconds: float, resources: list[str]) -> None:
    """Wait until nobody has been connected for this long; then delete this node."""
    until = time.monotonic() + seconds
    while True:
        if is_connected(port):
            until = time.monotonic() + seconds
        elif time.monotonic() >= until:  # looked at last: this program may have been paused meanwhile
            break
        time.sleep(min(_STEP_SECONDS, seconds / 4))
    sys.stderr.write(f"nobody was connected to port {port} for {seconds:.0f} s\n")
    delete_vm(resources)


if __name__ == "__main__":
    settings = json.loads(Path(sys.argv[1]).read_text())
    watch(settings["port"], settings["seconds"], settings["resources"])
