"""Packages of jobs: installed once for all tests and runs, from the index that this machine reaches."""

import functools
import os
import subprocess
import sys
from pathlib import Path

from uv import find_uv_bin

from gradient_cli.workspace.dependencies.inline_metadata import read_metadata

ROOT = Path(__file__).parents[2]
SHARED = Path(sys.prefix) / "job-environments"
EXAMPLES = ("pytorch", "lightning", "transformers", "scikit-learn", "jax", "tpu-jax", "tpu-torch")
_RESOLVE_SECONDS = 120


def index_settings() -> dict[str, str]:
    """Settings of uv: a folder of wheels that pip is configured to use, which uv does not look at."""
    wheels = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    return {"UV_FIND_LINKS": wheels} if wheels else {}


def share_environments(home: Path) -> dict[str, str]:
    """Have a service below this folder use the environments that all tests share; return its settings."""
    SHARED.mkdir(exist_ok=True)
    home.mkdir(parents=True, exist_ok=True)
    (home / "environments").symlink_to(SHARED)
    return {"GRADIENT_ENVIRONMENTS__DEFAULT": "trainer", **index_settings()}


@functools.cache
def installable(requirements: str) -> bool:
    """Return whether the index has these requirements, as lines of a file, without gigabytes of CUDA."""
    words = ["pip", "compile", "--quiet", "--only-binary", ":all:", "--index-strategy", "unsafe-best-match", "-"]
    env = os.environ | index_settings() | {"UV_CACHE_DIR": str(SHARED / "cache"), "UV_HTTP_RETRIES": "0"}
    words += ["--python", sys.executable, "--no-config"]
    try:
        done = subprocess.run(
            [find_uv_bin(), *words],
            input=requirements,
            env=env,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_RESOLVE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and "nvidia-" not in done.stdout


def has_default_packages() -> bool:
    """Return whether the default packages can be installed."""
    catalogue = ROOT / "core" / "catalogue"
    lines = [(catalogue / f"{name}_packages.in").read_text() for name in ("default", "trainer")]
    return installable("".join(lines).replace("-r default_packages.in\n", ""))


def has_packages_of(example: str) -> bool:
    """Return whether the requirements of an example can be installed."""
    folder = ROOT / "examples" / example
    file = folder / "requirements.txt"
    if file.exists():
        return installable(file.read_text())
    metadata = read_metadata((folder / "main.py").read_text(), "main.py")
    assert metadata is not None
    return installable("\n".join(metadata["dependencies"]))
