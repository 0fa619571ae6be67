import re
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Enum,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    TextClause,
    and_,
    literal_column,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql import ColumnElement

from core.catalogue.images import MAX_REFERENCE
from core.db.database import Base, UtcDateTime
from core.jobs.spec.job_spec import JobSpec
from core.jobs.states import TERMINAL, JobState

_QUEUED = text("state = 'queued'")
_OWNED = text("state IN ('starting', 'running', 'finishing', 'kept')")
# Of these two, reads are counts and lists in another order than that of the index on the state, which SQLite would
# choose for `state = …`: it takes that to find few rows.
_COUNTED = text("state || '' = 'queued'")
_FAILED = text("state || '' = 'failed'")
_IN_ARRAY = text("array_id IS NOT NULL")
_ENDED = text("finished_at IS NOT NULL")
_ACTIVE = text("finished_at IS NULL")
# Partial indexes without removed outputs: the cost of finding due jobs depends only on how many are due.
_KEPT_LOGS = text("finished_at IS NOT NULL AND deleted_at IS NULL AND logs_removed_at IS NULL")
_KEPT_ARTIFACTS = text("finished_at IS NOT NULL AND deleted_at IS NULL AND artifacts_removed_at IS NULL")
_NOT_DELETED = text("deleted_at IS NULL")
_CLOSED = text("closed_at IS NOT NULL")
_SCHEDULED = text("schedule_id IS NOT NULL")
_SCHEDULED_ACTIVE = text("schedule_id IS NOT NULL AND finished_at IS NULL")
_TO_NOTIFY = text("to_notify IS NOT NULL")
_ATTEMPTED = text("finished_at IS NULL AND attempt > 0")
_IN_COST_SET = text("cost_set IS NOT NULL")
_DIVERGED = text("diverged IS NOT NULL")
_RAN = text("started_at IS NOT NULL AND ended_at IS NOT NULL")
BY_FAULT_OF_HOST: ColumnElement[bool] = literal_column(
    "reason IN ('disk_full', 'engine_restarted', 'engine_unavailable', 'gpu_fault', 'host_restarted', 'launch_failed', "
    "'lost_contact', 'never_started', 'no_gpu_runtime', 'process_lost', 'worker_lost')"
)
"""Of attempts whose end speaks against their host."""

_SCRIPT = re.compile(r"(?<![^\s/'\"])([^\s/'\"]+)\.(?:py|sh|ipynb)(?![^\s'\";&|)])")
MAX_DIGEST = MAX_REFERENCE + 80  # characters of a repository's name with a digest
BigId = BigInteger().with_variant(Integer, "sqlite")  # SQLite autoincrements only INTEGER PRIMARY KEY


StateColumn = Enum(JobState, native_enum=False, length=16, values_callable=lambda states: [s.value for s in states])


def _partial_index(name: str, where: TextClause, *columns: str | TextClause) -> Index:
    return Index(name, *columns, sqlite_where=where, postgresql_where=where)


