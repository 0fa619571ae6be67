"""The SDK in the virtual environments of jobs, so that a program can `import gradient_jobs` without installing it."""

from pathlib import Path

from gradient_cli import wheel

_ARCHIVE = "gradient_jobs.zip"


def add_sdk(packages: Path) -> str:
    """Add the SDK to a site-packages folder, as an archive that pip does not know; return its line for a .pth file."""
    (packages / _ARCHIVE).write_bytes(wheel.build_library())
    return _ARCHIVE
