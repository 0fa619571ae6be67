"""All settings, read once from GRADIENT_* variables; one nested group per concern.

`GRADIENT_WORKER__SLOTS=4` sets `settings.worker.slots`. `.env.example` lists them all.
"""

import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from core.formatting import GIB
from core.settings import variables
from core.settings.api import ApiSettings, OidcSettings, SignInSettings
from core.settings.cloud import BucketSettings, GcsSettings, StoreSettings, TpuSettings
from core.settings.database import SQLITE, DatabaseSettings, sqlite_file
from core.settings.docker import DockerSettings, ImageSettings
from core.settings.group import SettingsGroup, require_host_and_port
from core.settings.limits import LimitSettings, RetentionSettings
from core.settings.network import EgressSettings, NotificationSettings, PortSettings, SshSettings, TensorBoardSettings
from core.settings.slurm import SlurmSettings
from core.settings.worker import (
    PROCESS_BACKEND,
    EnvironmentSettings,
    ExecSettings,
    MachineSettings,
    ProcessSettings,
    StatsdSettings,
    WorkerSettings,
)
from core.system.canonical_host import EVERY_ADDRESS, canonical_host

_PORTS = {"postgresql": 5432, "postgres": 5432, "redis": 6379, "rediss": 6379, "amqp": 5672}


class DiskSettings(SettingsGroup):
    """Disk space: reserves and quotas."""

    min_free_mb: int = Field(
        default=1024,
        ge=0,
        description="MiB to keep free on this host's disks; with less, uploads are rejected and no jobs are claimed; "
        "0: no check",
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
        description="MiB that the folders of all attempts on this host may use together; above this, no jobs are "
        "claimed; 0: no limit",
    )
    project_mb: int = Field(
        default=0,
        ge=0,
        description="MiB of stored logs, artifacts and storage for projects without their own limit; above this, "
        "submissions and uploads to the project's storage are rejected; 0: no limit",
    )


class LogSettings(SettingsGroup):
    max_bytes: int = Field(
        default=GIB, description="bytes of output kept per job; the middle of longer output is left out"
    )


class SecretSettings(SettingsGroup):
    encryption_keys: list[SecretStr] = Field(
        default=[],
        description="encryption keys (32 bytes in URL-safe Base64) as a JSON list, the first for new values; "
        "default: those in secrets.key under GRADIENT_HOME, which is created when first needed",
    )


class QueueSettings(SettingsGroup):
    """The message broker, which wakes workers on other hosts."""

    broker_url: str | None = Field(
        default=None,
        description="URL of the Celery broker: redis://…, rediss://… or amqp://…; default: none, workers only poll",
        pattern=r"^((rediss?|amqps?|memory)://|redis\+socket:///)",
    )

    @field_validator("broker_url")
    @classmethod
    def _can_be_read(cls, url: str | None) -> str | None:
        if url is not None:
            require_host_and_port(url)
        return url


class TracingSettings(SettingsGroup):
    """OpenTelemetry traces; OTEL_* variables set destination and sampling."""

    enabled: bool = Field(default=False, description="send traces to OTEL_EXPORTER_OTLP_ENDPOINT (OTLP over HTTP)")


