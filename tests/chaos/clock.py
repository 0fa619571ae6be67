"""The wall clock of single processes, to be set while they run; sleeps and the monotonic clock go on as they were."""

import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")


def find_compiler() -> str | None:
    """A C compiler; None if there is none, and no clock is moved."""
    return shutil.which("gcc") or shutil.which("cc")


class WallClock:
    """A clock that goes wrong by so many seconds.

    Args:
        folder: Where its files lie.
    """

    def __init__(self, folder: Path) -> None:
        compiler = find_compiler()
        assert compiler is not None
        self._library = folder / "clock.so"
        self._offset = folder / "clock-offset"
        self.set(0)
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(self._library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True)

    def environment(self) -> dict[str, str]:
        """Return the environment variables that make a process use this clock."""
        return {"LD_PRELOAD": str(self._library), "WALL_CLOCK_OFFSET": str(self._offset)}

    def set(self, seconds: int) -> None:
        """Set the clock wrong by so many seconds from now on; negative is behind."""
        mode = "r+b" if self._offset.exists() else "wb"
        with self._offset.open(mode) as file:
            file.write(struct.pack("q", seconds))
