from typing import Literal

from pydantic import Field

from core.settings.group import SettingsGroup


class EnvironmentSettings(SettingsGroup):
    """Python environments of jobs without containers (docs/jobs.md)."""

    default: list[str] | Literal["trainer"] = Field(
        default="trainer",
        description="packages of jobs whose folder names none: a JSON list of requirements, [] for Python alone, or "
        "trainer (numpy, pandas, scikit-learn, matplotlib and tqdm, in fixed versions; where a program imports it, "
        "also TensorFlow or gradient_trainer)",
    )
    max_mb: int = Field(
        default=20_480,
        ge=0,
        description="MiB that all environments and downloaded packages may use together; above it, those that no job "
        "uses are removed, the least recently used first; 0: no limit",
    )
