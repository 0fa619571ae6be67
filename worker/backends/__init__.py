"""The backends, by name.

A class is imported when a worker first needs it, so that a missing extra hurts only the backend that needs it.
"""

from importlib import import_module
from typing import cast

from core.settings import Settings
from worker.backends.base import Backend

BACKENDS: dict[str, str] = {
    "mock": "worker.backends.mock:MockBackend",
    "docker": "worker.backends.docker.backend:DockerBackend",
}


def make_backend(name: str, settings: Settings) -> Backend:
    """The backend of this name.

    Raises:
        KeyError: There is none.
    """
    module, _, attribute = BACKENDS[name].partition(":")
    return cast("Backend", getattr(import_module(module), attribute)(settings))
