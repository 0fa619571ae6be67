"""Opens the Cloud Storage buckets of TPU jobs."""

from functools import partial
from importlib import import_module

from core.settings import Settings
from worker.backends.tpu.buckets import OpenBucket


def buckets_of(settings: Settings) -> OpenBucket | None:
    """Return the function that opens a region's bucket, or None.

    None without TPUs, or where TPUs are simulated and Cloud Storage is not.
    """
    if settings.tpu.backend is None or (settings.tpu.simulator is not None and settings.gcs.endpoint is None):
        return None
    # Loaded only where there are TPUs: Google's library takes a second, and need not be installed elsewhere.
    return partial(import_module("worker.buckets").open_bucket, settings)
