"""The doorbell of one host: a file whose touch says "look".

A bell carries nothing: losing, doubling or delaying a ring is harmless, because whoever hears it reads the
database, and looks now and then without any ring at all.
"""

import os
from pathlib import Path


class Bell:
    """The doorbell file; supervisors on this host watch it with `core.filewatch`.

    Args:
        path: The file; made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=True)

    def ring(self) -> None:
        """Say "look"; never blocks."""
        os.utime(self.path)
