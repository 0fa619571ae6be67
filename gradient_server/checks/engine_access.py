"""Access to this machine's Docker engine: the reason that it cannot be used, with the remedy."""

import getpass
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from core.settings.docker import DockerSettings

_TIMEOUT_SECONDS = 5.0
_SCHEME = "unix://"


class EngineProblem(NamedTuple):
    """The reason that the engine cannot be used, as part of a sentence, and the remedy, as sentences."""

    why: str
    fix: str


def query_engine(docker: DockerSettings) -> dict[str, Any] | EngineProblem:
    """Return the engine's own description (`docker info`), or the reason that this user cannot use it now."""
    if docker.url.startswith(_SCHEME) and (problem := _find_socket_problem(Path(docker.url.removeprefix(_SCHEME)))):
        return problem
    # Not at the top: the SDK takes half a second to import, and most machines without an engine have no socket.
    from worker.backends.docker.engine.client import Engine, EngineError

    try:
        return Engine(docker, timeout=_TIMEOUT_SECONDS).info()
    except EngineError as error:
        return EngineProblem(
            f"the Docker engine at {docker.url} does not answer ({error})",
            "Start it (systemctl start docker), or correct GRADIENT_DOCKER__URL.",
        )


def _find_socket_problem(path: Path) -> EngineProblem | None:
    if not path.exists():
        if shutil.which("dockerd") is None and shutil.which("docker") is None:
            return EngineProblem(
                f"Docker is not installed: the socket {path} does not exist",
                "Install it (https://docs.docker.com/engine/install/), or correct GRADIENT_DOCKER__URL.",
            )
        return EngineProblem(
            f"Docker is installed, but its engine is not running: the socket {path} does not exist",
            "Start it (systemctl start docker), or correct GRADIENT_DOCKER__URL.",
        )
    if not os.access(path, os.R_OK | os.W_OK):
        return EngineProblem(
            f"this user has no access to Docker's socket {path}",
            f"Run `sudo usermod -aG docker {getpass.getuser()}` and log in again (members of this group can become "
            "root), or correct GRADIENT_DOCKER__URL.",
        )
    return None
