"""The tables."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Enum, ForeignKey, Index, Integer, LargeBinary, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, UtcDateTime
from core.images import MAX_REFERENCE
from core.jobs.spec import JobSpec
from core.jobs.states import TERMINAL, JobState

_QUEUED = text("state = 'queued'")
_OWNED = text("state IN ('starting', 'running', 'finishing')")
_ENDED = text("finished_at IS NOT NULL")
# What was removed leaves its index: looking for what is due costs what is due.
_KEPT_LOGS = text("finished_at IS NOT NULL AND deleted_at IS NULL AND logs_removed_at IS NULL")
_KEPT_ARTIFACTS = text("finished_at IS NOT NULL AND deleted_at IS NULL AND artifacts_removed_at IS NULL")
_RAN = text("started_at IS NOT NULL AND ended_at IS NOT NULL")

MAX_DIGEST = MAX_REFERENCE + 80
"""Characters of a repository's name with a digest behind it."""
BigId = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only in INTEGER PRIMARY KEY


StateColumn = Enum(JobState, native_enum=False, length=16, values_callable=lambda states: [s.value for s in states])


class Project(Base):
    """Jobs that belong together."""

    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    """`pr` and 13 of [a-z0-9]."""
    name: Mapped[str] = mapped_column(String(200), unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    max_running: Mapped[int | None]
    """Jobs of it that run at once, at most; None: no limit of its own."""
    max_stored_mb: Mapped[int | None]
    """MiB of its jobs' logs and artifacts that are kept; 0: no limit; None: as the service's settings say."""
    last_claimed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When a job of it was last given a machine: among projects that run equally many, the longest unserved is next."""
    keep_logs_days: Mapped[int | None]
    """How long the logs of its ended jobs are kept; 0: for good; None: as the service's settings say."""
    keep_artifacts_days: Mapped[int | None]
    """How long the artifacts of its ended jobs are kept; 0: for good; None: as the service's settings say."""
    tags: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    repo_name: Mapped[str | None] = mapped_column(String(200))
    """Of the repository that its code is in, for people."""
    repo_url: Mapped[str | None] = mapped_column(String(2000))
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class User(Base):
    """Somebody who may sign in with a password, to get an API key."""

    __tablename__ = "users"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    """`u` and 13 of [a-z0-9]."""
    email: Mapped[str] = mapped_column(String(254), unique=True)
    """In lower case."""
    password: Mapped[str] = mapped_column(String(255))
    """Its slow hash, with its salt and its costs."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class UserKey(Base):
    """Whose an API key is that somebody got by signing in."""

    __tablename__ = "user_keys"

    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(16), index=True)


class ApiKey(Base):
    """A key, stored as a hash."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    """The part of the key that may be shown."""
    name: Mapped[str] = mapped_column(String(200))
    sha256: Mapped[bytes] = mapped_column(LargeBinary(32))
    """Of the whole key; it is random enough to need no slow hash."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When it stops working; None: never."""


class Job(Base):
    """One job: what was asked, where it is, who holds it, how it ended."""

    __tablename__ = "jobs"

    seq: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    """Order of submission; the key of pages and of the queue."""
    id: Mapped[str] = mapped_column(String(16), unique=True)
    """`j` and 13 of [a-z0-9]: never looks like a number."""
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    submitted_by: Mapped[str] = mapped_column(String(16))
    """Id of the API key."""
    parent_id: Mapped[str | None] = mapped_column(String(16))
    """The job it is a clone of."""
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_sha256: Mapped[str | None] = mapped_column(String(64))
    """Of the request that carried the key; another request with the same key is refused."""

    spec_json: Mapped[dict[str, Any]] = mapped_column("spec", JSON)
    name: Mapped[str | None] = mapped_column(String(200))
    machine_type: Mapped[str] = mapped_column(String(64))
    backend: Mapped[str] = mapped_column(String(32))
    simulated: Mapped[bool]
    """Whether a backend stands in for the machine that was asked for."""
    price_per_hour: Mapped[float]
    """US dollars, at the time of submission."""
    priority: Mapped[int]
    max_attempts: Mapped[int]
    cards: Mapped[int] = mapped_column(default=0, server_default="0")
    """Accelerator cards it needs of its host, for itself alone."""
    cpus: Mapped[float | None]
    """CPUs it asks for; None: what its slot gives."""
    memory_mb: Mapped[int | None]
    """MiB of memory it asks for; None: what its slot gives."""
    image: Mapped[str | None] = mapped_column(String(MAX_REFERENCE))
    """What its `container` stands for, as engines list it; None: the host's default image, or one that is built."""
    any_ports: Mapped[int] = mapped_column(default=0, server_default="0")
    """Ports that its host must have left, of those it gives to jobs; what the job names itself is in WantedPort."""
    request_id: Mapped[str | None] = mapped_column(String(64))
    """Of the request that made it: our own logs carry it on the service's side and on the worker's."""
    trace_parent: Mapped[str | None] = mapped_column(String(64))
    """W3C traceparent of the submission in that request, which the attempts' traces continue."""

    state: Mapped[JobState] = mapped_column(StateColumn)
    reason: Mapped[str | None] = mapped_column(String(32))
    reason_detail: Mapped[str | None] = mapped_column(Text)
    phase: Mapped[str | None] = mapped_column(String(32))
    phase_detail: Mapped[str | None] = mapped_column(Text)
    exit_code: Mapped[int | None]
    image_digest: Mapped[str | None] = mapped_column(String(MAX_DIGEST))
    """The image that this attempt runs: `repository@sha256:…`, or its id where no registry knows it."""
    artifacts_state: Mapped[str] = mapped_column(String(16), default="none")
    """none, partial, complete, failed or removed; apart from the state: a failed upload fails no job."""

    attempt: Mapped[int] = mapped_column(default=0)
    """How often it ran."""
    machine_faults: Mapped[int] = mapped_column(default=0, server_default="0")
    """How many of its attempts ended by a fault of the machine or the service: those use up none of `max_attempts`."""
    lease: Mapped[int] = mapped_column(default=0)
    """Who may write: counts up with every claim, adoption and requeue."""
    worker: Mapped[str | None] = mapped_column(String(255))
    host: Mapped[str | None] = mapped_column(String(255))
    handle: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    heartbeat_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    stop_requested_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """A wish, not a state."""
    run_after: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Not claimed before: the pause before a retry."""

    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    claimed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When this attempt's command began."""
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When this attempt's command ended."""
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the record was closed."""
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    logs_removed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When its logs went, by its project's policy or because it was deleted."""
    artifacts_removed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """The same of its artifacts."""

    __table_args__ = (
        Index("ix_jobs_queue", text("priority DESC"), "seq", sqlite_where=_QUEUED, postgresql_where=_QUEUED),
        Index(
            "ix_jobs_project_queue",
            "project_id",
            text("priority DESC"),
            "seq",
            sqlite_where=_QUEUED,
            postgresql_where=_QUEUED,
        ),
        Index(
            "ix_jobs_pool",
            "machine_type",
            "backend",
            "project_id",
            text("priority DESC"),
            "seq",
            sqlite_where=_QUEUED,
            postgresql_where=_QUEUED,
        ),
        Index("ix_jobs_key_queue", "submitted_by", sqlite_where=_QUEUED, postgresql_where=_QUEUED),
        Index("ix_jobs_history", "machine_type", "ended_at", "started_at", sqlite_where=_RAN, postgresql_where=_RAN),
        Index("ix_jobs_owned", "host", sqlite_where=_OWNED, postgresql_where=_OWNED),
        Index("ix_jobs_project_id_seq", "project_id", "seq"),
        Index("ix_jobs_state_seq", "state", "seq"),
        Index("ix_jobs_finished_at", "finished_at", sqlite_where=_ENDED, postgresql_where=_ENDED),
        Index(
            "ix_jobs_kept_logs",
            "project_id",
            "finished_at",
            "seq",
            sqlite_where=_KEPT_LOGS,
            postgresql_where=_KEPT_LOGS,
        ),
        Index(
            "ix_jobs_kept_artifacts",
            "project_id",
            "finished_at",
            "seq",
            sqlite_where=_KEPT_ARTIFACTS,
            postgresql_where=_KEPT_ARTIFACTS,
        ),
        Index("uq_jobs_idempotency", "submitted_by", "idempotency_key", unique=True),
    )

    @property
    def spec(self) -> JobSpec:
        """What the user asked for."""
        return JobSpec.from_json(self.spec_json)

    @property
    def ended(self) -> bool:
        """Whether the record is closed."""
        return self.state in TERMINAL

    @property
    def shown_name(self) -> str:
        """The given name, or "job N"."""
        return self.name or f"job {self.seq}"

    def log_context(self) -> dict[str, Any]:
        """What our own logs say of it."""
        context = {"job_id": self.id, "attempt": self.attempt, "lease": self.lease}
        return context if self.request_id is None else context | {"request_id": self.request_id}


class Attempt(Base):
    """One run of a job."""

    __tablename__ = "attempts"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    worker: Mapped[str] = mapped_column(String(255))
    host: Mapped[str] = mapped_column(String(255))
    due_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """From when on it could have been claimed: its job's submission, or the end of the pause before a retry."""
    claimed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    exit_code: Mapped[int | None]
    image_digest: Mapped[str | None] = mapped_column(String(MAX_DIGEST))
    """As of the job."""
    reason: Mapped[str | None] = mapped_column(String(32))
    reason_detail: Mapped[str | None] = mapped_column(Text)
    log_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Output kept of it, bytes; None until it is collected."""
    artifact_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Artifacts kept of it, bytes; None until they are collected."""
    cards: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))
    """What the cards are that it has, as it numbers them: index, uuid, name, memory (bytes), serial, driver, cuda."""
    tpu: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """The TPU that it has: zone, name, type, url (none where it runs on the TPU's own VM)."""
    sampled_seconds: Mapped[float | None]
    """Running time that the means below are of; None: no sample yet."""
    peak_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    peak_cpu_percent: Mapped[float | None]
    """100 is one CPU."""
    mean_cpu_percent: Mapped[float | None]
    peak_gpu_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Of the card that used most."""
    peak_gpu_percent: Mapped[float | None]
    """Of the busiest card, 100 is all of it."""
    mean_gpu_percent: Mapped[float | None]
    """Of all its cards."""


class HeldCard(Base):
    """A card that a job has for itself. Its key is why two jobs never share one."""

    __tablename__ = "held_cards"

    host: Mapped[str] = mapped_column(String(255), primary_key=True)
    card: Mapped[str] = mapped_column(String(64), primary_key=True)
    """The device's index or UUID on that host."""
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    attempt: Mapped[int]


