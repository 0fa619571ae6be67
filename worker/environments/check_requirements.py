"""Tries each requirement by itself where an installation has failed, so that all that is wrong is told at once.

It runs by itself (`python -I -S`), with the standard library alone.

    check_requirements.py UV <LINES

Each of the LINES that fails is printed as JSON, with what uv says of it.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

_THREADS = 4
_INSTALL = ("pip", "install", "--no-deps")
_BEST_MATCH = ("--index-strategy", "unsafe-best-match")


def main() -> None:
    lines = [line for line in sys.stdin.read().splitlines() if line]
    options = [line for line in lines if line.startswith("-") and not line.startswith(("-e", "--editable"))]
    with ThreadPoolExecutor(_THREADS) as pool:
        results = pool.map(lambda line: _try(options, line), [line for line in lines if line not in options])
        for line, output in results:
            if output:
                sys.stdout.write(json.dumps({"line": line, "output": output}) + "\n")


def _try(options: list[str], line: str) -> tuple[str, str]:
    """Return a line, with uv's output if it cannot be installed: first as uv resolves it, then as it is built."""
    output = _uv(options, line, *_BEST_MATCH, "--dry-run")
    if "not found in the package registry" in output:
        output = _uv(options, line, "--dry-run") or output  # without best match, uv names indexes that refuse a login
    if not output and _uv(options, line, *_BEST_MATCH, "--dry-run", "--no-build"):
        output = _uv(options, line, *_BEST_MATCH, "--target", f"{os.environ.get('HOME', '.')}/built")
    return line, output


def _uv(options: list[str], line: str, *options_more: str) -> str:
    command = [sys.argv[1], *_INSTALL, *options_more, "--requirements", "-"]
    text = "".join(f"{option}\n" for option in (*options, line))
    done = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603 - uv, without a shell
    return done.stdout + done.stderr if done.returncode else ""


if __name__ == "__main__":
    main()
