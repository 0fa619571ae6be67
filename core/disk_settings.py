"""Room on disks, as settings."""

from pydantic import BaseModel, Field


class DiskSettings(BaseModel):
    """Room on disks: what is kept free, and how much jobs may take."""

    min_free_mb: int = Field(
        default=1024,
        ge=0,
        description="MiB kept free on the disks of this host: with less, uploads are refused and no job is claimed; 0: "
        "not looked at",
    )
    job_mb: int = Field(
        default=102_400,
        ge=0,
        description="MiB of disk that one running job may take (workspace, artifacts, log, its container's own files); "
        "one that takes more is ended; 0: no limit",
    )
    host_mb: int = Field(
        default=0,
        ge=0,
        description="MiB that the folders of all attempts on this host may take together; with more, no job is "
        "claimed; 0: no limit",
    )
    project_mb: int = Field(
        default=0,
        ge=0,
        description="MiB of logs and artifacts that are kept of a project which has no limit of its own; with more, "
        "its submissions are refused; 0: no limit",
    )
    artifact_mb: int = Field(
        default=51_200, ge=1, description="MiB of artifacts that are kept of one attempt; the rest is left out"
    )
    artifact_files: int = Field(
        default=100_000, ge=1, description="files of artifacts that are kept of one attempt; the rest is left out"
    )
    check_seconds: float = Field(
        default=10.0, gt=0, description="seconds between measurements of the disk that a running job takes"
    )
