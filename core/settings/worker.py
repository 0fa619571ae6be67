"""Settings of the supervisor on each host and of its machines."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from core.formatting import GIB
from core.settings.group import SettingsGroup

MOCK_BACKEND = "mock"
"""Backend that simulates machine types on the host's CPU."""
_FENCE_SECONDS = 120.0


class LogSettings(SettingsGroup):
    """Limits of job logs."""

    max_bytes: int = Field(default=GIB, description="bytes of output kept per job; past it the middle is left out")
    tail_bytes: int = Field(default=16 * 1024**2, description="bytes of the end kept when output passes max_bytes")


class DiskSettings(SettingsGroup):
    """Disk space: reserves and quotas."""

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


class WorkerSettings(SettingsGroup):
    """This host's supervisor."""

    host: str | None = Field(
        default=None, description="name of this machine; its workers adopt each other's jobs; default: its hostname"
    )
    slots: int | None = Field(
        default=None, description="jobs at once on this host; default: one per 2 CPUs, at least 2"
    )
    machine_types: list[str] | None = Field(
        default=None, description="machine types this host takes, as a JSON list; default: all that its backends run"
    )
    gpus: list[str] | None = Field(
        default=None,
        description="GPUs of this host, as a JSON list of their indices; default: as the backend finds "
        "them; simulated machines count none",
    )
    cpus: float | None = Field(default=None, description="CPUs that jobs may ask for on this host; default: all")
    memory_mb: int | None = Field(default=None, description="MiB that jobs may ask for on this host; default: all")
    default_memory_mb: int | None = Field(
        default=None,
        ge=0,
        description="MiB of memory of a container whose job names none; default: 9/10 of the host's, divided by its "
        "slots; 0: 9/10 of the host's",
    )
    address: str | None = Field(
        default=None,
        description="name or address that people reach this machine at, for links to jobs' ports; not the dashboard's "
        "host name; default: GRADIENT_PORTS__BIND, or the machine's name where that is every address",
    )
    poll_seconds: float = Field(default=1.0, description="seconds between polls for work when no notification comes")
    heartbeat_seconds: float = Field(default=10.0, description="seconds between heartbeats")
    lease_seconds: float = Field(default=60.0, description="a heart silent this long may be adopted on the same host")
    lost_after_seconds: float = Field(default=900.0, description="a host silent this long is given up")
    sync_seconds: float = Field(default=10.0, description="seconds between copies of a running job's artifacts")
    sample_seconds: float = Field(default=2.0, description="seconds between samples of a job's CPU and memory")
    collect_seconds: float = Field(default=900.0, description="seconds allowed for completing artifacts at the end")
    sweep_seconds: float = Field(default=30.0, description="seconds between looks for what needs repair")
    renotify_seconds: float = Field(
        default=30.0, description="a job due for this long is announced once more: its message may have been lost"
    )
    sandbox: Literal["auto", "require", "off"] = Field(
        default="auto",
        description="run git for jobs in a sandbox (bubblewrap): auto (without one where it cannot be had, saying so), "
        "require or off",
    )
    fetch_seconds: float = Field(default=900.0, gt=0, description="seconds that fetching a workspace from git may take")
    fetch_silent_seconds: float = Field(
        default=60.0, gt=0, description="seconds without a byte after which a fetch from git is given up"
    )
    fetch_memory_mb: int = Field(default=4096, ge=256, description="MiB of memory of each process of a fetch from git")
    keep_scratch: bool = Field(default=False, description="keep each attempt's scratch directory, for debugging")

    @property
    def max_slots(self) -> int:
        """Most jobs at once on this host: `slots`, else one per two CPUs, at least two."""
        return self.slots or max(2, (os.cpu_count() or 1) // 2)

    @property
    def self_fence_seconds(self) -> float:
        """Seconds without the database after which a worker ends jobs that could be restarted elsewhere."""
        return self.lost_after_seconds - min(_FENCE_SECONDS, self.lost_after_seconds / 4)


class MachineSettings(SettingsGroup):
    """The catalogue of machine types, and simulation."""

    file: Path | None = Field(default=None, description="TOML that overrides or adds machine types (prices, specs)")
    simulate: bool = Field(default=True, description="run every machine type on this computer's CPU, saying so")


class StatsdSettings(SettingsGroup):
    """Metrics that jobs send by gradient-statsd."""

    port: int = Field(
        default=8125, ge=0, le=65535, description="UDP port that workers receive jobs' metrics at (DogStatsD); 0: none"
    )
