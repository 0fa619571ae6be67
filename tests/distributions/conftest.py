"""The distributions as `make dist` builds them, in environments that have nothing else of this repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = str(Path(sys.executable).parent / "uv")


class Installed:
    """An environment outside of the repository, and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "venv" / "bin"
        self.folder = folder / "empty"
        self.folder.mkdir(exist_ok=True)
        self.env = {
            "HOME": str(folder / "home"),
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
            "GRADIENT_HOME": str(folder / "home" / "service"),
            "GRADIENT_PROCESS__SANDBOX": "off",
        }

    def run(self, program, *arguments):
        return subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )


def uv(*arguments, **variables):
    env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return subprocess.run([UV, *arguments], cwd=ROOT, env=env | variables, capture_output=True, text=True, check=False)


def install(wheels, folder, *wanted):
    """Install locked packages and our wheels of these names into a new environment, from uv's cache if it has them."""
    python = folder / "venv" / "bin" / "python"
    locked = ("sync", "--frozen", "--no-install-workspace", "--no-python-downloads", "--python", sys.executable)
    done = uv(*locked, *wanted, UV_PROJECT_ENVIRONMENT=str(folder / "venv"))
    assert done.returncode == 0, done.stderr
    ours = [wheels["gradient_jobs_client"], *([] if "--package" in wanted else [wheels["gradient_jobs"]])]
    done = uv("pip", "install", "--offline", "--no-deps", "--python", str(python), *map(str, ours))
    assert done.returncode == 0, done.stderr
    checked = uv("pip", "check", "--python", str(python))
    assert checked.returncode == 0, checked.stderr
    return Installed(folder)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(["make", "dist", f"DIST={folder}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


@pytest.fixture(scope="session")
def client(wheels, tmp_path_factory):
    """The client alone."""
    return install(wheels, tmp_path_factory.mktemp("client"), "--package", "gradient-jobs-client")


@pytest.fixture(scope="session")
def server(wheels, tmp_path_factory):
    """The server with the extra that runs it."""
    return install(wheels, tmp_path_factory.mktemp("server"), "--extra", "server")


def find_python(version):
    """Return an interpreter of this version on the machine; None if there is none."""
    found = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for python in filter(None, found):
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None


@pytest.fixture(
    scope="session",
    params=["3.9", *(pytest.param(version, marks=pytest.mark.slow) for version in ("3.10", "3.12", "3.13", "3.14"))],
)
def any_client(request, wheels, tmp_path_factory):
    """The client with another version of Python, and the newest packages that it may have."""
    python = find_python(request.param)
    if python is None:
        pytest.skip(f"there is no Python {request.param} on this machine")
    folder = tmp_path_factory.mktemp("client")
    assert uv("venv", "--python", python, str(folder / "venv")).returncode == 0
    wheel = f"{wheels['gradient_jobs_client']}[remote]"
    done = uv("pip", "install", "--python", str(folder / "venv" / "bin" / "python"), wheel)
    if done.returncode:
        pytest.skip(f"no package index: {done.stderr}")
    return Installed(folder)
