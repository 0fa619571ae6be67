"""The backends that run jobs: where each is implemented, what offers it, and what it can do.

The service decides by `Capabilities`; only a worker imports a backend's class, when it first needs it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from core.settings import Settings
from core.settings.worker import PROCESS_BACKEND


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Properties of a backend that decide how its jobs are checked and set up."""

    containers: bool = False  # runs the job in the requested container
    optional_containers: bool = False  # runs a job in the container that it requests, and otherwise without
    mounts: bool = False
    """The job's folders are at WORKSPACE, ARTIFACTS, STORAGE and CONTROL; else only its environment names them."""
    builds_images: bool = False  # builds images, and stores images on the worker's host
    sends_metrics: bool = False
    """Jobs run on the worker's host, and can send metrics to the worker with gradient-statsd."""
    shared_storage: bool = False  # the job has the storage that the jobs of its project share
    exec: bool = False  # users can run commands in its running jobs, and reach their ports through the service
    keeps: bool = False  # the machine of a job that failed can be kept for its user to look
    own_network: bool = False  # the job listens on its own ports; else directly on those that it was given of its host
    own_queue: bool = False
    """Its jobs wait in a queue elsewhere, and run there: none of them uses the worker's slots, CPUs, memory or GPUs."""
    billed: bool = False  # creates a machine for each job, which costs money until it is deleted

    def for_image(self, image: str | None) -> Self:
        """Return what it can do for a job with this image, or without one."""
        chosen = self.optional_containers and image is not None
        return replace(self, containers=True, mounts=True) if chosen else self


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendType:
    path: str  # `module:Class` of its implementation
    capabilities: Capabilities  # what it can do; an instance may be limited by its settings
    enabled: Callable[[Settings], bool]  # returns whether a worker with these settings runs it
    extra: str = "server"
    selectable: bool = True  # whether a machine type may name it; if not, only settings select it


_TPU = BackendType(
    path="worker.backends.tpu.backend:TpuBackend",
    capabilities=Capabilities(containers=True, mounts=True, exec=True, own_network=True, billed=True),
    enabled=lambda settings: settings.tpu.backend == "tpu",
    extra="tpu",
)

BACKENDS: dict[str, BackendType] = {
    PROCESS_BACKEND: BackendType(
        path="worker.backends.process.backend:ProcessBackend",
        capabilities=Capabilities(sends_metrics=True, shared_storage=True, exec=True, keeps=True),
        enabled=lambda settings: settings.machines.simulate and not settings.slurm.enabled,
    ),
    "docker": BackendType(
        path="worker.backends.docker.backend:DockerBackend",
        capabilities=Capabilities(
            containers=True,
            mounts=True,
            builds_images=True,
            sends_metrics=True,
            shared_storage=True,
            exec=True,
            keeps=True,
            own_network=True,
        ),
        enabled=lambda settings: not (settings.machines.simulate or settings.slurm.enabled),
    ),
    "slurm": BackendType(
        path="worker.backends.slurm.backend:SlurmBackend",
        capabilities=Capabilities(optional_containers=True, shared_storage=True, exec=True, own_queue=True),
        enabled=lambda settings: settings.slurm.enabled,
    ),
    "tpu": _TPU,
    "tpu-simulator": replace(_TPU, enabled=lambda settings: settings.tpu.backend == "tpu-simulator", selectable=False),
}


def capabilities_of(backend: str) -> Capabilities:
    """Return a backend's capabilities; a backend that is no longer in the list has none."""
    return BACKENDS[backend].capabilities if backend in BACKENDS else Capabilities()


def containers_offer(backend: str) -> str:
    """Return what a worker offers besides the backend if jobs can have containers there, where that is optional."""
    return f"{backend}-containers"


OFFERS = frozenset(BACKENDS) | {
    containers_offer(name) for name, backend in BACKENDS.items() if backend.capabilities.optional_containers
}


def runs_containers(backend: str, settings: Settings, image: str | None = None) -> bool:
    """Return whether the jobs of a backend run in containers here; if that is optional, those with an image do.

    TPU jobs do, unless settings name the process backend as the one that runs them beside their device.
    """
    capabilities = capabilities_of(backend).for_image(image)
    return capabilities.containers and not (capabilities.billed and settings.tpu.runner == PROCESS_BACKEND)


def enabled_backends(settings: Settings) -> list[str]:
    return [name for name, backend in BACKENDS.items() if backend.enabled(settings)]
