"""What the service needs of this machine's container engine, where jobs run in containers."""

import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from core.errors import SpecInvalid
from core.machines import Catalogue
from core.settings import Settings
from gradient_server.checks.finding import Finding, ok, problem, warning
from worker.backends.docker import handover, nvidia
from worker.backends.docker.cards import Seen
from worker.backends.docker.engine import Engine, EngineAway, EngineRefused
from worker.backends.docker.opened import mistakes

_TIMEOUT_SECONDS = 5.0


def check(settings: Settings) -> Iterator[Finding]:
    """The engine answers, survives its own restart, and can hand cards over; nothing, where machines are simulated."""
    if settings.machines.simulate:
        return
    yield from opened(settings)
    engine = Engine(settings.docker, timeout=_TIMEOUT_SECONDS)
    try:
        info = engine.info()
    except (EngineAway, EngineRefused) as error:
        yield warning(
            "docker",
            f"The Docker engine at {settings.docker.url} does not answer ({error}). No worker can run jobs here.",
            "Start it (systemctl start docker), give this user its socket, or mend GRADIENT_DOCKER__URL. Where only "
            "the API runs, none is needed.",
        )
        return
    yield engine_found(info)
    found = nvidia.look()
    yield cards(found, info)
    if found:
        yield from toolkit()


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


def cards(found: Sequence[Seen], info: dict[str, Any]) -> Finding:
    """Cards that are here can be handed to containers.

    Args:
        found: The cards.
        info: What the engine tells of itself (`docker info`).
    """
    if not found:
        return ok("cards", "No NVIDIA card is here: CPU types run, GPU types do not.")
    first, indices = found[0].card, [one.card.index for one in found]
    models = ", ".join(dict.fromkeys(one.card.name for one in found))
    count = f"{len(found)} NVIDIA card{'s' * (len(found) != 1)} ({models}; driver {first.driver})"
    if handover.cdi_names(indices, info):
        return ok("cards", f"{count}, and Docker hands them to jobs by their CDI names.")
    if handover.can_hand_over(indices, info):
        return ok("cards", f"{count}, and Docker can hand them to jobs.")
    return problem(
        "cards",
        f"{count}, but Docker cannot hand any to a job.",
        "Install the NVIDIA Container Toolkit, run `nvidia-ctk runtime configure --runtime=docker`, restart Docker.",
    )


def toolkit() -> Iterator[Finding]:
    """NVIDIA's toolkit is one that lets no container out; nothing, where its program is not here to be asked."""
    program = shutil.which(handover.TOOLKIT)
    if program is None:
        return
    version, safe = handover.toolkit_version(), ".".join(map(str, handover.SAFE_TOOLKIT))
    told = ".".join(map(str, version or ()))
    if version is None:
        yield warning("toolkit", f"{program} does not tell its version.", "Install the NVIDIA Container Toolkit anew.")
    elif version < handover.SAFE_TOOLKIT:
        yield problem(
            "toolkit",
            f"NVIDIA Container Toolkit {told} lets a container become root of this machine (CVE-2025-23266). No job "
            "gets a GPU here, unless GRADIENT_DOCKER__OLD_TOOLKIT says so.",
            f"Install {safe} or later.",
        )
    else:
        yield ok("toolkit", f"NVIDIA Container Toolkit {told}.")


def opened(settings: Settings) -> Iterator[Finding]:
    """What this host's file opens to the containers of machine types, and whether it can be; nothing, if it is none."""
    try:
        types = [one for one in Catalogue.load(override_path=settings.machines.file) if one.docker.words()]
    except SpecInvalid:
        return  # another check says what is wrong with the file
    for machine in types:
        wrong = "; ".join(mistakes(machine.docker, settings))
        if wrong:
            yield problem(
                "opened",
                f"{machine.name}: {wrong}. Its jobs fail here.",
                f"Mend [{machine.name}.docker] in {settings.machines.file}.",
            )
        else:
            yield ok("opened", f"{machine.name}: its containers have more than the default: {machine.docker.words()}.")
