"""The virtual environment of one attempt: writable, and above packages that are not.

`pip install` in a job installs into it, and it is removed with the attempt. A `.pth` file adds the packages of the
shared environment below it. Making it starts no process and takes a few milliseconds.
"""

from collections.abc import Callable
from pathlib import Path

from core.system.untrusted_folders import remove_tree
from core.system.uv_program import uv_program
from gradient_cli import wheel
from worker.backends.base import JobPython
from worker.environments.cache import LINK, interpreter_of, site_packages

FOLDER = "python"  # its name in a scratch folder
_PIP = '#!/bin/sh\nexec "${0%/*}/python" -m pip "$@"\n'
_PTH = "import site; site.addsitedir({!r})\n"

_ARCHIVE = "gradient_jobs.zip"
_FOR_UV = "for-uv"


def add_sdk(packages: Path) -> str:
    """Add the SDK to a site-packages folder, as an archive that pip does not know; return its line for a .pth file."""
    (packages / _ARCHIVE).write_bytes(wheel.build_library())
    return _ARCHIVE


def create_layer(scratch: Path, shared: Path, confirm: Callable[[], None], *, for_uv: bool = False) -> JobPython:
    """Create the virtual environment of an attempt; one that an earlier start left is replaced.

    `shared`: the environment below it. `confirm`: called before one is replaced; raises if another worker may use it.
    `for_uv`: whether it is the environment of the project that `uv run` finds in the workspace.
    """
    folder = scratch / FOLDER
    if folder.exists():
        confirm()
        remove_tree(folder)
    interpreter, below = interpreter_of(shared), site_packages(shared)
    version = below.parent.name
    programs, packages = folder / "bin", Path(folder, "lib", version, "site-packages")
    programs.mkdir(parents=True)
    packages.mkdir(parents=True)
    (folder / "lib64").symlink_to("lib")
    (folder / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\ninclude-system-site-packages = false\n")
    (programs / "python").symlink_to(interpreter)
    (programs / "pip").write_text(_PIP)
    (programs / "pip").chmod(0o755)
    (programs / "uv").symlink_to(uv_program())
    for name in ("python", "pip"):
        (programs / f"{name}3").symlink_to(name)
        (programs / version.replace("python", name)).symlink_to(name)
    # The SDK after the packages below, whose own gradient_jobs takes precedence.
    (packages / "gradient.pth").write_text(f"{_PTH.format(str(below))}{add_sdk(packages)}\n", encoding="utf-8")
    if for_uv:
        (folder / _FOR_UV).touch()
    return JobPython(folder, shared, interpreter, for_uv)


def find_layer(scratch: Path) -> JobPython:
    """Return the virtual environment that an attempt was launched with."""
    shared = (scratch / LINK).readlink()
    folder = scratch / FOLDER
    return JobPython(folder, shared, interpreter_of(shared), (folder / _FOR_UV).exists())
