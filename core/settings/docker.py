from pathlib import Path

from pydantic import Field, field_validator

from core.settings.group import SettingsGroup, require_host_and_port


class DockerSettings(SettingsGroup):
    url: str = Field(default="unix:///var/run/docker.sock", description="address of the Docker engine's socket")

    @field_validator("url")
    @classmethod
    def _can_be_read(cls, url: str) -> str:
        require_host_and_port(url)
        return url

    default_image: str = Field(default="python:3.12-slim", description="image for jobs that name no container")
    pull: str = Field(
        default="missing",
        description="when to pull images for jobs that do not specify it: missing, always or never",
        pattern="^(missing|always|never)$",
    )
    user: str | None = Field(
        default=None,
        description="user that jobs run as, UID:GID; default: the worker's user or, if the worker runs as root, a "
        "separate user for each project",
        pattern=r"^\d+:\d+$",
    )
    pids: int = Field(default=4096, ge=1, description="maximum processes and threads of one job")
    network: str = Field(
        default="gradient-jobs",
        description="network of the jobs' containers, created if missing; none: no network at all",
    )
    firewall: str = Field(
        default="try",
        description="firewall between jobs and this host, metadata addresses and the service: try (warn if it cannot "
        "be set up), require or off",
        pattern="^(try|require|off)$",
    )
    firewall_image: str | None = Field(
        default=None,
        description="image with iptables that the engine runs to set up the firewall if the worker lacks the rights; "
        "default: the worker sets it up",
        min_length=1,
    )
    blocked: list[str] = Field(
        default=[], description="further networks (CIDR) that jobs must not reach, as a JSON list"
    )


class ImageSettings(SettingsGroup):
    """Container images of jobs: short names, removal from hosts, and builds."""

    file: Path | None = Field(default=None, description="TOML file that overrides or adds short names of images")
    max_disk_percent: float = Field(
        default=85.0,
        gt=0,
        le=100,
        description="used percentage of the engine's disk above which unused images of earlier jobs are removed, least "
        "recently used first; 100: never",
    )
    builds: bool = Field(
        default=False,
        description="let jobs build an image from their workspace's Dockerfile; the steps run as root in their "
        "containers, with the engine's default capabilities and without the no-new-privileges limit",
    )
