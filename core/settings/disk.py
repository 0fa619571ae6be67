"""Disk space: free space that is kept, quotas, logs."""

from pydantic import Field

from core.formatting import GIB
from core.settings.group import SettingsGroup


class DiskSettings(SettingsGroup):
    """Disk space: reserves and quotas."""

    min_free_mb: int = Field(
        default=1024,
        ge=0,
        description="MiB to keep free on the disks of this host; with less, uploads are rejected and no job is "
        "claimed; 0: no check",
    )
    job_mb: int = Field(
        default=102_400,
        ge=0,
        description="MiB of disk that one running job may use (workspace, artifacts, log, its container's own "
        "files); a job that uses more is stopped; 0: no limit",
    )
    host_mb: int = Field(
        default=0,
        ge=0,
        description="MiB that the folders of all attempts on this host may use together; above it, no job is "
        "claimed; 0: no limit",
    )
    project_mb: int = Field(
        default=0,
        ge=0,
        description="MiB of stored logs and artifacts of a project without a limit of its own; above it, the "
        "project's submissions are rejected, and uploads to its storage, which counts for them; 0: no limit",
    )
    artifact_mb: int = Field(
        default=51_200, ge=1, description="MiB of artifacts stored per attempt; the rest is left out"
    )
    artifact_files: int = Field(
        default=100_000, ge=1, description="artifact files stored per attempt; the rest is left out"
    )


class LogSettings(SettingsGroup):
    max_bytes: int = Field(
        default=GIB, description="bytes of output kept per job; the middle of longer output is left out"
    )
