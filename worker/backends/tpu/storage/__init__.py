"""The Cloud Storage bucket that a TPU job uses: created, restricted, filled, downloaded and emptied."""

from worker.backends.tpu.storage.access import ProbeResult
from worker.backends.tpu.storage.download import DownloadResult
from worker.backends.tpu.storage.errors import BucketRefused
from worker.backends.tpu.storage.mailbox import Mailbox
from worker.backends.tpu.storage.region_bucket import BucketPaths, RegionBucket, open_bucket

__all__ = ["BucketPaths", "BucketRefused", "DownloadResult", "Mailbox", "ProbeResult", "RegionBucket", "open_bucket"]
