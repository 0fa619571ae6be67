"""The Cloud Storage bucket that a TPU job uses: created, restricted, filled, downloaded and emptied."""

from worker.buckets.bucket import BucketPaths, JobBucket, open_bucket
from worker.buckets.mirror import Mirrored
from worker.buckets.refusal import BucketRefused
from worker.buckets.relay import Relay
from worker.buckets.trial import Trial

__all__ = ["BucketPaths", "BucketRefused", "JobBucket", "Mirrored", "Relay", "Trial", "open_bucket"]
