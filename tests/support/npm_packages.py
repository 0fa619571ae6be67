"""Packages of npm that tests use, where `.ci/npm-packages` has installed them."""

import functools
import shutil
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[2]


@functools.cache
def find_npm_packages(folder: str) -> Path | None:
    """The folder of the packages that a folder of this repository locks; None if they are not installed."""
    look = [str(_ROOT / ".ci" / "npm-packages"), folder, "--look"]
    found = subprocess.run(look, capture_output=True, text=True, check=False)
    return Path(found.stdout.strip()) if found.returncode == 0 and shutil.which("node") else None


def find_axe_core() -> Path | None:
    """The script that finds faults of pages for people who do not see or point."""
    packages = find_npm_packages("tests/e2e/axe")
    return packages and packages / "axe-core" / "axe.min.js"


def find_azurite() -> Path | None:
    """Microsoft's emulator of Azure's storage, the program for blobs."""
    packages = find_npm_packages("tests/support/servers/azurite")
    return packages and packages / ".bin" / "azurite-blob"
