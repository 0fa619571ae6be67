"""GPU and port allocations of a running job, and its registry password."""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, delete, exists, insert, select
from sqlalchemy.orm import Session

from core.db.database import Base
from core.db.models.credentials import JobRegistryPassword
from core.db.models.jobs import GpuAllocation, Job, PortAllocation, PortRequest
from core.db.prepared import Prepared
from core.jobs.spec.job_spec import JobSpec
from core.jobs.states import OWNED, TERMINAL

_INSERT_REQUEST = insert(Base.metadata.tables[PortRequest.__tablename__])
_PORTS = Base.metadata.tables[PortAllocation.__tablename__]
_INSERT_PORT = insert(_PORTS)
_ALLOCATED_PORTS = Prepared(select(_PORTS.c.port).where(_PORTS.c.host == bindparam("on_host")))

PORT_CONFLICTS = (
    select(PortRequest.job_id)
    .join(PortAllocation, PortAllocation.port == PortRequest.port)
    .where(PortAllocation.host == bindparam("on_host"))
)
"""Jobs that need a port which another job has on the host; joined from the few ports allocated there."""


@dataclass(frozen=True, slots=True)
class PortRange:
    first: int
    last: int  # last port; below `first`: the range is empty
    address: str  # host name in links to them; empty: users cannot reach them there

    def count_free(self, taken: Collection[int]) -> int:
        return max(0, self.last - self.first + 1) - sum(self.first <= port <= self.last for port in taken)


def request_ports(session: Session, job: Job) -> None:
    wanted = [port.external for port in job.spec.parsed_ports() if port.external]
    if wanted:
        session.execute(_INSERT_REQUEST, [{"port": port, "job_id": job.id} for port in wanted])


def count_dynamic_ports(spec: JobSpec) -> int:
    """Count a job's ports if the range provides any, else return 0. Named ones count: they may be in the range."""
    requested = spec.parsed_ports()
    return len(requested) if any(not port.external for port in requested) else 0


def allocated_ports(session: Session, host: str) -> frozenset[int]:
    return frozenset(port for (port,) in _ALLOCATED_PORTS.rows(session, {"on_host": host}))


def allocate_ports(session: Session, job: Job, host: str, among: PortRange, taken: Collection[int]) -> None:
    """Allocate a job's ports: those it named, and free ones from the range for the others."""
    requested = job.spec.parsed_ports()
    if not requested:
        return
    named = {port.external for port in requested if port.external}
    free = iter(_free_in_range(among, {*taken, *named}, zlib.crc32(f"{job.id} {job.attempt}".encode())))
    of_job = {"host": host, "job_id": job.id, "attempt": job.attempt, "address": among.address}
    session.execute(
        _INSERT_PORT, [of_job | {"internal": port.internal, "port": port.external or next(free)} for port in requested]
    )


def _free_in_range(among: PortRange, taken: Collection[int], start: int) -> Sequence[int]:
    # Each attempt starts at another port, so that a retry avoids one that another program uses.
    size = among.last - among.first + 1
    numbers = (among.first + (start + step) % size for step in range(size))
    return [port for port in numbers if port not in taken]


def ports_of_jobs(session: Session, jobs: Sequence[Job]) -> Mapping[str, list[PortAllocation]]:
    """Return the ports allocated to jobs, by job id; no query if none of the jobs requests ports."""
    wanting = [job.id for job in jobs if job.spec.ports and job.state in OWNED]
    allocations: dict[str, list[PortAllocation]] = {}
    if wanting:
        held = select(PortAllocation).where(PortAllocation.job_id.in_(wanting)).order_by(PortAllocation.internal)
        for port in session.scalars(held):
            allocations.setdefault(port.job_id, []).append(port)
    return allocations


def allocated_ports_by_host(session: Session) -> dict[str, dict[int, str]]:
    """Return all allocated ports: job id by port, by host."""
    allocations: dict[str, dict[int, str]] = {}
    for port in session.scalars(select(PortAllocation)):
        allocations.setdefault(port.host, {})[port.port] = port.job_id
    return allocations


def release(session: Session, job: Job) -> None:
    """Free a job's GPUs and ports; once it has ended, also delete its port requests and registry password."""
    if job.gpus:
        session.execute(delete(GpuAllocation).where(GpuAllocation.job_id == job.id))
    wants_ports = bool(job.spec.ports)
    if wants_ports:
        session.execute(delete(PortAllocation).where(PortAllocation.job_id == job.id))
    if job.state not in TERMINAL:
        return
    if wants_ports:
        session.execute(delete(PortRequest).where(PortRequest.job_id == job.id))
    if job.spec.registry_username is not None:
        session.execute(delete(JobRegistryPassword).where(JobRegistryPassword.job_id == job.id))


def release_orphaned_ports(session: Session) -> int:
    """Free ports, port requests and registry passwords that no job in need of them has; a transition frees its own."""
    here = exists().where(Job.id == PortAllocation.job_id, Job.attempt == PortAllocation.attempt, Job.state.in_(OWNED))
    count = len(_delete_where(session, PortAllocation, ~here))
    for table in (PortRequest, JobRegistryPassword):
        count += len(_delete_where(session, table, ~exists().where(Job.id == table.job_id, Job.state.not_in(TERMINAL))))
    return count


def _delete_where(
    session: Session, table: type[PortRequest | PortAllocation | JobRegistryPassword], where: object
) -> Sequence[object]:
    gone = delete(table).where(where).returning(table.job_id)  # type: ignore[arg-type]  # `where` is of either table
    return session.execute(gone, execution_options={"synchronize_session": False}).all()
