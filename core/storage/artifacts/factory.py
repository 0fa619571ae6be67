"""Selects the artifact store by the settings: a folder on this machine, or a bucket."""

from importlib import import_module

from core.formatting import MIB
from core.settings import Settings
from core.storage.artifacts.store import ArtifactLimits, ArtifactStore, DirectoryStore


def open_artifacts(settings: Settings) -> ArtifactStore:
    """Open the artifact store that the settings name: a folder on this machine, or a bucket.

    Raises `StoreUnavailable`: credentials are missing.
    """
    directory = DirectoryStore(settings.root / "artifacts", limits=artifact_limits(settings))
    if settings.store.url is None:
        return directory
    # Loaded only where it is used: its library takes time and memory.
    store: ArtifactStore = import_module("core.storage.buckets.artifacts").BucketStore.from_settings(
        settings, directory
    )
    return store


def artifact_limits(settings: Settings) -> ArtifactLimits:
    return ArtifactLimits(max_files=settings.disk.artifact_files, max_bytes=settings.disk.artifact_mb * MIB)
