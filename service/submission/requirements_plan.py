"""Facts about a job's requirements for a dry run: whether they are installed here, and where they come from."""

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from core.catalogue.default_packages import locked_versions
from core.jobs.spec.job_spec import hide_password
from core.settings import Settings

_PUBLIC = "https://pypi.org/simple"
_DEFAULT_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")
_MORE = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")


def is_installed(settings: Settings, project_id: str, digest: str) -> bool | None:
    """Return whether a worker of this host has made the environment; None: environments are made on other hosts."""
    root = settings.root / "environments"
    if not root.is_dir():
        return None
    for lock in (root / project_id).glob("*.lock"):
        with suppress(OSError, ValueError):
            if lock.with_suffix("").is_dir() and json.loads(lock.read_bytes()).get("declared") == digest:
                return True
    return False


def default_packages(settings: Settings) -> list[str]:
    default = settings.environments.default
    return default if isinstance(default, list) else list(locked_versions())


def package_sources() -> list[str]:
    """Return the indexes and folders from which a worker with the environment of this process installs packages."""
    first = next((os.environ[name] for name in _DEFAULT_INDEX if os.environ.get(name)), _PUBLIC)
    more = [one for name in _MORE for one in re.split(r"[\s,]+", os.environ.get(name, "")) if one]
    named = (one.partition("=")[2] if re.match(r"[\w-]+=", one) else one for one in (first, *more))
    return [one if Path(one).is_absolute() else hide_password(one) for one in named]