class Project(Base):
    """A named group of jobs, with limits and policies."""

    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)  # `pr` and 13 of [a-z0-9]
    name: Mapped[str] = mapped_column(String(200), unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    created_by: Mapped[str | None] = mapped_column(String(16))
    """Id of the API key that it belongs to; None: to administrators."""
    max_running: Mapped[int | None]  # most jobs that run at once; None: no limit
    max_stored_mb: Mapped[int | None]
    """MiB of logs and artifacts kept at most; 0: no limit; None: as in the service's settings."""
    last_claimed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time of its last claim: among projects with equally many running jobs, the longest unserved is next.

    No two projects have the same time, even if they are served within one tick of the clock.
    """
    keep_logs_days: Mapped[int | None]
    """Days that logs are kept after the end of a job; 0: forever; None: as in the service's settings."""
    keep_artifacts_days: Mapped[int | None]
    """Days that artifacts are kept after the end of a job; 0: forever; None: as in the service's settings."""
    tags: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    repo_name: Mapped[str | None] = mapped_column(String(200))  # name of the code repository, for display
    repo_url: Mapped[str | None] = mapped_column(String(2000))
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    closed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # seen by members alone since; None: open to all

    __table_args__ = (_partial_index("ix_projects_closed", _CLOSED, "id"),)


class Job(Base):
    """A job: its specification, state, holder and outcome."""

    __tablename__ = "jobs"

    seq: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    """Order of submission; key for pagination and for the queue."""
    id: Mapped[str] = mapped_column(String(16), unique=True)  # `j` and 13 of [a-z0-9]: never looks like a number
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    submitted_by: Mapped[str] = mapped_column(String(16))  # id of an API key
    user_id: Mapped[str | None] = mapped_column(String(16))  # id of the user of that key; None: it has none
    parent_id: Mapped[str | None] = mapped_column(String(16))  # id of the job that this one is a clone of
    schedule_id: Mapped[str | None] = mapped_column(String(16))  # id of the schedule that created it; it may be deleted
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_sha256: Mapped[str | None] = mapped_column(String(64))
    """Digest of the request with the idempotency key; a different request with the same key is refused."""

    spec_json: Mapped[dict[str, Any]] = mapped_column("spec", JSON)
    name: Mapped[str | None] = mapped_column(String(200))
    note: Mapped[str | None] = mapped_column(Text)  # what people wrote about it
    machine_type: Mapped[str] = mapped_column(String(64))
    backend: Mapped[str] = mapped_column(String(32))
    simulated: Mapped[bool]  # true if another backend simulates the requested machine
    price_per_hour: Mapped[float]  # US dollars, at the time of submission
    priority: Mapped[int]
    max_attempts: Mapped[int]
    gpus: Mapped[int] = mapped_column(default=0, server_default="0")  # GPUs that it needs exclusively on its host
    gpu_count: Mapped[int] = mapped_column(default=0, server_default="0")  # GPUs of its machine, wherever that is
    cpus: Mapped[float | None]  # requested CPUs; None: as its slot provides
    memory_mb: Mapped[int | None]  # requested memory in MiB; None: as its slot provides
    image: Mapped[str | None] = mapped_column(String(MAX_REFERENCE))
    """Image that `container` resolves to, as engines list it; None: the host's default image, or one that is built."""
    dynamic_ports: Mapped[int] = mapped_column(default=0, server_default="0")
    """Free ports that it needs from its host's range (`dynamic_ports`); ports it names are in PortRequest."""
    request_id: Mapped[str | None] = mapped_column(String(64))
    """Id of the submitting request, for log lines of the service and the worker."""
    trace_parent: Mapped[str | None] = mapped_column(String(64))
    """W3C traceparent of the submission; the attempts' spans continue that trace."""

    state: Mapped[JobState] = mapped_column(StateColumn)
    reason: Mapped[str | None] = mapped_column(String(32))
    reason_detail: Mapped[str | None] = mapped_column(Text)
    phase: Mapped[str | None] = mapped_column(String(32))
    phase_detail: Mapped[str | None] = mapped_column(Text)
    exit_code: Mapped[int | None]
    image_digest: Mapped[str | None] = mapped_column(String(MAX_DIGEST))
    """Image of the current attempt: `repository@sha256:…`, or its image ID if no registry has it."""
    artifacts_state: Mapped[str] = mapped_column(String(16), default="none")
    """none, partial, complete, failed or removed; separate from the state, as a failed upload does not fail a job."""

    attempt: Mapped[int] = mapped_column(default=0)  # number of attempts so far
    machine_faults: Mapped[int] = mapped_column(default=0, server_default="0")
    """Attempts that ended by a fault of the machine or the service; they do not count against `max_attempts`."""
    lease: Mapped[int] = mapped_column(default=0)
    """Fencing token: increases with every claim, adoption and requeue; writes with an older value fail."""
    worker: Mapped[str | None] = mapped_column(String(255))
    host: Mapped[str | None] = mapped_column(String(255))
    handle: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    heartbeat_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    stop_requested_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # a request, not a state
    run_after: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Earliest time of the next claim, after the pause before a retry."""
    array_id: Mapped[str | None] = mapped_column(String(16))
    array_index: Mapped[int | None]
    array_value: Mapped[str | None] = mapped_column(Text)
    array_limit: Mapped[int | None]  # most members of its array that run at once
    nodes: Mapped[
        int | None
    ]  # members of its array, if they are the nodes of one training: they start and end together
    nodes_port: Mapped[int | None]
    """The first of the ports of the current attempt's nodes, in networks that they share: one for all, one for each."""

    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    claimed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # start of the current attempt's command
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # end of the current attempt's command
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # time at which the job entered a final state
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    logs_removed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time at which its logs were removed, by policy or because the job was deleted."""
    artifacts_removed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # the same for its artifacts
    cost_set: Mapped[str | None] = mapped_column(String(16))
    """Id of the array, sweep or comparison whose jobs share its ceiling; None: it has one of its own, or none."""
    run_seconds: Mapped[float | None]
    """Running time after which the current attempt is stopped; what it can cost until then is reserved. None: never."""
    run_limit: Mapped[str | None] = mapped_column(Text)  # the ceiling or budget that allows no more; None: a time limit

    __table_args__ = (
        _partial_index("ix_jobs_queue", _QUEUED, text("priority DESC"), "seq"),
        _partial_index("ix_jobs_project_queue", _QUEUED, "project_id", text("priority DESC"), "seq"),
        _partial_index("ix_jobs_pool", _QUEUED, "machine_type", "backend", "project_id", text("priority DESC"), "seq"),
        # These three have all columns of a count, so that it reads no rows.
        _partial_index("ix_jobs_waiting_pool", _COUNTED, "machine_type", "backend", "run_after", "created_at"),
        _partial_index("ix_jobs_failed", _FAILED, "finished_at"),
        _partial_index("ix_jobs_project_id_kept", _NOT_DELETED, "project_id"),
        _partial_index("ix_jobs_key_queue", _QUEUED, "submitted_by"),
        _partial_index("ix_jobs_history", _RAN, "machine_type", "ended_at", "started_at"),
        _partial_index("ix_jobs_active", _ACTIVE, "project_id", "state"),
        _partial_index("ix_jobs_schedule_id_seq", _SCHEDULED, "schedule_id", "seq"),
        _partial_index("ix_jobs_schedule_active", _SCHEDULED_ACTIVE, "schedule_id"),
        _partial_index("ix_jobs_owned", _OWNED, "host"),
        Index("ix_jobs_project_id_seq", "project_id", "seq"),
        Index("ix_jobs_machine_type_seq", "machine_type", "seq"),
        Index("ix_jobs_name_seq", "name", "seq"),
        Index("ix_jobs_state_seq", "state", "seq"),
        Index("ix_jobs_submitted_by_seq", "submitted_by", "seq"),
        _partial_index("ix_jobs_of_array", _IN_ARRAY, "array_id", "array_index"),
        _partial_index("ix_jobs_array_owned", _OWNED, "array_id"),
        _partial_index("ix_jobs_cost_set", _IN_COST_SET, "cost_set"),
        _partial_index("ix_jobs_attempted", _ATTEMPTED, "project_id"),
        _partial_index("ix_jobs_finished_at", _ENDED, "finished_at"),
        _partial_index("ix_jobs_kept_logs", _KEPT_LOGS, "project_id", "finished_at", "seq"),
        _partial_index("ix_jobs_kept_artifacts", _KEPT_ARTIFACTS, "project_id", "finished_at", "seq"),
        Index("uq_jobs_idempotency", "submitted_by", "idempotency_key", unique=True),
    )

    @property
    def spec(self) -> JobSpec:
        """The submitted specification, parsed once for each value of its column."""
        parsed: tuple[dict[str, Any], JobSpec] | None = self.__dict__.get("_parsed")
        if parsed is None or parsed[0] is not self.spec_json:
            parsed = self.__dict__["_parsed"] = (self.spec_json, JobSpec.from_json(self.spec_json))
        return parsed[1]

    def keep_parsed(self, spec: JobSpec) -> None:
        """Keep the specification that `spec_json` was written from, so that it is not parsed again."""
        self.__dict__["_parsed"] = (self.spec_json, spec)

    @classmethod
    def spec_text(cls, name: str) -> ColumnElement[str]:
        """Return the SQL expression of a text in the specification."""
        text_of: ColumnElement[str] = cls.spec_json[name].as_string()
        return text_of

    @property
    def rank(self) -> int:
        """Rank among the nodes of its array; 0 also for a job that is no node."""
        return self.array_index or 0 if self.nodes is not None else 0

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def shown_name(self) -> str:
        """The name; of a job without one that of its script and a number, `train-7`, else `job 7`."""
        if self.name:
            return self.name
        script = _SCRIPT.search(self.spec.command or "")
        return f"{script[1]}-{self.seq}" if script else f"job {self.seq}"

    @property
    def stops_by(self) -> datetime | None:
        """By when it is killed after a stop was requested; None: none was, or its command has ended."""
        if self.stop_requested_at is None or self.state not in {JobState.STARTING, JobState.RUNNING}:
            return None
        return self.stop_requested_at + timedelta(seconds=self.spec.stop_grace)

    def log_context(self) -> dict[str, Any]:
        """Return the fields that identify the job in log lines."""
        context = {"job_id": self.id, "attempt": self.attempt, "lease": self.lease}
        return context if self.request_id is None else context | {"request_id": self.request_id}


IS_QUEUED = Job.state == literal_column("'queued'")
"""True for a job that waits. With a literal, as in the partial indexes: they serve no condition on a parameter."""
IS_COUNTED_QUEUED: ColumnElement[bool] = literal_column("jobs.state || '' = 'queued'")
"""True for a job that waits, to count such jobs by pool: served by an index that has all columns of a count."""
IS_FAILED: ColumnElement[bool] = literal_column("jobs.state || '' = 'failed'")
"""True for a job that failed, to list the last ones: served by an index in the order of their ends."""
IS_ACTIVE = Job.finished_at.is_(None)
"""True for a job that has not ended; served by a partial index, whose size is that of the queue and not of the past."""
IS_ATTEMPTED = and_(IS_ACTIVE, Job.attempt > literal_column("0"))
"""True for a job that has not ended and has an attempt; served by an index of such jobs."""


class Attempt(Base):
    __tablename__ = "attempts"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    worker: Mapped[str] = mapped_column(String(255))
    host: Mapped[str] = mapped_column(String(255))
    eligible_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Earliest time of its claim: the submission, or the end of the pause before a retry."""
    claimed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    exit_code: Mapped[int | None]
    image_digest: Mapped[str | None] = mapped_column(String(MAX_DIGEST))  # as `Job.image_digest`
    reason: Mapped[str | None] = mapped_column(String(32))
    reason_detail: Mapped[str | None] = mapped_column(Text)
    log_bytes: Mapped[int | None] = mapped_column(BigInteger)
    artifact_bytes: Mapped[int | None] = mapped_column(BigInteger)  # bytes kept of both; None until they are collected
    gpus: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))
    """Its GPUs, in the attempt's numbering: index, uuid, name, memory (bytes), serial, driver, cuda."""
    diverged: Mapped[str | None] = mapped_column(Text)
    """The loss that has diverged, with its value; None: none has, or it recovered."""
    allocation: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Its TPU: zone, name, type, url (None if the job runs on the TPU VM), addresses by rank, exits by rank.

    Of a job in Slurm: zone is the partition, name the job's number there, type `slurm`."""
    sampled_seconds: Mapped[float | None]  # running time covered by the means below; None: no sample yet
    peak_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    peak_cpu_percent: Mapped[float | None]  # 100 is one CPU
    mean_cpu_percent: Mapped[float | None]
    peak_gpu_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)  # of the GPU that used most
    peak_gpu_percent: Mapped[float | None]  # of the busiest GPU; 100 is full use
    mean_gpu_percent: Mapped[float | None]  # of all its GPUs
    mean_host_cpu_percent: Mapped[float | None]  # of all programs of its host; 100 is one CPU

    __table_args__ = (
        Index("ix_attempts_host_faults", "ended_at", sqlite_where=BY_FAULT_OF_HOST, postgresql_where=BY_FAULT_OF_HOST),
        _partial_index("ix_attempts_diverged", _DIVERGED, "job_id", "attempt"),
    )


