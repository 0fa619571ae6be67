"""The backends, by name.

A class is imported when a worker first needs it, so that a missing extra affects only the backend that needs it.
"""

from collections.abc import Callable
from importlib import import_module

from core.errors import GradientError
from core.settings import Settings
from worker.backends.base import Backend
from worker.backends.tpu.buckets import OpenBucket
from worker.backends.tpu.ledger import Ledger


class LibraryMissing(GradientError):
    """A backend that the settings ask for cannot be loaded."""

    def __init__(self, backend: str, error: ModuleNotFoundError) -> None:
        extra = "tpu" if BACKENDS[backend] == _TPU else "server"
        super().__init__(
            f"The backend {backend!r} needs {error.name}, which is not installed. "
            f"Run `pip install 'gradient-jobs[{extra}]'`, or take its settings back."
        )


_TPU = "worker.backends.tpu.backend:TpuBackend"

BACKENDS: dict[str, str] = {
    "mock": "worker.backends.mock:MockBackend",
    "docker": "worker.backends.docker.backend:DockerBackend",
    "tpu": _TPU,
    "tpu-simulator": _TPU,
}


def make_backend(
    name: str, settings: Settings, ledger: Ledger | None = None, buckets: OpenBucket | None = None
) -> Backend:
    """Create the backend of this name.

    Args:
        name: A key of BACKENDS.
        settings: The service's.
        ledger: The record of billed resources; only cloud backends need one.
        buckets: Opens the Cloud Storage buckets of TPU jobs; None: they have none.

    Raises:
        KeyError: There is no such backend.
        LibraryMissing: A library that it needs is not installed.
    """
    module, _, attribute = BACKENDS[name].partition(":")
    try:
        made: Callable[..., Backend] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise LibraryMissing(name, error) from error
    if BACKENDS[name] != _TPU:
        return made(settings)
    runner = make_backend("docker" if settings.tpu.runner == "docker" else "mock", settings)
    return made(settings, ledger, runner, buckets)


def offered(settings: Settings) -> list[str]:
    """Names of the backends that a worker with these settings runs."""
    of_tpus = [settings.tpu.backend] if settings.tpu.backend is not None else []
    return ["mock" if settings.machines.simulate else "docker", *of_tpus]