class Settings(SettingsGroup, BaseSettings):
    """All settings: from variables, and from `values` in their place.

    Raises `SettingsInvalid`: some cannot be read.
    """

    # An empty GRADIENT_HOME would be the current folder.
    model_config = SettingsConfigDict(
        env_prefix=variables.PREFIX, env_nested_delimiter="__", env_ignore_empty=True, extra="forbid"
    )

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - of each group's type
        invalid: ValidationError | None = None
        try:
            super().__init__(**values)
        except ValidationError as error:
            invalid = error
        if (refusal := variables.refusal(type(self), invalid)) is not None:
            raise refusal from invalid

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: object, **__: object
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, variables.Variables(settings_cls)

    home: Path = Field(default=Path("~/.gradient-jobs"), description="folder for everything that the service stores")
    log_format: str = Field(
        default="console", description="format of the service's own logs: console or json", pattern="^(console|json)$"
    )
    log_level: str = Field(
        default="info",
        description="lowest level in the service's own logs: debug, info, warning or error",
        pattern="^(?i:debug|info|warning|error|critical)$",
    )
    api: ApiSettings = ApiSettings()
    sign_in: SignInSettings = SignInSettings()
    oidc: OidcSettings = OidcSettings()
    limits: LimitSettings = LimitSettings()
    database: DatabaseSettings = DatabaseSettings()
    queue: QueueSettings = QueueSettings()
    logs: LogSettings = LogSettings()
    disk: DiskSettings = DiskSettings()
    worker: WorkerSettings = WorkerSettings()
    process: ProcessSettings = ProcessSettings()
    machines: MachineSettings = MachineSettings()
    docker: DockerSettings = DockerSettings()
    images: ImageSettings = ImageSettings()
    environments: EnvironmentSettings = EnvironmentSettings()
    egress: EgressSettings = EgressSettings()
    notifications: NotificationSettings = NotificationSettings()
    exec: ExecSettings = ExecSettings()
    ports: PortSettings = PortSettings()
    ssh: SshSettings = SshSettings()
    tensorboard: TensorBoardSettings = TensorBoardSettings()
    secrets: SecretSettings = SecretSettings()
    slurm: SlurmSettings = SlurmSettings()
    tpu: TpuSettings = TpuSettings()
    gcs: GcsSettings = GcsSettings()
    store: StoreSettings = StoreSettings()
    bucket: BucketSettings = BucketSettings()
    statsd: StatsdSettings = StatsdSettings()
    retention: RetentionSettings = RetentionSettings()
    tracing: TracingSettings = TracingSettings()

    @field_validator("home")
    @classmethod
    def _check_home(cls, value: Path) -> Path:
        if ":" in str(value):
            raise ValueError(
                "The path has a colon, which the search path for programs (PATH) does not allow. Choose another folder."
            )
        try:
            value.expanduser()
        except RuntimeError:
            raise ValueError("No user with that name has a home folder. Write the path without ~.") from None
        return value

    @property
    def root(self) -> Path:
        """`home`, absolute, with `~` resolved."""
        return self.home.expanduser().absolute()

    @property
    def database_url(self) -> str:
        return self.database.url or f"{SQLITE}{quote(str(self.root / 'gradient.db'))}"

    @property
    def sqlite_file(self) -> Path | None:
        """The file of the database; None if it is not SQLite's."""
        return sqlite_file(self.database_url)

    def of_one_process(self) -> "Settings":
        """Return the settings of each of the API's processes, with its share of the limits."""
        number = self.api.processes
        return self.model_copy(update={"api": self.api.share(number), "limits": self.limits.share(number)})

    def backend_of(self, machine: str) -> str:
        """Return the backend that runs a machine type's jobs here, given the catalogue's name of it."""
        if machine == "tpu" and self.tpu.backend is not None:
            return self.tpu.backend
        simulated = self.machines.simulate and machine != "slurm"  # a login node anywhere runs these
        return PROCESS_BACKEND if simulated else machine

    @property
    def machines_file(self) -> Path | None:
        """The administrator's machine types; None: there are none."""
        default = self.root / "machines.toml"
        return self.machines.file or (default if default.is_file() else None)

    @property
    def default_machine(self) -> str:
        return self.machines.default or self.machines.host or "CPU"

    @property
    def own_ports(self) -> dict[int, str]:
        """Ports that the service itself uses, with their uses; jobs cannot have them."""
        ports = {self.api.port: "its API"}
        for url, what in ((self.database.url, "its database"), (self.queue.broker_url, "its broker")):
            parts = urlsplit(url or "")
            port = parts.port or _PORTS.get(parts.scheme.partition("+")[0])
            if parts.hostname is not None and port is not None:
                ports[port] = what
        ports |= {self.tensorboard.port: "TensorBoard", self.ssh.port: "its ssh endpoint"}
        return {number: what for number, what in ports.items() if number}

    @property
    def public_url(self) -> str:
        """URL of the service for users, without a trailing slash."""
        host = f"[{self.api.host}]" if ":" in self.api.host else self.api.host
        return self.api.public_url or f"http://{host}:{self.api.port}"

    @property
    def dashboard_host(self) -> str | None:
        """The only host name under which the dashboard answers; None: unknown, because it listens on every address."""
        if self.api.public_url is None and self.api.host in EVERY_ADDRESS:
            return None
        return canonical_host(urlsplit(self.public_url).hostname or "")

    @property
    def ports_host(self) -> str:
        """The host name in links to the ports of this machine's jobs."""
        address = self.worker.address or self.ports.bind
        return socket.gethostname() if address in EVERY_ADDRESS else address
