from functools import cache
from importlib.metadata import version


@cache
def release_version() -> str:
    """Return the installed release's version; the first call searches the installed packages for it."""
    return version("gradient-jobs")
