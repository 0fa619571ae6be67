"""The bucket that a TPU reads from and writes to: made, guarded, filled, brought home and emptied again."""

from worker.buckets.bucket import BucketPaths, JobBucket, open_bucket
from worker.buckets.mirror import Mirrored
from worker.buckets.refusal import BucketRefused
from worker.buckets.trial import Trial

__all__ = ["BucketPaths", "BucketRefused", "JobBucket", "Mirrored", "Trial", "open_bucket"]
