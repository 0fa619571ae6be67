"""What the service needs of this machine's container engine, where jobs run in containers."""

from collections.abc import Iterator
from typing import Any

from core.settings import Settings
from gradient_server.checks.finding import Finding, ok, problem, warning
from worker.backends.docker import nvidia
from worker.backends.docker.engine import Engine, EngineAway, EngineRefused

_TIMEOUT_SECONDS = 5.0


def check(settings: Settings) -> Iterator[Finding]:
    """The engine answers, survives its own restart, and can hand cards over; nothing, where machines are simulated."""
    if settings.machines.simulate:
        return
    engine = Engine(settings.docker, timeout=_TIMEOUT_SECONDS)
    try:
        info: dict[str, Any] = engine.call(lambda api: api.info())
    except (EngineAway, EngineRefused) as error:
        yield warning(
            "docker",
            f"The Docker engine at {settings.docker.url} does not answer ({error}). No worker can run jobs here.",
            "Start it (systemctl start docker), give this user its socket, or mend GRADIENT_DOCKER__URL. Where only "
            "the API runs, none is needed.",
        )
        return
    yield engine_found(info)
    yield cards(nvidia.cards(), info)


def engine_found(info: dict[str, Any]) -> Finding:
    """Jobs live on when the engine is restarted.

    Args:
        info: What the engine tells of itself (`docker info`).
    """
    version = info.get("ServerVersion", "of unknown version")
    if info.get("LiveRestoreEnabled"):
        return ok("docker", f"Docker {version} answers; jobs live on while it restarts.")
    return problem(
        "docker",
        f"Docker {version} answers, but a restart of it ends every job on this machine.",
        'Put {"live-restore": true} into /etc/docker/daemon.json, then `systemctl reload docker`.',
    )


def cards(found: tuple[str, ...], info: dict[str, Any]) -> Finding:
    """Cards that are here can be handed to containers.

    Args:
        found: The cards' indices.
        info: What the engine tells of itself (`docker info`).
    """
    count = f"{len(found)} NVIDIA card{'s' * (len(found) != 1)}"
    if not found:
        return ok("cards", "No NVIDIA card is here: CPU types run, GPU types do not.")
    if "nvidia" in info.get("Runtimes", {}):
        return ok("cards", f"{count}, and Docker can hand them to jobs.")
    return problem(
        "cards",
        f"{count}, but Docker cannot hand any to a job.",
        "Install the NVIDIA Container Toolkit, run `nvidia-ctk runtime configure --runtime=docker`, restart Docker.",
    )
