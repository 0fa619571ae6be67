"""Finishes an environment where it was built: pip, packages of this release, scripts for any job, and no write access.

It runs by itself (`python -I -S`), with the standard library alone, and starts nothing that was installed.

    finish_environment.py ENVIRONMENT FOLDER…

Each FOLDER is copied to the packages, unless there is one of its name.
"""

import os
import shutil
import stat
import sys
from pathlib import Path

# A script of a package is run by the job's own interpreter, which has the job's own packages, too.
_HEADER = b"#!/bin/sh\n'''exec' \"$VIRTUAL_ENV/bin/python\" \"$0\" \"$@\"\n' '''\n"


def main() -> None:
    environment, *copied = map(Path, sys.argv[1:])
    packages = next((environment / "lib").glob("python*/site-packages"))
    for folder in copied:
        if not (packages / folder.name).exists():
            shutil.copytree(folder, packages / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    for script in (environment / "bin").iterdir():
        _use_interpreter_of_job(script)
    for inner, _, files in os.walk(environment):
        for path in (Path(inner), *(Path(inner, name) for name in files)):
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


def _use_interpreter_of_job(script: Path) -> None:
    """Have a Python script run by the interpreter of the job that calls it."""
    if script.is_symlink() or not script.is_file():
        return
    data = script.read_bytes()
    first, _, rest = data.partition(b"\n")
    if first == b"#!/bin/sh" and rest.startswith(b"'''exec'"):  # long paths do not fit on the first line
        rest = rest.split(b"\n", 2)[2]
    elif not (first.startswith(b"#!") and b"python" in first):
        return
    mode = script.stat().st_mode
    script.unlink()  # it may be a link to the download
    script.write_bytes(_HEADER + rest)
    script.chmod(mode)


if __name__ == "__main__":
    main()
