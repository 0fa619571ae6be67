"""The SDK in the virtual environments of jobs, so that a program can `import gradient_jobs` without installing it."""

from pathlib import Path

from gradient_cli import wheel

_ARCHIVE = "gradient_jobs.zip"
# Python reads these files by name: after the packages below the layer, whose own gradient_jobs takes precedence.
_PTH = "gradient_sdk.pth"


def add_sdk(packages: Path) -> None:
    """Add the SDK to a site-packages folder, as an archive that pip does not know."""
    (packages / _ARCHIVE).write_bytes(wheel.build_library())
    (packages / _PTH).write_text(f"{_ARCHIVE}\n")
