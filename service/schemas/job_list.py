from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field

from core.search.query_text import MAX_QUERY
from service.schemas.base import QueryModel


def _to_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be in the years 1 to 9999 in UTC") from None


def refuse_number(value: object) -> object:
    """Refuse what Pydantic would take for seconds since 1970."""
    try:
        float(str(value))
    except ValueError:
        return value
    raise ValueError("must be a date and a time with its zone, such as 2026-01-31T12:00:00Z")


class ListJobs(QueryModel):
    """Filters of a list of jobs."""

    state: str | None = Field(
        None,
        description="states, comma separated: Pending, Running, Kept, Succeeded (or Stopped), Failed, Error, Cancelled",
    )
    project: str | None = Field(None, description="name of the project")
    project_id: str | None = None
    machine_type: str | None = None
    name: str | None = Field(None, description="exact name of the job")
    id_prefix: str | None = Field(None, pattern="^j[a-z0-9]{0,13}$", description="beginning of the job's id")
    array: str | None = Field(
        None, max_length=32, description="id of an array: its members; `ID_7`: the member with index 7"
    )
    fold: bool = Field(
        default=False,
        description="show only the first member of each array, with the number of members per state in `arrayMembers`",
    )
    tag: str | None = Field(None, description="tags, comma separated: jobs with any of them")
    query: str | None = Field(
        None, min_length=1, max_length=200, description="text in the job's name or command, ignoring case"
    )
    since: Annotated[AwareDatetime, BeforeValidator(refuse_number), AfterValidator(_to_utc)] | None = Field(
        None, description="jobs created at this time or later"
    )
    mine: bool = Field(
        default=False, description="only your own jobs: submitted with this key or another key of the same user"
    )
    q: str | None = Field(
        None,
        max_length=MAX_QUERY,
        description="query: state:failed project:nlp tag:a,b acc>0.9 lr=0.01 params.opt=adam created<2d "
        '"text in name or command"',
    )
    sort: str | None = Field(
        None,
        max_length=200,
        description="name, state, machine, project, created, finished, duration, cost, a metric or params.NAME; "
        "prefix - for highest first. Except by created, only the newest 10,000 matches are sorted",
    )
    metrics: str | None = Field(
        None,
        max_length=2000,
        description="names of metrics, comma separated: their last values are included in the jobs",
    )
    limit: int = Field(50, ge=1, le=500)
    after: str | None = Field(None, description="`next` of the previous page")
    before: str | None = Field(None, description="`previous` of the next page")
