"""The Cloud Storage bucket that a TPU job uses: created, restricted, filled, downloaded and emptied."""

from worker.backends.tpu.storage.access_probe import ProbeResult
from worker.backends.tpu.storage.download import DownloadResult
from worker.backends.tpu.storage.errors import BucketRefused
from worker.backends.tpu.storage.job_bucket import BucketPaths, JobBucket, open_bucket
from worker.backends.tpu.storage.mailbox import Mailbox

__all__ = ["BucketPaths", "BucketRefused", "DownloadResult", "JobBucket", "Mailbox", "ProbeResult", "open_bucket"]
