"""The virtual environment of one attempt: writable, and above packages that are not.

`pip install` in a job installs into it, and it is removed with the attempt. A `.pth` file adds the packages below it:
of the job's requirements, or of the service. Making it starts no process and takes a few milliseconds.
"""

import shutil
import sys
from pathlib import Path

from worker.backends.base import JobPython
from worker.environments.cache import site_packages

FOLDER = "python"
"""Its name in a scratch folder."""
_PIP = '#!/bin/sh\nexec "${0%/*}/python" -m pip "$@"\n'
_PTH = "import site; site.addsitedir({!r})\n"


def create_layer(scratch: Path, shared: Path | None) -> JobPython:
    """Create the virtual environment of an attempt; one that an earlier start left is replaced.

    Args:
        scratch: The attempt's folder.
        shared: The environment below it; None: the service's own packages.
    """
    folder = scratch / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    interpreter = Path(shared / "bin" / "python" if shared else sys.executable).resolve()
    version = site_packages(shared).parent.name if shared else f"python3.{sys.version_info.minor}"
    programs, packages = folder / "bin", folder / "lib" / version / "site-packages"
    programs.mkdir(parents=True)
    packages.mkdir(parents=True)
    (folder / "lib64").symlink_to("lib")
    (folder / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\ninclude-system-site-packages = false\n")
    (programs / "python").symlink_to(interpreter)
    (programs / "pip").write_text(_PIP)
    (programs / "pip").chmod(0o755)
    for name in ("python", "pip"):
        (programs / f"{name}3").symlink_to(name)
        (programs / version.replace("python", name)).symlink_to(name)
    below = [str(site_packages(shared))] if shared else _packages_of_service()
    (packages / "gradient_packages.pth").write_text("".join(_PTH.format(one) for one in below), encoding="utf-8")
    return JobPython(folder, shared, interpreter)


def _packages_of_service() -> list[str]:
    names = ("site-packages", "dist-packages")
    return [str(Path(one).absolute()) for one in sys.path if Path(one).name in names]
