"""Every knob, read once from GRADIENT_* variables; one nested group per concern.

`GRADIENT_WORKER__SLOTS=4` sets `settings.worker.slots`. `.env.example` lists them all.
"""

import re
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from core.container_settings import DockerSettings as DockerSettings  # noqa: PLC0414 - others take it from here
from core.container_settings import ImageSettings as ImageSettings  # noqa: PLC0414 - likewise

GIB = 1024**3
MAX_DAYS = 36_500
"""The longest a policy may say: a hundred years."""
SIMULATOR = "mock"
"""The backend that stands in for every machine where there is no other."""
CLOUD_BACKENDS = frozenset({"tpu", "tpu-simulator"})
"""Backends whose machines are made for a job, and bill from then on until they are given back."""
_FENCE_SECONDS = 120.0
_BUCKET_NAME = r"^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$"
_BUCKET_URL = r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[^\r\n]{0,500})?"
_PORTS = {"postgresql": 5432, "postgres": 5432, "redis": 6379, "rediss": 6379, "amqp": 5672}
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
    address: str | None = Field(
        default=None,
        description="name or address that people reach this machine at, for links to jobs' ports; default: "
        "GRADIENT_PORTS__BIND, or the machine's name where that is every address",
    )
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


class PortSettings(BaseModel):
    """Ports of this host that jobs are reached at."""

    bind: str = Field(default="127.0.0.1", description="address on this host that containers' ports are opened at")
    first: int = Field(default=20_000, ge=1024, le=65_535, description="first port that jobs get which name none")
    last: int = Field(default=29_999, ge=1024, le=65_535, description="last one; fewer than first: none")


class SecretSettings(BaseModel):
    """What secrets and passwords for registries are encrypted with."""

    keys: list[SecretStr] = Field(
        default=[],
        description="keys (32 bytes in URL-safe Base64) as a JSON list, the first one for new values; default: those "
        "in secrets.key under GRADIENT_HOME, where the first is made when it is needed",
    )


class StatsdSettings(BaseModel):
    """Metrics that jobs send by gradient-statsd."""

    port: int = Field(
        default=8125, ge=0, le=65535, description="UDP port that workers receive jobs' metrics at (DogStatsD); 0: none"
    )


class MachineSettings(BaseModel):
    """Which machines there are and what runs them."""

    file: Path | None = Field(default=None, description="TOML that overrides or adds machine types (prices, specs)")
    simulate: bool = Field(default=True, description="run every machine type on this computer's CPU, saying so")


class TpuSettings(BaseModel):
    """Cloud TPUs; without a project there are none."""

    project: str | None = Field(default=None, description="Google Cloud project; none: no TPUs but simulated ones")
    zones: list[str] = Field(default=[], description="zones that TPUs are sought in, in this order, as a JSON list")
    way: Literal["queued", "node", "pool"] = Field(
        default="queued",
        description="how a TPU is had: queued (a queued resource made for the job), node (a node made at once) or "
        "pool (nodes that are there)",
    )
    ways: dict[str, Literal["queued", "node", "pool"]] = Field(
        default={}, description="the same by machine type, where it differs, as a JSON object"
    )
    architecture: Literal["grpc", "vm"] = Field(
        default="grpc",
        description="where a TPU's job runs: grpc (beside it, on the worker's host) or vm (on the TPU VM itself)",
    )
    architectures: dict[str, Literal["grpc", "vm"]] = Field(
        default={}, description="the same by machine type, where it differs, as a JSON object"
    )
    vm_seconds: float = Field(
        default=2.0, gt=0, description="seconds between the steps in which a job on a TPU VM is told of"
    )
    pool: dict[str, list[str]] = Field(
        default={}, description="nodes that are there, ZONE/NAME, by machine type, as a JSON object of lists"
    )
    spot: bool = Field(default=False, description="ask for spot capacity: cheaper, and may be taken away at any time")
    runtimes: dict[str, str] = Field(
        default={}, description="runtime version by machine type, where the usual one will not do, as a JSON object"
    )
    network: str | None = Field(default=None, description="VPC network of new nodes; default: the project's default")
    subnetwork: str | None = Field(default=None, description="subnetwork of new nodes, where the network has several")
    external_ips: bool = Field(default=False, description="give new nodes addresses on the Internet")
    service_account: str | None = Field(default=None, description="account that new nodes act as; default: Google's")
    tensorflow: str = Field(
        default="2.20.0", description="version of tensorflow-tpu that new nodes serve at port 8470; jobs need the same"
    )
    runner: Literal["docker", "process"] = Field(
        default="docker", description="what runs a job beside its TPU: docker, or process (not isolated at all)"
    )
    wait_seconds: float = Field(default=6 * 3600.0, gt=0, description="seconds that a job waits for a TPU, all in all")
    call_seconds: float = Field(default=30.0, gt=0, description="seconds that one answer of the TPU API may take")
    patience_seconds: float = Field(
        default=600.0, ge=0, description="seconds that a job's start bears a TPU API that does not answer"
    )
    poll_seconds: float = Field(default=5.0, gt=0, description="seconds between looks at a TPU that is awaited")
    watch_seconds: float = Field(default=15.0, gt=0, description="seconds between looks at a TPU that is in use")
    unhealthy_seconds: float = Field(
        default=120.0, ge=0, description="seconds that a TPU may be unhealthy before it is given up"
    )
    probe_seconds: float = Field(
        default=300.0, ge=0, description="seconds that a TPU that is ready may take to open its port"
    )
    stray_seconds: float = Field(
        default=600.0, ge=0, description="age in seconds at which a TPU of ours that no job owns is deleted"
    )
    simulator: str | None = Field(
        default=None, description="HOST:PORT of `gradient-server tpu-simulator`, used instead of Google's API"
    )

    @property
    def backend(self) -> str | None:
        """Name of the backend of TPU jobs; None: there are no TPUs."""
        if self.simulator is not None:
            return "tpu-simulator"
        return "tpu" if self.project is not None else None

    def way_of(self, machine_type: str) -> str:
        """How a TPU of this machine type is had."""
        return self.ways.get(machine_type, self.way)

    def on_vm(self, machine_type: str) -> bool:
        """Whether a job of this machine type runs on the TPU VM itself."""
        return self.architectures.get(machine_type, self.architecture) == "vm"


