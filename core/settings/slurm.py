from pathlib import Path

from pydantic import Field

from core.settings.group import SettingsGroup


class SlurmSettings(SettingsGroup):
    """A Slurm cluster to which this host submits jobs."""

    enabled: bool = Field(
        default=False,
        description="hand the jobs of Slurm's machine types over to the cluster, by sbatch, and run no others",
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
    ssh: str | None = Field(
        default=None,
        pattern=r"^[^-\s]\S*$",
        description="login node on which Slurm's commands are run over ssh, as ssh names it; its key must be known, "
        "and GRADIENT_HOME and this program must have the same paths there; default: this host is the login node",
    )
    container_program: str | None = Field(
        default=None,
        description="what runs jobs in containers: apptainer or singularity, the path of one, or pyxis; default: the "
        "first of these that there is",
    )
    container_mounts: list[str] = Field(
        default=[],
        description="further folders that containers have at the same path, as a JSON list, such as /scratch",
    )
    images_mb: int = Field(
        default=200_000,
        ge=0,
        description="MiB of container images to keep; above that, those that have been unused longest are deleted",
    )
