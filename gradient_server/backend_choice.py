"""Choice of the backend that runs jobs: by an argument, a setting, an earlier choice, or the answer to a question."""

import sys
from dataclasses import dataclass
from pathlib import Path

from core.catalogue.machine_types import Catalogue
from core.errors import GradientError
from core.settings import Settings
from core.settings.worker import PROCESS_BACKEND
from core.system.filesystem import make_private
from gradient_server.checks.engine_access import EngineProblem, query_engine

DOCKER_BACKEND = "docker"
BACKENDS = ("auto", DOCKER_BACKEND, PROCESS_BACKEND)  # values of `--backend`

_QUESTION = """Docker answers on this machine.
  y  run each job in a container, from the image it names; GPU and TPU types need their hardware
  n  run jobs as processes on this machine and simulate every machine type on its CPU
Run jobs in Docker? Your answer is saved; --backend changes it. [y/N] """


class BackendUnavailable(GradientError):
    """The backend that was asked for cannot run jobs on this machine."""


@dataclass(frozen=True, slots=True)
class BackendChoice:
    settings: Settings
    reason: str


def with_earlier_choice(settings: Settings) -> Settings:
    """Return the settings with the backend that was last chosen for this data folder, unless a setting names one."""
    earlier = None if _is_set(settings) else _read_choice(settings)
    return settings if earlier is None else _with_backend(settings, earlier)


def choose(settings: Settings, requested: str) -> BackendChoice:
    if requested == "auto":
        return _choose_automatically(settings)
    answer = query_engine(settings.docker) if requested == DOCKER_BACKEND else None
    if isinstance(answer, EngineProblem):
        raise BackendUnavailable(
            f"--backend docker: {answer.why}. {answer.fix} --backend process needs no Docker.", field="backend"
        )
    _keep_choice(settings, requested)
    return BackendChoice(_with_backend(settings, requested), f"--backend {requested}")


def choose_slurm(settings: Settings) -> BackendChoice:
    """Return the settings of a login node of a Slurm cluster, which runs no jobs itself."""
    names = [machine.name for machine in Catalogue.load(settings.machines_file) if machine.backend == "slurm"]
    if not names:
        raise BackendUnavailable(
            "--slurm: there are no machine types of a Slurm cluster. Run `gradient-server machines add --slurm` first.",
            field="slurm",
        )
    changes = {"host": "", "offer_simulated": False, "default": settings.machines.default or names[0]}
    machines = settings.machines.model_copy(update=changes)
    slurm = settings.slurm.model_copy(update={"enabled": True})
    return BackendChoice(settings.model_copy(update={"machines": machines, "slurm": slurm}), "--slurm")


def _choose_automatically(settings: Settings) -> BackendChoice:
    if _is_set(settings):
        return BackendChoice(settings, "GRADIENT_MACHINES__SIMULATE")
    if (earlier := _read_choice(settings)) is not None:
        return BackendChoice(_with_backend(settings, earlier), "chosen before; --backend changes it")
    info = query_engine(settings.docker)
    if isinstance(info, EngineProblem):
        return BackendChoice(settings, info.why)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return BackendChoice(settings, "the default; Docker is available: --backend docker uses it")
    print(_QUESTION, end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        return BackendChoice(settings, "no answer; --backend docker uses Docker")
    chosen = DOCKER_BACKEND if answer.strip().casefold() in {"y", "yes"} else PROCESS_BACKEND
    _keep_choice(settings, chosen)
    return BackendChoice(_with_backend(settings, chosen), "your answer; --backend changes it")


def _is_set(settings: Settings) -> bool:
    return "simulate" in settings.machines.model_fields_set


def _with_backend(settings: Settings, backend: str) -> Settings:
    machines = settings.machines.model_copy(update={"simulate": backend == PROCESS_BACKEND})
    return settings.model_copy(update={"machines": machines})


def _file(settings: Settings) -> Path:
    return settings.root / "backend"


def _read_choice(settings: Settings) -> str | None:
    try:
        text = _file(settings).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
    return text if text in {DOCKER_BACKEND, PROCESS_BACKEND} else None


def _keep_choice(settings: Settings, backend: str) -> None:
    make_private(settings.root, settings.sqlite_file)
    _file(settings).write_text(f"{backend}\n", encoding="utf-8")
