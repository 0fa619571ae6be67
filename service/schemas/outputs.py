from typing import Annotated, Literal

from fastapi import Query
from pydantic import ConfigDict, Field

from core.errors import SpecInvalid
from service.schemas.base import LimitedList, Number, QueryModel, RequestModel, Time, View
from service.schemas.jobs import MAX_LINE, RemovedView

MAX_TEXTS = 500  # most lines of a search that returns their texts
TEXT_BYTES = 2000  # bytes of a line that a search returns
MAX_ATTEMPT = 2**31 - 1  # largest number of an attempt

AttemptNumber = Annotated[
    int | None, Query(ge=1, le=MAX_ATTEMPT, description="number of an earlier attempt; default: the latest")
]


class ReadLines(QueryModel):
    """The lines of a log or a text to read."""

    line: int = Field(0, ge=0, le=MAX_LINE, description="return lines after this number; 0: from the start")
    limit: int = Field(2000, ge=1, le=10_000)
    tail: int | None = Field(None, ge=0, le=MAX_LINE, description="return only this many of the last lines")


class ReadLog(ReadLines):
    """The lines of a log to read."""

    max_behind: int | None = Field(
        None,
        ge=1,
        le=MAX_LINE,
        description=(
            "in an event stream: skip to the last lines if more lines than this are unsent; default: every line is sent"
        ),
    )


class SearchLog(QueryModel):
    """A search in a log."""

    query: str | None = Field(
        None, min_length=1, max_length=200, pattern=r"^[^\r\n]+$", description="literal text without line breaks"
    )
    errors: bool = Field(default=False, description="find lines that look like errors, in place of `query`")
    texts: bool = Field(default=False, description="also return the text of at most 500 lines")
    match_case: bool = Field(default=False, description="distinguish upper and lower case")
    line: int = Field(0, ge=0, le=MAX_LINE, description="search the lines after this number; 0: from the start")
    limit: int = Field(1000, ge=1, le=10_000)

    def text(self) -> str | None:
        """Return the text to find; None: what looks like an error."""
        if self.errors == (self.query is not None):
            raise SpecInvalid("Give either `query` or `errors=true`.", field="query")
        return self.query

    def most(self) -> int:
        """Return the largest number of lines to find."""
        return min(self.limit, MAX_TEXTS) if self.texts else self.limit


class LogRow(View):
    """One line of a job's output."""

    line: int = Field(description="line number from 1, without gaps")
    timestamp: str
    message: str


class LogMatches(View):
    """Lines of a job's log that contain a text."""

    lines: list[int] = Field(description="their numbers, ascending")
    texts: list[str] | None = Field(
        None, description="the lines' text, for long lines the beginning; null: not requested"
    )
    searched_to: int = Field(description="the last line searched; continue after it with `line`")
    complete: bool = Field(description="whether all existing lines were searched")


class LogPage(View):
    """Some lines of a job's log."""

    lines: list[LogRow]
    total: int = Field(
        description="number of lines in the log so far; an unfinished last line counts once the job has ended"
    )
    complete: bool = Field(description="whether the job has ended and no more lines follow")
    partial: str | None = Field(
        None, description="text so far of the unfinished line that follows, such as a progress bar; null: there is none"
    )
    removed: RemovedView | None = Field(
        None, description="when and by which policy the log was deleted; null: it was not deleted"
    )


class NumbersView(View):
    model_config = ConfigDict(ser_json_inf_nan="strings")


class PointView(NumbersView):
    """One value of a metric."""

    step: float | None
    time: Time
    value: Number


class SeriesView(NumbersView):
    """One metric over time."""

    name: str
    source: Literal["job", "system"]
    points: list[PointView]
    last: Number | None
    min: float | None = Field(description="the lowest finite value")
    max: float | None = Field(description="the highest finite value")


_LEFT_OUT = "data left out because of a limit other than `maxPoints`, with that limit; null: none"


class Metrics(View):
    """A job's metrics."""

    series: list[SeriesView]
    left_out: str | None = Field(None, description=_LEFT_OUT)


class MetricRowView(NumbersView):
    """Values that a job wrote at once, or one sample of its machine."""

    attempt: int
    source: Literal["job", "system"]
    step: float | None
    time: Time
    values: dict[str, Number]


class MetricRowsPage(View):
    """One page of a job's metrics, with all values that are stored."""

    rows: list[MetricRowView]
    next: str | None = Field(description="cursor of the next page, for `after`")
    left_out: str | None = Field(None, description=_LEFT_OUT)


class ArtifactView(View):
    """An artifact of a job."""

    path: str
    size: int
    sha256: str | None = Field(description="null while the job may still write the file")
    modified: Time
    mode: int = Field(description="permission bits")


class ArtifactFolderView(View):
    """A folder of a job's artifacts."""

    path: str
    modified: Time
    mode: int = Field(description="permission bits")


class SkippedView(View):
    """An output of a job that was not stored."""

    path: str
    why: str


class ArtifactsPage(View):
    """One page of a job's artifacts, by path."""

    state: str = Field(description="none, partial, complete, failed or removed")
    files: list[ArtifactView]
    folders: list[ArtifactFolderView] = Field(description="all folders, including empty ones; only on the first page")
    skipped: list[SkippedView]
    next: str | None = Field(description="cursor of the next page, for `after`")
    total_files: int
    total_bytes: int
    removed: RemovedView | None = Field(
        None, description="when and by which policy they were deleted; null: they were not deleted"
    )


class ReadContents(RequestModel):
    """Artifacts to read in one response."""

    paths: LimitedList[str] = Field(min_length=1, max_length=10_000, description="paths from the list of artifacts")


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
    message: str = Field(description="its text; for a long line the beginning, with a note")


class TextPage(View):
    """Some lines of a text artifact."""

    lines: list[TextLine]
    total: int = Field(description="number of lines in the text")
    complete: bool = Field(description="whether no more lines follow")
