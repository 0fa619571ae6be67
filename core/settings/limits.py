from typing import ClassVar

from pydantic import Field

from core.settings.group import SettingsGroup

MAX_DAYS = 36_500  # longest policy: a hundred years


class LimitSettings(SettingsGroup):
    """Limits per API key. A request over a limit gets 429 with a Retry-After.

    What the API counts is counted in its memory; each of its processes enforces its share.
    """

    shared: ClassVar = (
        *("requests_per_minute", "submissions_per_minute", "streams", "exec_sessions", "searches", "uploads"),
    )
    requests_per_minute: int = Field(
        default=12_000, ge=0, description="requests per minute of one API key; counted by the API; 0: no limit"
    )
    submissions_per_minute: int = Field(
        default=3000,
        ge=0,
        description="submissions, dry runs and clones per minute of one API key; counted by the API; 0: no limit",
    )
    queued_per_key: int = Field(default=20_000, ge=0, description="queued jobs of one API key; 0: no limit")
    queued_per_project: int = Field(default=50_000, ge=0, description="queued jobs of one project; 0: no limit")
    priority: int = Field(default=100, ge=0, le=100, description="highest priority that a submission may request")
    streams: int = Field(
        default=100, ge=0, description="logs that one API key may follow at once; counted by the API; 0: no limit"
    )
    exec_sessions: int = Field(
        default=16, ge=0, description="exec sessions that one API key may have at once; counted by the API; 0: no limit"
    )
    searches: int = Field(
        default=4,
        ge=0,
        description="searches, metric lists, comparisons, previews and artifact deletions that run at once for one API "
        "key; counted by the API; further ones wait; 0: no limit",
    )
    uploads: int = Field(
        default=4,
        ge=0,
        description="submissions with an archive, form checks, JSON bodies over 64 KiB and storage uploads that are "
        "processed at once for one API key; counted by the API; further ones wait; 0: no limit",
    )


class RetentionSettings(SettingsGroup):
    """Retention periods; a project can override those of its logs and artifacts."""

    logs_days: int | None = Field(
        default=None, ge=1, le=MAX_DAYS, description="days that logs are kept after a job's end; default: forever"
    )
    artifacts_days: int | None = Field(
        default=None, ge=1, le=MAX_DAYS, description="days that artifacts are kept after a job's end; default: forever"
    )
    workspaces_days: int = Field(
        default=30,
        ge=0,
        le=MAX_DAYS,
        description="days that an uploaded workspace is kept after the end of the last job on it; 0: forever",
    )
    record_days: int | None = Field(
        default=None, ge=1, le=MAX_DAYS, description="days that the record of changes is kept; default: forever"
    )
    record_reads: bool = Field(default=True, description="record who reads jobs and projects that are closed")
