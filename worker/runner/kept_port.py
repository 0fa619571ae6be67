from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from worker.runner.control_files import read_control, write_control_file

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

_RETRY_SECONDS = 1.0


class KeptPort:
    """A port that others know: after a restart it is the same, once it is free. Raises `OSError`: no port is free.

    Args:
        file: Keeps its number.
        bind: Opens a port of this number; 0 stands for any that is free.
        preferred: The number, unless another program has it.
    """

    def __init__(self, file: Path, bind: Callable[[int], socket.socket], preferred: int = 0) -> None:
        self._bind = bind
        self._opened: socket.socket | None = None
        self.number = int(read_control(file.parent, file.name) or 0)
        if not self.number:
            try:
                self._opened = bind(preferred)
            except OSError:
                self._opened = bind(0)
            self.number = self._opened.getsockname()[1]
            write_control_file(file.parent, file.name, str(self.number))

    def wait(self) -> socket.socket:
        while self._opened is None:
            try:
                self._opened = self._bind(self.number)
            except OSError as error:
                sys.stderr.write(f"port {self.number}: {error}\n")
                time.sleep(_RETRY_SECONDS)
        return self._opened
