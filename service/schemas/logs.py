"""Schemas of logs."""

from pydantic import Field

from service.schemas.base import QueryModel, View
from service.schemas.jobs import MAX_LINE, RemovedView


class ReadLines(QueryModel):
    """The lines of a log or a text to read."""

    line: int = Field(0, ge=0, le=MAX_LINE, description="return lines after this number; 0: from the start")
    limit: int = Field(2000, ge=1, le=10_000)
    tail: int | None = Field(None, ge=0, le=MAX_LINE, description="return only this number of last lines")


class ReadLog(ReadLines):
    """The lines of a log to read."""

    max_behind: int | None = Field(
        None,
        ge=1,
        le=MAX_LINE,
        description="in an event stream: skip to the last lines when more lines than this are unsent; "
        "default: every line is sent",
    )


class SearchLog(QueryModel):
    """A search in a log."""

    query: str = Field(min_length=1, max_length=200, pattern=r"^[^\r\n]+$", description="literal text, of one line")
    match_case: bool = Field(default=False, description="distinguish upper and lower case")
    line: int = Field(0, ge=0, le=MAX_LINE, description="search the lines after this number; 0: from the start")
    limit: int = Field(1000, ge=1, le=10_000)


class LogRow(View):
    """One line of a job's output."""

    line: int = Field(description="line number from 1, without gaps")
    timestamp: str
    message: str


class LogMatches(View):
    """Lines of a job's log that contain a text."""

    lines: list[int] = Field(description="their numbers, ascending")
    searched_to: int = Field(description="the last line searched; continue after it with `line`")
    complete: bool = Field(description="whether all lines that exist now were searched")


class LogPage(View):
    """Some lines of a job's log."""

    lines: list[LogRow]
    total: int = Field(description="number of lines in the log so far; an unfinished last line counts at the job's end")
    complete: bool = Field(description="whether the job has ended and no more lines follow")
    partial: str | None = Field(
        None, description="text so far of the unfinished line after these, such as a progress bar; null: there is none"
    )
    removed: RemovedView | None = Field(
        None, description="when and by which policy the log was deleted; null: it was not"
    )
