"""Facts about this machine that are needed to interpret the figures."""

import os
import platform
import sqlite3
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent


def facts() -> dict[str, Any]:
    """Return facts about the machine and the software; call it before measuring, for the load average."""
    return {
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "memoryGib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: version(name) for name in ("fastapi", "starlette", "uvicorn", "sqlalchemy", "pydantic")},
        "revision": _git("rev-parse", "--short", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "loadAverage": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