class GpuAllocation(Base):
    """A GPU allocated to a job. The primary key ensures that two jobs never share one."""

    __tablename__ = "gpu_allocations"

    host: Mapped[str] = mapped_column(String(255), primary_key=True)
    gpu: Mapped[str] = mapped_column(String(64), primary_key=True)  # the device's index or UUID on that host
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    attempt: Mapped[int]


class PortRequest(Base):
    """A host port that a job names; kept until the job has ended."""

    __tablename__ = "port_requests"

    port: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True, index=True)


class PortAllocation(Base):
    """A host port allocated to a job. The primary key ensures that two jobs never share one."""

    __tablename__ = "port_allocations"

    host: Mapped[str] = mapped_column(String(255), primary_key=True)
    port: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    attempt: Mapped[int]
    internal: Mapped[int]  # the port inside the job that it forwards to
    address: Mapped[str] = mapped_column(String(255))  # address of the host for users


class Event(Base):
    """An event of a job; rows are only ever added, and their `to_notify` cleared."""

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
    actor: Mapped[str | None] = mapped_column(String(16))
    """Id of the API key of the person who caused it; None: nobody did."""
    address: Mapped[str | None] = mapped_column(String(64))  # of that person's client
    to_notify: Mapped[bool | None]  # true if its receivers have not been considered yet

    __table_args__ = (
        Index("ix_events_job", "job_id", "id"),
        Index("ix_events_to_notify", "id", sqlite_where=_TO_NOTIFY, postgresql_where=_TO_NOTIFY),
    )


