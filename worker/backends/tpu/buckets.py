"""The part of a TPU job that lies in Cloud Storage, as the backend sees it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol


class Paths(Protocol):
    """Where a job's files are in the bucket."""

    @property
    def model_dir(self) -> str:
        """`gs://…` that the job writes its model to."""

    @property
    def data_dir(self) -> str:
        """`gs://…` that the job's data is at."""

    @property
    def credentials(self) -> Mapping[str, str] | None:
        """Variables of the job's environment that let it in, for this prefix and a short time; None: it needs none."""


class JobBucket(Protocol):
    """The bucket of a region's jobs. What goes wrong is an exception with a `reason` out of REASONS and a `detail`."""

    def prepare(self, job_id: str) -> Paths:
        """Have the bucket, and the job's prefix in it."""

    def probe(self, service_account: str | None) -> None:
        """Make sure that the TPU's account can write, read and delete there."""

    def mirror(self, job_id: str, into: Path) -> None:
        """Copy what is new of the model folder; hash and compare nothing that has not changed."""

    def complete(self, job_id: str, into: Path) -> None:
        """Copy all that is missing of the model folder."""

    def remove(self, job_id: str) -> None:
        """Delete the job's prefix, if that is the policy."""


OpenBucket = Callable[[str], JobBucket]
"""The bucket for jobs whose TPU is in this region (`us-central1`)."""


def region_of(zone: str) -> str:
    """The region of a zone: `us-central1` of `us-central1-b`."""
    return zone.rpartition("-")[0]
