"""Stores outside this machine's disk, and the choice between them by settings."""

from importlib import import_module

from core.errors import StoreUnavailable
from core.formatting import MIB
from core.settings import Settings
from core.storage.artifacts.store import ArtifactLimits, ArtifactStore, DirectoryStore


def open_artifacts(settings: Settings) -> ArtifactStore:
    """Open the artifact store that the settings name: a folder on this machine, or a bucket.

    Raises:
        StoreUnavailable: Google's libraries, or credentials, are missing.
    """
    directory = DirectoryStore(
        settings.root / "artifacts",
        limits=ArtifactLimits(max_files=settings.disk.artifact_files, max_bytes=settings.disk.artifact_mb * MIB),
    )
    if settings.artifacts.url is None:
        return directory
    try:
        # Loaded only where it is used: Google's libraries take a second, and need not be installed elsewhere.
        module = import_module("core.storage.gcs.artifacts")
    except ModuleNotFoundError as error:
        raise StoreUnavailable(
            f"GRADIENT_ARTIFACTS__URL names a bucket, but {error.name} is not installed: pip install "
            "'gradient-jobs[tpu]'"
        ) from error
    store: ArtifactStore = module.BucketStore.of(settings, directory)
    return store
