"""Check of the backend that runs jobs on this machine, with what another one would need."""

from typing import Any

from core.settings import Settings
from gradient_server.checks import containers
from gradient_server.checks.engine_access import EngineProblem, query_engine
from gradient_server.checks.finding import Finding, ok
from worker.backends.docker.gpu import nvml


def backend(settings: Settings) -> Finding:
    """Report the backend of jobs; other checks report what it lacks."""
    if not settings.machines.simulate:
        return ok("backend", "Jobs run in Docker containers.")
    now = "Jobs run as processes of this machine, and machine types are simulated"
    info = query_engine(settings.docker)
    if isinstance(info, EngineProblem):
        return ok("backend", f"{now}. Docker cannot run them: {info.why}. {info.fix}")
    usable = "Docker answers, and runs jobs after `gradient-server up --backend docker`."
    return ok("backend", f"{now}. {usable}{_missing_for_gpus(info)}")


def _missing_for_gpus(info: dict[str, Any]) -> str:
    found = nvml.read_gpus()
    finding = containers.gpus(found, info) if found else None
    return f" {finding.message} {finding.fix}" if finding is not None and finding.fix is not None else ""
