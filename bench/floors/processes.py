"""Cost of a plain process: start it, read its first line, wait for its end."""

import subprocess
import time
from collections.abc import Callable, Sequence


def run_and_read(arguments: Sequence[str]) -> tuple[str, float, float]:
    """Run a program and read its output.

    Returns:
        Its first line, and the seconds until that was read and until the program ended.
    """
    began = time.perf_counter()
    with subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101 - a pipe was requested
        line = process.stdout.readline()
        read = time.perf_counter()
        process.wait()
    return line.decode().rstrip(), read - began, time.perf_counter() - began


def run_to_end(arguments: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Run a program, discard its output, and return the seconds it took.

    Raises:
        CalledProcessError: The program failed.
    """
    began = time.perf_counter()
    subprocess.run(
        arguments, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True
    )
    return time.perf_counter() - began


def each_line(arguments: Sequence[str], seen: Callable[[bytes], None]) -> None:
    """Call back with every line that a program prints, as it is read from a pipe."""
    with subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101 - a pipe was requested
        for line in process.stdout:
            seen(line)
