from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Row, delete, func, insert, select, update
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Event, GpuAllocation, Job, Worker
from core.errors import SpecInvalid, WorkerNameTaken, WorkerNotFound
from core.jobs.guarded_updates import AT_ONCE, STOP_REQUESTED
from core.jobs.queries import WORKER_STALE_SECONDS
from core.jobs.scheduling import nodes
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.states import OWNED, JobState
from core.security.actor import record_change
from core.security.visibility import seeing_everything

# Plain columns: of `CASE WHEN nodes IS NOT NULL THEN …` in RETURNING, some versions of SQLite return the column itself.
_RESULT_COLUMNS = (Job.id, Job.lease, Job.stop_requested_at, Job.state, Job.array_id, Job.nodes)

_MAX_REFUSAL = 1000  # characters


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The answer to a heartbeat for one job: its current lease, and whether it should stop, without a grace period."""

    lease: int
    stop_requested: bool
    at_once: bool
    is_new_node: bool = False  # whether it may have been claimed for this worker by another one
    node_failure: str | None = None  # description of another node for whose end it has to end


def register(session: Session, offer: WorkerOffer, *, boot_id: str, slots: int, silent_seconds: float = 30.0) -> None:
    """Register this worker and its capacity. The drained flag survives restarts.

    `boot_id`: tells its host from a copy of it. Raises `WorkerNameTaken`: another host sent a heartbeat under this name
    within `silent_seconds`. Each of them would end the jobs of the other, as if the host had restarted.
    """
    same = Worker.boot_id.in_([boot_id, ""]) & (Worker.host == offer.host)
    other_host = select(Worker).where(Worker.name == offer.worker, ~same, Worker.seen_at >= now(-silent_seconds))
    if (other := session.scalar(other_host.with_for_update())) is not None:
        raise WorkerNameTaken(
            f"Another host ({other.host}), or a copy of this one, runs worker {offer.worker!r}. Each host needs its "
            "own name and token: stop one of the two, delete `worker-token` in its GRADIENT_HOME, and let it join "
            "under another --name."
        )
    values: dict[str, object] = {
        "boot_id": boot_id,
        "backends": list(offer.backends),
        "slots": slots,
        "machine_types": _as_list(offer.machine_types),
        "gpus": _as_list(offer.gpus),
        "cpus": offer.cpus,
        "memory_mb": offer.memory_mb,
        "nodes_address": offer.nodes_address,
        "refusal": offer.refusal,
        "started_at": now(),
        "seen_at": now(),
        "taken_gpus": None,
        "low_disk": None,
    }
    of_worker = Worker.name == offer.worker
    host = session.scalar(select(Worker.host).where(of_worker))
    if host != offer.host:  # the role of a worker that has joined may not even set it to what it is
        values["host"] = offer.host
    if host is None:
        session.execute(insert(Worker).values(name=offer.worker, **values))
    else:
        session.execute(update(Worker).where(of_worker).values(**values))


def record_host(session: Session, name: str, host: str, *, silent_seconds: float) -> None:
    """Record the host of a worker that cannot do so by itself, unless it is known to run on another one.

    Raises `SpecInvalid`: it moves to the host of another worker.
    """
    worker = session.scalar(select(Worker).where(Worker.name == name).with_for_update())
    if worker is None:
        refuse(session, name, "It is starting.", host=host)
    elif worker.host != host:
        if session.scalar(select(Worker.name).where(Worker.host == host, Worker.name != name).limit(1)):
            raise SpecInvalid(
                f"Worker {name!r} was on host {worker.host!r}, and {host!r} is another worker's host. Set "
                f"GRADIENT_WORKER__HOST to {worker.host!r}, or let it join again under another --name.",
                field="host",
            )
        silent = update(Worker).where(Worker.name == name, Worker.seen_at < now(-silent_seconds))
        session.execute(silent.values(host=host), execution_options={"synchronize_session": False})


def refuse(session: Session, name: str, why: str, *, host: str | None = None) -> None:
    """Record why a worker takes no jobs, until it registers; the heartbeat of another process of its name undoes it.

    `host`: that of a worker which may never have registered; None: then it is left out.
    """
    shown = "".join(char if char.isprintable() else " " for char in why)[:_MAX_REFUSAL]
    values: dict[str, object] = {"refusal": shown, "backends": []}
    registered = update(Worker).where(Worker.name == name).values(**values).returning(Worker.name)
    if session.scalar(registered, execution_options={"synchronize_session": False}) is None and host is not None:
        values |= {"host": host, "boot_id": "", "slots": 0, "started_at": now(), "seen_at": now()}
        session.execute(insert(Worker).values(name=name, **values))


def set_taken_gpus(session: Session, name: str, taken: dict[str, str]) -> None:
    """Record which GPUs of a worker are in use outside this service, and by what, to show why jobs wait."""
    session.execute(update(Worker).where(Worker.name == name).values(taken_gpus=taken or None))


def gpu_faults(session: Session, name: str) -> dict[str, str]:
    """Return the broken GPUs of a worker, and how that shows."""
    return dict(session.scalar(select(Worker.gpu_faults).where(Worker.name == name)) or {})


def add_gpu_faults(session: Session, name: str, faults: Mapping[str, str]) -> dict[str, str]:
    """Record broken GPUs of a worker, and how that shows; return those that no administrator has accepted."""
    worker = session.get_one(Worker, name, populate_existing=True)
    accepted = worker.accepted_gpu_faults or {}
    new = {gpu: why for gpu, why in faults.items() if accepted.get(gpu) != why}
    if new:
        merged = {**(worker.gpu_faults or {}), **new}
        session.execute(update(Worker).where(Worker.name == name).values(gpu_faults=merged))
    return new


def set_low_disk(session: Session, name: str, why: str | None) -> None:
    """Record why a worker claims nothing for lack of disk space; None: it has enough again."""
    session.execute(update(Worker).where(Worker.name == name).values(low_disk=why))


def _as_list(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


def heartbeat(session: Session, offer: WorkerOffer, *, boot_id: str) -> dict[str, HeartbeatResult]:
    """Send one heartbeat for all of a worker's jobs; returns their leases and stop requests, by job id.

    Raises `WorkerNotFound`: it was removed, or another host has registered under its name.
    """
    values = {"seen_at": now(), "backends": list(offer.backends), "refusal": offer.refusal}
    this_worker = Worker.name == offer.worker, Worker.host == offer.host, Worker.boot_id == boot_id
    alive = update(Worker).where(*this_worker).values(**values).returning(Worker.name)
    if session.scalar(alive, execution_options={"synchronize_session": False}) is None:
        raise WorkerNotFound(f"This host's worker {offer.worker!r} is no longer registered.")
    held = _held_by(offer.worker, offer.host)
    statement = (
        update(Job)
        .where(*held)
        .values(heartbeat_at=now())
        .returning(*_RESULT_COLUMNS)
        .execution_options(synchronize_session=False)
    )
    return _results_by_job(session, held, session.execute(statement).all())


def current_leases(session: Session, worker: str, host: str) -> dict[str, HeartbeatResult]:
    """Return the same as `heartbeat`, without a write."""
    held = _held_by(worker, host)
    rows = session.execute(select(*_RESULT_COLUMNS).where(*held)).all()
    return _results_by_job(session, held, rows)


def starting(session: Session, worker: str, host: str, which: ColumnElement[bool]) -> list[Job]:
    """Return those of these jobs that start on a worker, which may not know of all: nodes, members of an array."""
    held = *_held_by(worker, host), Job.state == JobState.STARTING, which
    return list(session.scalars(select(Job).where(*held).order_by(Job.seq)))


def _held_by(worker: str, host: str) -> tuple[ColumnElement[bool], ...]:
    return Job.worker == worker, Job.host == host, Job.state.in_(OWNED)


def _results_by_job(
    session: Session,
    held: tuple[ColumnElement[bool], ...],
    rows: Sequence[Row[str, int, datetime | None, JobState, str | None, int | None]],
) -> dict[str, HeartbeatResult]:
    hurried: set[str] = set()
    if any(row.stop_requested_at is not None for row in rows):
        at_once = Event.kind == STOP_REQUESTED, Event.detail == AT_ONCE
        of_held = select(Event.job_id).join(Job, Job.id == Event.job_id).where(*held, *at_once)
        hurried = set(session.scalars(of_held.where(Job.stop_requested_at.is_not(None))))
    of_nodes = {row.array_id for row in rows if row.nodes is not None}
    failures = nodes.failures(session, of_nodes) if of_nodes else {}
    return {
        row.id: HeartbeatResult(
            row.lease,
            row.stop_requested_at is not None,
            row.id in hurried,
            row.nodes is not None and row.state is JobState.STARTING,
            failures.get(row.array_id),
        )
        for row in rows
    }


def set_drained(session: Session, name: str, *, drained: bool) -> None:
    """Set or clear a worker's drained flag: a drained worker claims no jobs; those it runs continue.

    A resumed worker also offers GPUs again that are known to be broken, until they show another fault.
    """
    worker = session.scalar(select(Worker).where(Worker.name == name).with_for_update())
    if worker is None:
        names = ", ".join(session.scalars(select(Worker.name).order_by(Worker.name))) or "none yet"
        raise WorkerNotFound(f"No worker is named {name!r}. Known workers: {names}.", field="name")
    values: dict[str, object] = {"drained_at": now()}
    if not drained:
        accepted = {**(worker.accepted_gpu_faults or {}), **(worker.gpu_faults or {})} or None
        values = {"drained_at": None, "drain_reason": None, "resumed_at": now(), "gpu_faults": None}
        values["accepted_gpu_faults"] = accepted
    if not drained or worker.drained_at is None:
        session.execute(update(Worker).where(Worker.name == name).values(**values))
    record_change(session, "worker_drained" if drained else "worker_resumed", name)


def remove(session: Session, name: str) -> None:
    set_drained(session, name, drained=True)
    silent = delete(Worker).where(Worker.name == name, Worker.seen_at < now(-WORKER_STALE_SECONDS))
    if session.scalar(silent.returning(Worker.name)):
        record_change(session, "worker_removed", name)
        return
    worker = session.get_one(Worker, name)
    if worker.refusal is not None and not worker.backends:
        raise SpecInvalid(
            f"Worker {name!r} takes no jobs, but sent a heartbeat in the last {WORKER_STALE_SECONDS:g} seconds. "
            "Stop it if it is running, and try again later.",
            field="name",
        )
    raise SpecInvalid(
        f"Worker {name!r} is running. Drain it (`gradient-server drain --name {name} --wait`), stop it, and try "
        f"again {WORKER_STALE_SECONDS:g} seconds later.",
        field="name",
    )


def states(session: Session) -> list[tuple[Worker, str]]:
    """Return all workers by name, each with its state: ready, drained, refusing jobs, or silent without heartbeats."""
    seen = select(Worker, Worker.seen_at >= now(-WORKER_STALE_SECONDS)).order_by(Worker.name)
    return [(worker, _state(worker, lately=lately)) for worker, lately in session.execute(seen)]


def _state(worker: Worker, *, lately: bool) -> str:
    if worker.refusal is not None and not worker.backends:
        return "refusing"
    return "silent" if not lately else "drained" if worker.drained_at else "ready"


@seeing_everything()
def gpu_holders(session: Session) -> dict[tuple[str, str], str]:
    """Return the ids of the jobs that hold GPUs, by host and GPU."""
    return {(row.host, row.gpu): row.job_id for row in session.scalars(select(GpuAllocation))}


def held_jobs(session: Session, name: str) -> list[Job]:
    """Return the jobs that a worker holds, oldest first."""
    return list(session.scalars(select(Job).where(Job.worker == name, Job.state.in_(OWNED)).order_by(Job.seq)))


def held_job_ids(session: Session) -> dict[str | None, list[str]]:
    """Return the ids of the jobs that each worker holds, oldest first, by its name."""
    held: dict[str | None, list[str]] = {}
    for row in session.execute(select(Job.worker, Job.id).where(Job.state.in_(OWNED)).order_by(Job.seq)):
        held.setdefault(row.worker, []).append(row.id)
    return held


@seeing_everything()
def held_job_counts(session: Session) -> dict[str | None, int]:
    """Count the jobs that each worker holds, by its name; workers without jobs are left out."""
    counted = select(Job.worker, func.count()).where(Job.state.in_(OWNED)).group_by(Job.worker)
    return {row[0]: row[1] for row in session.execute(counted)}
