"""The Cloud Storage bucket that a TPU job uses: created, restricted, filled, downloaded and emptied."""

from worker.backends.tpu.storage.access_probe import Trial
from worker.backends.tpu.storage.bucket import BucketPaths, JobBucket, open_bucket
from worker.backends.tpu.storage.download import Mirrored
from worker.backends.tpu.storage.errors import BucketRefused
from worker.backends.tpu.storage.mailbox import Relay

__all__ = ["BucketPaths", "BucketRefused", "JobBucket", "Mirrored", "Relay", "Trial", "open_bucket"]
