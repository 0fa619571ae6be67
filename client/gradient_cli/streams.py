"""The standard streams of a command, which may be closed or full."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress


class _Messages(io.TextIOWrapper):
    """Standard error: a message that nobody can read must not end the work that it tells of."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()

    def close(self) -> None:
        """Leave it open: it belongs to the stream in whose place this is."""
        self.flush()


def prepare() -> None:
    """Open a null device for each stream that is closed, and let no failure of standard error end the command."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = open(number, mode, closefd=False, encoding="utf-8")  # noqa: SIM115 - until the end of the command
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a text stream of the interpreter has it
    encoding = sys.stderr.encoding
    sys.stderr = _Messages(sys.stderr.buffer, encoding=encoding, errors="backslashreplace", line_buffering=True)


def silence_stdout() -> None:
    """Redirect stdout to /dev/null: the interpreter's final flush would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
