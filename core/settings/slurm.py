from pathlib import Path

from pydantic import Field

from core.settings.group import SettingsGroup


class SlurmSettings(SettingsGroup):
    """A Slurm cluster to which this host submits jobs."""

    enabled: bool = Field(
        default=False, description="hand the jobs of Slurm's machine types over to the cluster, by sbatch"
    )
    poll_seconds: float = Field(
        default=2.0, ge=1, description="seconds between two queries of Slurm, each for all jobs of this worker"
    )
    options: list[str] = Field(
        default=[], description="further options of sbatch for every job, as a JSON list, such as --mail-type=FAIL"
    )
    bin: Path | None = Field(
        default=None, description="folder with Slurm's commands (sbatch, squeue, …); default: they are on the PATH"
    )
