import os
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from core.settings.group import PublicUrl, SettingsGroup
from core.system.canonical_host import is_loopback

PROCESS_BACKEND = "process"  # backend that simulates machine types on the host's CPU
_FENCE_SECONDS = 120.0


class WorkerSettings(SettingsGroup):
    host: str | None = Field(
        default=None, description="name of this machine, whose workers adopt each other's jobs; default: its hostname"
    )
    slots: int | None = Field(
        default=None, ge=1, description="jobs that run at once on this host; default: one per 2 CPUs, at least 2"
    )
    machine_types: list[str] | None = Field(
        default=None,
        description="machine types that this host offers, as a JSON list; default: all that its backends support",
    )
    gpus: list[str] | None = Field(
        default=None,
        description="indices of this host's GPUs that jobs may use, as a JSON list; default: all that the backend "
        "finds; simulated machines count none",
    )
    cpus: float | None = Field(
        default=None, gt=0, description="CPUs that the jobs on this host may request in total; default: all"
    )
    memory_mb: int | None = Field(
        default=None, ge=1, description="MiB of memory that the jobs on this host may request in total; default: all"
    )
    address: str | None = Field(
        default=None,
        description=(
            "name or address at which users reach this machine, for links to jobs' ports; must not be the "
            "dashboard's host name; default: GRADIENT_PORTS__BIND, or the machine's hostname if "
            "GRADIENT_PORTS__BIND is a wildcard address"
        ),
    )
    nodes_address: IPv4Address | None = Field(
        default=None,
        description="IPv4 address of this host for other hosts, needed to spread the nodes of one job over several "
        "hosts: such nodes, including containers, share this host's network and reach every service that listens "
        "here; default: no such nodes run here",
    )
    poll_seconds: float = Field(
        default=1.0, gt=0, description="seconds between polls for work when no notification comes"
    )
    lease_seconds: float = Field(
        default=60.0,
        description="seconds without a heartbeat until another worker on the same host may adopt a job",
    )
    lost_after_seconds: float = Field(
        default=900.0,
        gt=0,
        description="seconds without a heartbeat after which a host counts as lost, and its jobs are failed or retried",
    )
    sync_seconds: float = Field(default=10.0, gt=0, description="seconds between copies of a running job's artifacts")
    sweep_seconds: float = Field(
        default=30.0, gt=0, description="seconds between searches for lost jobs and what is left of ended ones"
    )
    service_url: PublicUrl | None = Field(
        default=None,
        description="address of the service for a worker with its own GRADIENT_HOME, which sends and fetches files "
        "there; default: the worker shares the service's folders",
    )

    @field_validator("service_url")
    @classmethod
    def _check_service_url(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "")
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ValueError("Use https, since a token and secrets are sent to another machine.")
        return value

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between heartbeats."""
        return self.lease_seconds / 6

    @property
    def max_slots(self) -> int:
        """Most jobs at once on this host: `slots`, else one per two CPUs, at least two."""
        return self.slots or max(2, (os.cpu_count() or 1) // 2)

    @property
    def self_fence_seconds(self) -> float:
        """Seconds without the database after which a worker ends jobs that could be restarted elsewhere."""
        return self.lost_after_seconds - min(_FENCE_SECONDS, self.lost_after_seconds / 4)


class ProcessSettings(SettingsGroup):
    """Jobs that run as processes of this host, on simulated machines."""

    sandbox: Literal["auto", "require", "off"] = Field(
        default="auto",
        description="run such jobs, package installations and git in a sandbox (bubblewrap): auto (if none is "
        "available, run without one and warn, but refuse jobs once a second API key is valid), require or off",
    )
    network: Literal["auto", "require", "off"] = Field(
        default="auto",
        description="give each job in a sandbox a network of its own: auto (where this host allows it; else the host's "
        "own, with a warning, and localhost alone once a second API key is valid), require or off",
    )
    cgroups: Literal["auto", "require", "off"] = Field(
        default="auto",
        description="limit such jobs with control groups: auto (if the worker may write to them; otherwise CPUs by "
        "affinity, and memory measured twice a second), require or off",
    )
    readable: list[Path] = Field(
        default=[],
        description="folders of this host that sandboxed jobs can read, at the same paths, as a JSON list",
    )


class MachineSettings(SettingsGroup):
    """The catalogue of machine types, and simulation."""

    file: Path | None = Field(
        default=None,
        description="TOML file that overrides or adds machine types (prices, specs); default: machines.toml under "
        "GRADIENT_HOME, if it exists",
    )
    host: str = Field(
        default="host", max_length=64, description="name of the machine type of this host itself; empty: none"
    )
    host_price: float = Field(default=0.0, ge=0, description="US dollars that an hour of this host costs")
    default: str | None = Field(
        default=None,
        max_length=200,
        description="machine type of jobs that do not name one; default: this host, otherwise CPU",
    )
    offer_simulated: bool = Field(
        default=True, description="offer machine types that this host can only simulate, for trying things out"
    )
    simulate: bool = Field(
        default=True,
        description="simulate every machine type on this computer's CPU; jobs and machine types are marked as "
        "simulated",
    )


class StatsdSettings(SettingsGroup):
    """Metrics that jobs send by gradient-statsd."""

    port: int = Field(
        default=8125, ge=0, le=65535, description="UDP port at which workers receive jobs' metrics (DogStatsD); 0: off"
    )


class ExecSettings(SettingsGroup):
    """Exec sessions. Service and workers need the same values."""

    enabled: bool = Field(
        default=True,
        description="allow users to run commands and shells in running jobs, and to reach their ports through the "
        "service",
    )


class EnvironmentSettings(SettingsGroup):
    """Python environments of jobs without containers (docs/python.md)."""

    default: list[str] | Literal["trainer"] = Field(
        default="trainer",
        description="packages of jobs whose folder does not declare any: a JSON list of requirements, [] for plain "
        "Python, or trainer (numpy, pandas, scikit-learn, matplotlib and tqdm in fixed versions, plus TensorFlow or "
        "gradient_trainer if a program imports them)",
    )
    max_mb: int = Field(
        default=20_480,
        ge=0,
        description="MiB that all environments and downloaded packages may use together; above this, unused ones are "
        "removed, least recently used first; 0: no limit",
    )
