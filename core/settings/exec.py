from pydantic import Field

from core.settings.group import SettingsGroup


class ExecSettings(SettingsGroup):
    """Exec sessions. Service and workers need the same values."""

    enabled: bool = Field(
        default=True,
        description="allow users to run commands and shells in running jobs, and to reach their ports through the "
        "service",
    )
    idle_seconds: float = 3600.0  # without input and output after which an exec session ends
    max_seconds: float = 43_200.0  # after which an exec session ends
