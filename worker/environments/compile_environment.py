"""Writes the bytecode of an environment while jobs use it already, and keeps it with the downloads.

The files of environments are hard links to the downloads, so the next one with the same wheels has it from the start.

It runs by itself (`python -I -S`), with the standard library alone, and starts nothing that was installed.

    compile_environment.py ENVIRONMENT DOWNLOADS
"""

import compileall
import contextlib
import importlib.util
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

_PIP = re.compile(r"/site-packages/pip/")


def main() -> None:
    """See the module. Files that are not valid for this Python, such as templates, stay as they are."""
    environment, downloads = map(Path, sys.argv[1:])
    packages = next((environment / "lib").glob("python*/site-packages"))
    folders = [environment, *(Path(inner) for inner, _, _ in os.walk(packages))]
    for folder in folders:
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o200)
    compileall.compile_dir(packages, quiet=2, rx=_PIP)
    _keep(packages, downloads)
    for inner, _, _ in os.walk(packages):
        _seal(Path(inner))
    (environment / "compiled").touch()
    _seal(environment)


def _seal(folder: Path) -> None:
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) & ~0o222)


def _keep(packages: Path, downloads: Path) -> None:
    """Copy the bytecode to the files of downloads that the environment links.

    Not in a `.data` folder of a wheel: uv installs nothing from there that its RECORD does not list.
    """
    compiled = {file.stat().st_ino: _bytecode(file) for file in _modules(packages)}
    for file in _modules(downloads):
        made, kept = compiled.get(file.stat().st_ino), _bytecode(file)
        if made is not None and made.exists() and not kept.exists() and ".data/" not in str(file):
            kept.parent.mkdir(exist_ok=True)
            with contextlib.suppress(OSError):
                shutil.copy2(made, kept)


def _modules(folder: Path) -> Iterator[Path]:
    for inner, _, files in os.walk(folder):
        yield from (Path(inner, name) for name in files if name.endswith(".py"))


def _bytecode(file: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(file)))


if __name__ == "__main__":
    main()