class GcsSettings(BaseModel):
    """Google Cloud Storage."""

    project: str | None = Field(default=None, description="project that buckets are made in; default: the credentials'")
    parallel: int = Field(default=8, ge=1, le=64, description="files sent or fetched at once")
    endpoint: str | None = Field(
        default=None, description="URL of a simulator of Cloud Storage, used instead of Google's", pattern="^https?://"
    )
    ca: Path | None = Field(default=None, description="certificate authority (PEM) of that simulator")


class ArtifactSettings(BaseModel):
    """What jobs leave."""

    url: str | None = Field(
        default=None,
        description="bucket that artifacts are kept in, gs://BUCKET/PREFIX; default: a folder under GRADIENT_HOME",
    )
    direct: bool = Field(
        default=False, description="send browsers to the bucket for a file, by a signed URL, not through the service"
    )
    direct_seconds: float = Field(
        default=300.0, ge=1, le=7 * 86_400, description="seconds that such a signed URL works"
    )

    @field_validator("url")
    @classmethod
    def _is_bucket(cls, url: str | None) -> str | None:
        if url is not None and re.fullmatch(_BUCKET_URL, url) is None:
            raise ValueError("must be gs://BUCKET or gs://BUCKET/PREFIX, the bucket's name in lower case")
        return url


class BucketSettings(BaseModel):
    """The bucket that a TPU reads from and writes to."""

    name: str | None = Field(
        default=None,
        description="bucket for TPU jobs; default: PROJECT-gradient-REGION, made when a job first needs it",
        pattern=_BUCKET_NAME,
    )
    keep: bool = Field(default=False, description="leave a job's prefix in the bucket after its outputs are kept")
    keep_days: int = Field(
        default=30, ge=1, le=MAX_DAYS, description="days after which a bucket of our own drops what was left in it"
    )
    token_seconds: int = Field(
        default=3600, ge=60, le=43_200, description="seconds that a job's own access to its prefix lasts, at most"
    )
    stage_bytes: int = Field(
        default=100 * GIB, ge=0, description="most bytes of a job's data set that are copied to the bucket"
    )


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
    images: ImageSettings = ImageSettings()
    ports: PortSettings = PortSettings()
    secrets: SecretSettings = SecretSettings()
    tpu: TpuSettings = TpuSettings()
    gcs: GcsSettings = GcsSettings()
    artifacts: ArtifactSettings = ArtifactSettings()
    bucket: BucketSettings = BucketSettings()
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

    def backend_of(self, machine: str) -> str:
        """Name of the backend that runs jobs of a machine type here, by the one that the catalogue names."""
        if machine == "tpu" and self.tpu.backend is not None:
            return self.tpu.backend
        return SIMULATOR if self.machines.simulate else machine

    @property
    def own_ports(self) -> dict[int, str]:
        """The ports that the service needs, and what has each; no job is given one of them."""
        found = {self.api.port: "its API"}
        for url, what in ((self.database.url, "its database"), (self.queue.broker_url, "its broker")):
            parts = urlsplit(url or "")
            port = parts.port or _PORTS.get(parts.scheme.partition("+")[0])
            if parts.hostname is not None and port is not None:
                found[port] = what
        return found

    @property
    def public_url(self) -> str:
        """URL that users reach the service at, without a trailing slash."""
        return (self.api.public_url or f"http://{self.api.host}:{self.api.port}").rstrip("/")
