from pydantic import Field

from core.settings.group import SettingsGroup
from core.settings.limits import MAX_DAYS


class RecordSettings(SettingsGroup):
    """The record of who did what, which `gradient-server audit` prints."""

    reads: bool = Field(default=True, description="record who reads jobs and projects that are closed")
    days: int | None = Field(
        default=None,
        ge=1,
        le=MAX_DAYS,
        description="days that the record is kept; what was done to jobs stays with them; default: forever",
    )
