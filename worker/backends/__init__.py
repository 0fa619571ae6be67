"""Creates backends by name; `core.catalogue.backends` lists them.

A class is imported when a worker first needs it, so that a missing extra affects only the backend that needs it.
"""

from importlib import import_module

from core.catalogue.backends import BACKENDS
from core.errors import ExtraMissing
from core.settings import Settings
from worker.backends.base import Backend
from worker.backends.tpu.resource_inventory import ResourceInventory


def make_backend(name: str, settings: Settings, resource_inventory: ResourceInventory | None = None) -> Backend:
    """Create the backend of this name.

    `resource_inventory`: the record of billed resources; only backends that are billed need one. Raises `KeyError`:
    there is no such backend.
    """
    backend = BACKENDS[name]
    module, _, attribute = backend.path.partition(":")
    try:
        made = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ExtraMissing(f"The backend {name!r} needs", error, BACKENDS[name].extra) from error
    created: Backend = made(settings, resource_inventory) if backend.capabilities.billed else made(settings)
    return created
