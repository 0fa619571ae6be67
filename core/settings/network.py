"""Outgoing connections of jobs, ports of jobs, the ssh endpoint, and TensorBoard, which is opened beside them."""

from pydantic import Field

from core.settings.group import PublicUrl, SettingsGroup


class EgressSettings(SettingsGroup):
    """Private addresses that jobs reach."""

    allowed: list[str] = Field(
        default=[],
        description="hosts and networks (CIDR) that jobs and git reach although they are not public, git also on the "
        "worker's own host, as a JSON list",
    )


class NotificationSettings(SettingsGroup):
    """Receivers of notifications."""

    allowed: list[str] = Field(
        default=[],
        description="hosts and networks (CIDR) of receivers that may be told although they are not public, as a JSON "
        "list",
    )


class PortSettings(SettingsGroup):
    bind: str = Field(
        default="127.0.0.2",
        description=(
            "address on this host at which jobs' ports are opened; must not be an address of the dashboard, "
            "because browsers would send its sessions to jobs"
        ),
    )
    range_start: int = Field(
        default=20_000, ge=1024, le=65_535, description="first host port for jobs that do not name one"
    )
    range_end: int = Field(
        default=29_999,
        ge=1024,
        le=65_535,
        description="last host port for jobs that do not name one; below GRADIENT_PORTS__RANGE_START: no such ports",
    )


class SshSettings(SettingsGroup):
    """The ssh endpoint for running jobs (docs/ssh.md), which the first of the API's processes serves."""

    bind: str = Field(default="127.0.0.1", description="address on this host at which the ssh endpoint listens")
    port: int = Field(default=2222, ge=0, le=65_535, description="port of the ssh endpoint; 0: there is none")


class TensorBoardSettings(SettingsGroup):
    """TensorBoard for jobs, which the API starts on demand at the address of jobs' ports (GRADIENT_PORTS__BIND)."""

    port: int = Field(default=0, ge=0, le=65_535, description="port for TensorBoard; 0: any free port")
    url: PublicUrl | None = Field(
        default=None,
        description="URL at which users reach that port, if it is behind a proxy; must not have the dashboard's host "
        "name; default: http://, the host of links to jobs' ports, and the port",
    )
