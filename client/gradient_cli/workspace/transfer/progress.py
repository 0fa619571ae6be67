from __future__ import annotations

import sys
import time

from gradient_cli import terminal
from gradient_cli.formatting import format_size

_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 10.0
_BAR_CELLS = 24


class Progress:
    """Progress of a transfer: a bar redrawn in place on a terminal, else a plain line now and then."""

    def __init__(self, label: str, total: int, *, quiet: bool = False) -> None:
        self._label = label
        self._total = total
        self._quiet = quiet
        self._tty = terminal.is_tty(sys.stderr)
        self._began = time.monotonic()
        self._next = self._began + (0 if self._tty else _LINE_SECONDS)

    def update(self, done: int) -> None:
        now = time.monotonic()
        if now < self._next or (self._quiet and not self._tty):
            return
        self._next = now + (_REDRAW_SECONDS if self._tty else _LINE_SECONDS)
        if self._tty:
            sys.stderr.write(f"\r\x1b[K{terminal.truncate(self._bar(done, now), terminal.width(sys.stderr) - 1)}")
            sys.stderr.flush()
        else:
            terminal.print_message(self._format_line(done, now))

    def close(self) -> None:
        """Erase the bar, so that later output starts on a clean line."""
        if self._tty:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _format_line(self, done: int, now: float) -> str:
        share = f"{done * 100 // self._total}%" if self._total else ""
        rate = done / max(now - self._began, 1e-3)
        return f"{self._label} {format_size(done)} of {format_size(self._total)} {share} {format_size(int(rate))}/s"

    def _bar(self, done: int, now: float) -> str:
        filled = _BAR_CELLS * done // self._total if self._total else _BAR_CELLS
        return f"{'█' * filled}{'░' * (_BAR_CELLS - filled)} {self._format_line(done, now)}"
