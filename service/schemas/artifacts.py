"""Schemas of artifacts."""

from pydantic import Field

from service.schemas.base import RequestModel, Time, View
from service.schemas.jobs import RemovedView


class ArtifactView(View):
    """An artifact of a job."""

    path: str
    size: int
    sha256: str | None = Field(description="null while the job may still write the file")
    modified: Time


class SkippedView(View):
    """An output of a job that was not stored."""

    path: str
    why: str


class ArtifactsPage(View):
    """One page of a job's artifacts, by path."""

    state: str = Field(description="none, partial, complete, failed or removed")
    files: list[ArtifactView]
    skipped: list[SkippedView]
    next: str | None = Field(description="cursor of the next page, for `after`")
    total_files: int
    total_bytes: int
    removed: RemovedView | None = Field(
        None, description="when and by which policy they were deleted; null: they were not"
    )


class ReadContents(RequestModel):
    """Artifacts to read in one response."""

    paths: list[str] = Field(min_length=1, max_length=10_000, description="paths of the list of artifacts")