class HeldImage(Base):
    """An image that a host has: a job that needs it is better claimed there."""

    __tablename__ = "held_images"

    host: Mapped[str] = mapped_column(String(255), primary_key=True)
    reference: Mapped[str] = mapped_column(String(MAX_REFERENCE), primary_key=True)
    """As `Job.image` has it."""

    __table_args__ = (Index("ix_held_images_reference", "reference"),)


class WantedPort(Base):
    """A port that a job needs of its host by number, until it has ended."""

    __tablename__ = "wanted_ports"

    port: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True, index=True)


class HeldPort(Base):
    """A port of a host that a job has for itself. Its key is why two jobs never share one."""

    __tablename__ = "held_ports"

    host: Mapped[str] = mapped_column(String(255), primary_key=True)
    port: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    attempt: Mapped[int]
    internal: Mapped[int]
    """The job's own port that it leads to."""
    address: Mapped[str] = mapped_column(String(255))
    """Where people reach the host."""


class Event(Base):
    """What happened to a job; only ever added to."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    kind: Mapped[str] = mapped_column(String(32))
    """submitted, claimed, adopted, started, ended, finished, requeued, stop_requested, phase, retention, …"""
    attempt: Mapped[int]
    lease: Mapped[int]
    from_state: Mapped[str | None] = mapped_column(String(16))
    to_state: Mapped[str | None] = mapped_column(String(16))
    phase: Mapped[str | None] = mapped_column(String(32))
    reason: Mapped[str | None] = mapped_column(String(32))
    detail: Mapped[str | None] = mapped_column(Text)

    __table_args__ = (Index("ix_events_job", "job_id", "id"),)


class Metric(Base):
    """One line of a job's metrics file, or one sample of its machine."""

    __tablename__ = "metrics"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    source: Mapped[str] = mapped_column(String(16), primary_key=True)
    """job or system."""
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Byte offset in the metrics file (job), or ms since the attempt began (system): a repeat is a no-op."""
    step: Mapped[float | None]
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    values: Mapped[dict[str, float | None]] = mapped_column(JSON)


class Outbox(Base):
    """Messages to send once the transaction that wrote them stands."""

    __tablename__ = "outbox"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(String(32))
    job_id: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Removal(Base):
    """Files that the record no longer names and that are still to be removed; gone once they are."""

    __tablename__ = "removals"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    what: Mapped[str] = mapped_column(String(16), primary_key=True)
    """logs or artifacts."""
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class Worker(Base):
    """A supervisor that is, or was, there."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    host: Mapped[str] = mapped_column(String(255))
    boot_id: Mapped[str] = mapped_column(String(64))
    backends: Mapped[list[str]] = mapped_column(JSON)
    slots: Mapped[int]
    machine_types: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Names of the machine types it takes; None: all that its backends run."""
    cards: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Its host's cards; None: cards are not counted there (simulated machines)."""
    cpus: Mapped[float | None]
    memory_mb: Mapped[int | None]
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    heard_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When a message last came to it through the broker; None: it has no broker, or never heard any."""
    taken_cards: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    """Cards that something other than our jobs uses, and what, in words; as last seen when a job wanted one."""
    low_disk: Mapped[str | None] = mapped_column(Text)
    """Why it claims nothing for want of disk, in words; None: it has enough."""
    drained_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Since when it claims nothing, by an administrator's wish, which outlives its restarts."""


class Turn(Base):
    """Whose turn it is to do what only one worker does at a time."""

    __tablename__ = "turns"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    holder: Mapped[str] = mapped_column(String(255))
    until: Mapped[datetime] = mapped_column(UtcDateTime)


class Repair(Base):
    """How often the sweep repaired one kind of damage."""

    __tablename__ = "repairs"

    kind: Mapped[str] = mapped_column(String(64), primary_key=True)
    total: Mapped[int] = mapped_column(BigInteger)
    last_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_worker: Mapped[str] = mapped_column(String(255))
