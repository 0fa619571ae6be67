"""Every knob, read once from GRADIENT_* variables; one nested group per concern.

`GRADIENT_WORKER__SLOTS=4` sets `settings.worker.slots`. `.env.example` lists them all.
"""

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

GIB = 1024**3
MAX_DAYS = 36_500
"""The longest a policy may say: a hundred years."""
_FENCE_SECONDS = 120.0
_DATABASES = ("sqlite:///", "postgresql://", "postgres://", "postgresql+psycopg://")


class ApiSettings(BaseModel):
    """The HTTP process."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8780, description="port to listen on")
    public_url: str | None = Field(default=None, description="URL that users reach the service at, if not host:port")
    max_upload_bytes: int = Field(default=10 * GIB, description="largest workspace upload, bytes as sent")
    max_unpacked_bytes: int = Field(default=10 * GIB, description="largest workspace, bytes unpacked")
    max_body_bytes: int = Field(default=1024**2, description="largest JSON body, bytes")


class DatabaseSettings(BaseModel):
    """The truth."""

    url: str | None = Field(default=None, description="SQLAlchemy URL; default: SQLite under GRADIENT_HOME")
    pool_size: int = Field(default=5, description="connections kept per process (PostgreSQL)")
    patience_seconds: float = Field(
        default=45.0, description="a connection that nothing comes back on for this long is broken (PostgreSQL)"
    )

    @field_validator("url")
    @classmethod
    def _known(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(_DATABASES):
            # What was given is not repeated: it may hold a password.
            raise ValueError(f"must begin with {' or '.join(_DATABASES[:2])}")
        if url is not None:
            _ = urlsplit(url).port  # raises for a port that is no number
        return url


class QueueSettings(BaseModel):
    """The doorbell between hosts."""

    broker_url: str | None = Field(default=None, description="Celery broker; none: workers only poll")
    ping_seconds: float = Field(default=20.0, gt=0, description="seconds between a worker's messages to itself")
    deaf_seconds: float = Field(
        default=90.0, ge=0, description="a worker that hears none of them for so long restarts; 0: never"
    )


class LogSettings(BaseModel):
    """What jobs print."""

    max_bytes: int = Field(default=GIB, description="bytes of output kept per job; past it the middle is left out")
    tail_bytes: int = Field(default=16 * 1024**2, description="bytes of the end kept when output passes max_bytes")


class WorkerSettings(BaseModel):
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
    cards: list[str] | None = Field(
        default=None,
        description="accelerator cards of this host, as a JSON list of their indices; default: as the backend finds "
        "them; simulated machines count none",
    )
    cpus: float | None = Field(default=None, description="CPUs that jobs may ask for on this host; default: all")
    memory_mb: int | None = Field(default=None, description="MiB that jobs may ask for on this host; default: all")
    poll_seconds: float = Field(default=1.0, description="seconds between looks for work when no bell rings")
    heartbeat_seconds: float = Field(default=10.0, description="seconds between heartbeats")
    lease_seconds: float = Field(default=60.0, description="a heart silent this long may be adopted on the same host")
    lost_after_seconds: float = Field(default=900.0, description="a host silent this long is given up")
    sync_seconds: float = Field(default=10.0, description="seconds between copies of a running job's artifacts")
    sample_seconds: float = Field(default=2.0, description="seconds between samples of a job's CPU and memory")
    collect_seconds: float = Field(default=900.0, description="seconds allowed for completing artifacts at the end")
    sweep_seconds: float = Field(default=30.0, description="seconds between looks for what needs repair")
    rung_again_seconds: float = Field(
        default=30.0, description="a job due for this long is announced once more: its message may have been lost"
    )
    keep_scratch: bool = Field(default=False, description="keep each attempt's scratch directory, for debugging")

    @property
    def cut_off_seconds(self) -> float:
        """After this time without the database a worker ends what may be started elsewhere once it is given up."""
        return self.lost_after_seconds - min(_FENCE_SECONDS, self.lost_after_seconds / 4)


class DockerSettings(BaseModel):
    """Containers on this host."""

    url: str = Field(default="unix:///var/run/docker.sock", description="Docker engine's socket")
    timeout_seconds: float = Field(default=30.0, description="seconds that one answer of the engine may take")
    patience_seconds: float = Field(
        default=60.0, description="seconds a job's start waits for an engine that does not answer"
    )
    default_image: str = Field(default="python:3.12-slim", description="image of jobs that name no container")
    pull: str = Field(
        default="missing",
        description="when images are pulled: missing, always or never",
        pattern="^(missing|always|never)$",
    )
    pull_seconds: float = Field(default=3600.0, description="seconds that pulling an image may take")
    user: str | None = Field(
        default=None,
        description="user that jobs run as, UID:GID; default: the worker's own",
        pattern=r"^\d+:\d+$",
    )
    pids: int = Field(default=4096, description="most processes and threads of one job")
    shm_mb: int = Field(default=1024, description="MiB of shared memory (/dev/shm) of one job")
    capabilities: list[str] = Field(default=[], description="Linux capabilities that jobs keep, as a JSON list")
    network: str = Field(
        default="gradient-jobs", description="network of the jobs' containers, made if missing; none: no network at all"
    )
    fence: str = Field(
        default="try",
        description="firewall that keeps jobs from this host, metadata addresses and the service: try (warn if it "
        "cannot be set), require or off",
        pattern="^(try|require|off)$",
    )
    blocked: list[str] = Field(default=[], description="more networks (CIDR) that jobs must not reach, as a JSON list")


class StatsdSettings(BaseModel):
    """Metrics that jobs send by gradient-statsd."""

    port: int = Field(
        default=8125, ge=0, le=65535, description="UDP port that workers receive jobs' metrics at (DogStatsD); 0: none"
    )


class MachineSettings(BaseModel):
    """Which machines there are and what runs them."""

    file: Path | None = Field(default=None, description="TOML that overrides or adds machine types (prices, specs)")
    simulate: bool = Field(default=True, description="run every machine type on this computer's CPU, saying so")


class RetentionSettings(BaseModel):
    """How long things are kept; a project may say otherwise for its logs and artifacts."""

    logs_days: int | None = Field(
        default=None, ge=1, le=MAX_DAYS, description="days that logs are kept after a job's end; default: for good"
    )
    artifacts_days: int | None = Field(
        default=None, ge=1, le=MAX_DAYS, description="days that artifacts are kept after a job's end; default: for good"
    )
    workspaces_days: int | None = Field(
        default=None,
        ge=1,
        le=MAX_DAYS,
        description="days that an uploaded workspace is kept after the end of the last job on it; default: for good",
    )


class TracingSettings(BaseModel):
    """Traces by OpenTelemetry; OTEL_* variables say where to and which."""

    enabled: bool = Field(default=False, description="send traces to OTEL_EXPORTER_OTLP_ENDPOINT (OTLP over HTTP)")


class Settings(BaseSettings):
    """The whole configuration of one process."""

    model_config = SettingsConfigDict(env_prefix="GRADIENT_", env_nested_delimiter="__", extra="ignore")

    home: Path = Field(default=Path("~/.gradient-jobs"), description="everything the service keeps lives here")
    log_format: str = Field(default="console", description="our own logs: console or json", pattern="^(console|json)$")
    log_level: str = Field(default="info", description="our own logs: debug, info, warning or error")
    api: ApiSettings = ApiSettings()
    database: DatabaseSettings = DatabaseSettings()
    queue: QueueSettings = QueueSettings()
    logs: LogSettings = LogSettings()
    worker: WorkerSettings = WorkerSettings()
    machines: MachineSettings = MachineSettings()
    docker: DockerSettings = DockerSettings()
    statsd: StatsdSettings = StatsdSettings()
    retention: RetentionSettings = RetentionSettings()
    tracing: TracingSettings = TracingSettings()

    @property
    def root(self) -> Path:
        """`home`, absolute, with `~` resolved."""
        return self.home.expanduser().absolute()

    @property
    def database_url(self) -> str:
        """SQLAlchemy URL of the database."""
        return self.database.url or f"sqlite:///{self.root / 'gradient.db'}"

    @property
    def public_url(self) -> str:
        """URL that users reach the service at, without a trailing slash."""
        return (self.api.public_url or f"http://{self.api.host}:{self.api.port}").rstrip("/")
