from pydantic import Field

from service.schemas.base import LimitedList, QueryModel, RequestModel, Time, View
from service.schemas.jobs import RemovedView
from service.schemas.outputs.logs import ReadLines, SearchLog

MAX_ATTEMPT = 2**31 - 1  # largest number of an attempt


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

    paths: LimitedList[str] = Field(min_length=1, max_length=10_000, description="paths of the list of artifacts")


class _TextOfJob(QueryModel):
    path: str = Field(description="path of a text artifact")
    attempt: int | None = Field(None, ge=1, le=MAX_ATTEMPT, description="number of an earlier attempt")


class ReadText(_TextOfJob, ReadLines):
    """The lines of a text artifact to read."""


class SearchText(_TextOfJob, SearchLog):
    """A search in a text artifact."""


class TextLine(View):
    """One line of a text artifact."""

    line: int = Field(description="line number from 1, without gaps")
    message: str = Field(description="its text; of a long line the beginning, with a note")


class TextPage(View):
    """Some lines of a text artifact."""

    lines: list[TextLine]
    total: int = Field(description="number of lines in the text")
    complete: bool = Field(description="whether no more lines follow")
