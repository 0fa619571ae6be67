from pydantic import Field

from core.settings.group import SettingsGroup

MAX_DAYS = 36_500  # longest policy: a hundred years


class RetentionSettings(SettingsGroup):
    """Retention periods; a project can override those of its logs and artifacts."""

    logs_days: int | None = Field(
        default=None, ge=1, le=MAX_DAYS, description="days that logs are kept after a job's end; default: for good"
    )
    artifacts_days: int | None = Field(
        default=None, ge=1, le=MAX_DAYS, description="days that artifacts are kept after a job's end; default: for good"
    )
    workspaces_days: int = Field(
        default=30,
        ge=0,
        le=MAX_DAYS,
        description="days that an uploaded workspace is kept after the end of the last job on it; 0: for good",
    )
