"""Settings of containers, their images, egress and ports."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from core.settings.group import SettingsGroup

_LAST_UID = 2**31 - 2


class DockerSettings(SettingsGroup):
    """Containers on this host."""

    url: str = Field(default="unix:///var/run/docker.sock", description="Docker engine's socket")
    timeout_seconds: float = Field(default=30.0, description="seconds that one answer of the engine may take")
    engine_retry_seconds: float = Field(
        default=60.0, description="seconds a job's start waits for an engine that does not answer"
    )
    default_image: str = Field(default="python:3.12-slim", description="image of jobs that name no container")
    pull: str = Field(
        default="missing",
        description="when images are pulled for jobs that do not say: missing, always or never",
        pattern="^(missing|always|never)$",
    )
    pull_seconds: float = Field(default=3600.0, description="seconds that pulling an image may take")
    user: str | None = Field(
        default=None,
        description="user that jobs run as, UID:GID; default: the worker's own; where that is root, a user of its own "
        "for each project",
        pattern=r"^\d+:\d+$",
    )
    first_uid: int = Field(
        default=1_879_048_192,
        ge=1,
        le=_LAST_UID,
        description="first of the user numbers that a worker that is root gives to projects; nothing else on the host "
        "should have them",
    )
    last_uid: int = Field(default=_LAST_UID, ge=1, le=_LAST_UID, description="last of these user numbers")
    datasets_writable: bool = Field(
        default=False, description="let jobs write into /storage/datasets, as far as that folder's own mode does"
    )
    pids: int = Field(default=4096, description="most processes and threads of one job")
    shm_mb: int = Field(default=1024, description="MiB of shared memory (/dev/shm) of one job")
    gpu_idle_max_memory_mb: int = Field(
        default=512, ge=0, description="MiB of a GPU's memory that others may use before no job gets it"
    )
    gpu_idle_max_percent: float = Field(
        default=20.0, ge=0, le=100, description="percent of a GPU's time that others may use before no job gets it"
    )
    old_toolkit: bool = Field(
        default=False,
        description="hand GPUs to jobs also by an NVIDIA Container Toolkit before 1.17.8, which lets a container "
        "become root of the host",
    )
    capabilities: list[str] = Field(default=[], description="Linux capabilities that jobs keep, as a JSON list")
    network: str = Field(
        default="gradient-jobs", description="network of the jobs' containers, made if missing; none: no network at all"
    )
    firewall: str = Field(
        default="try",
        description="firewall that keeps jobs from this host, metadata addresses and the service: try (warn if it "
        "cannot be set), require or off",
        pattern="^(try|require|off)$",
    )
    blocked: list[str] = Field(default=[], description="more networks (CIDR) that jobs must not reach, as a JSON list")

    @model_validator(mode="after")
    def _has_users(self) -> Self:
        if self.last_uid < self.first_uid:
            raise ValueError(f"last_uid ({self.last_uid}) must not be below first_uid ({self.first_uid})")
        return self


class ImageSettings(SettingsGroup):
    """Container images of jobs: short names, removal from hosts, and builds."""

    file: Path | None = Field(default=None, description="TOML that overrides or adds short names of images")
    max_disk_percent: float = Field(
        default=85.0,
        gt=0,
        le=100,
        description="share of the engine's disk above which images that jobs brought and nothing uses are removed, the "
        "longest unused first; 100: never",
    )
    unused_ttl_seconds: float = Field(
        default=600.0, ge=0, description="an image that a job used less than this ago is not removed"
    )
    built_ttl_seconds: float = Field(
        default=86_400.0,
        ge=0,
        description="images built for a job go this long after their last use, whatever the disk",
    )
    affinity_seconds: float = Field(
        default=5.0, ge=0, description="seconds that a job is left to a host that holds its image and has room"
    )
    builds: bool = Field(
        default=False,
        description="let jobs build an image from their workspace's Dockerfile: its steps run as root of their "
        "containers, with the engine's usual capabilities and without its limit of new privileges",
    )
    build_seconds: float = Field(default=3600.0, gt=0, description="seconds that building an image may take")
    build_memory_mb: int | None = Field(
        default=None,
        ge=16,
        description="MiB of memory of a build's steps; default: what its job asks for, else as of a job "
        "that names none",
    )
    build_cpus: float | None = Field(
        default=None, gt=0, description="CPUs of a build's steps; default: what its job asks for, else all"
    )
    build_cgroup: str | None = Field(
        default=None,
        description="control group that a build's steps run in, which limits what the engine's builder cannot, "
        "processes above all: a slice of systemd, or a path where Docker's driver is cgroupfs",
        min_length=1,
    )
    build_disk_percent: float = Field(
        default=90.0, gt=0, le=100, description="share of the engine's disk in use at which a build ends; 100: never"
    )
    build_network: str | None = Field(
        default=None, description="network of a build's steps; default: that of the jobs' containers; none: none at all"
    )


class EgressSettings(SettingsGroup):
    """Egress policy for addresses named by users: git servers and registries."""

    schemes: list[Literal["https", "http"]] = Field(
        default=["https"], description="schemes of git addresses that workers fetch, as a JSON list of https and http"
    )
    allowed: list[str] = Field(
        default=[],
        description="hosts and networks (CIDR) that may be connected to though not public, as a JSON list",
    )


class PortSettings(SettingsGroup):
    """Host ports for jobs."""

    bind: str = Field(
        default="127.0.0.2",
        description="address on this host that containers' ports are opened at; not one that the dashboard is reached "
        "at, whose browser sessions jobs would be sent",
    )
    range_start: int = Field(default=20_000, ge=1024, le=65_535, description="first port that jobs get which name none")
    range_end: int = Field(default=29_999, ge=1024, le=65_535, description="last one; fewer than first: none")
