"""Selects the artifact store by the settings: a folder on this machine, or a bucket."""

from importlib import import_module

from core.settings import Settings
from core.storage.artifacts.store import ArtifactStore, DirectoryStore


def open_artifacts(settings: Settings) -> ArtifactStore:
    """Open the artifact store that the settings name: a folder on this machine, or a bucket.

    Raises `StoreUnavailable`: credentials are missing.
    """
    directory = DirectoryStore(settings.root / "artifacts")
    if settings.store.url is None:
        return directory
    # Loaded only where it is used: its library takes time and memory.
    store: ArtifactStore = import_module("core.storage.buckets.artifacts").BucketStore.from_settings(
        settings, directory
    )
    return store
