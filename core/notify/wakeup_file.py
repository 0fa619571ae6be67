"""Wakes the supervisors of one host by touching a file.

The touch carries no data. A lost, doubled or late one is harmless: a supervisor reads the database when it wakes, and
also polls it now and then.
"""

import os
from pathlib import Path


class WakeupFile:
    """The file that supervisors on this host watch with `core.system.inotify`.

    `path`: the file; made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=True)

    def notify(self) -> None:
        """Wake the supervisors; never blocks."""
        os.utime(self.path)