class Outbox(Base):
    """Messages to send once the transaction that wrote them is committed."""

    __tablename__ = "outbox"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(String(32))
    job_id: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PendingDeletion(Base):
    """Files to delete that no other row refers to any more; the row is deleted after them."""

    __tablename__ = "pending_deletions"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    what: Mapped[str] = mapped_column(String(16), primary_key=True)  # logs or artifacts
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class Worker(Base):
    """A supervisor that runs, or has run."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    host: Mapped[str] = mapped_column(String(255))
    boot_id: Mapped[str] = mapped_column(String(64))
    backends: Mapped[list[str]] = mapped_column(JSON)
    slots: Mapped[int]
    machine_types: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Names of the machine types it takes; None: all that its backends run."""
    gpus: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Its host's GPUs; None: not counted (simulated machines)."""
    cpus: Mapped[float | None]
    memory_mb: Mapped[int | None]
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    taken_gpus: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    """GPUs in use outside this service, and by what; as of the last attempt to allocate one."""
    gpu_faults: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    """GPUs that are broken, and how that shows; no job gets them until an administrator resumes the worker."""
    accepted_gpu_faults: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    """Faults with which an administrator let jobs have a GPU again; only others take it out once more."""
    refusal: Mapped[str | None] = mapped_column(Text)
    """Explanation why it takes no jobs (then `backends` is empty), or none of one backend; None: it takes all."""
    low_disk: Mapped[str | None] = mapped_column(Text)
    """Explanation why it claims nothing for lack of disk space; None: it has enough."""
    nodes_address: Mapped[str | None] = mapped_column(String(64))
    """Address at which nodes on other hosts reach those here; None: nodes run here only together, on its host alone."""
    drained_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time at which it was drained; it claims nothing since, even after a restart."""
    drain_reason: Mapped[str | None] = mapped_column(Text)
    """Explanation why the service drained it; None: it is not drained, or an administrator did it."""
    resumed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time at which it was last resumed: earlier failures of its host no longer count."""


class LeaderLease(Base):
    """A lease on a task that only one worker does at a time."""

    __tablename__ = "leader_leases"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    holder: Mapped[str] = mapped_column(String(255))
    until: Mapped[datetime] = mapped_column(UtcDateTime)


class RepairCount(Base):
    __tablename__ = "repair_counts"

    kind: Mapped[str] = mapped_column(String(64), primary_key=True)
    total: Mapped[int] = mapped_column(BigInteger)
    last_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_worker: Mapped[str] = mapped_column(String(255))
