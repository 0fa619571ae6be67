"""Images present on each host, as reported by workers, and the preference for hosts that have a job's image."""

from collections.abc import Collection

from sqlalchemy import ColumnElement, String, and_, bindparam, cast, delete, exists, func, literal, or_, select
from sqlalchemy.orm import Session, aliased

from core.catalogue.images import MAX_REFERENCE, normalize_reference
from core.db.database import now
from core.db.models.jobs import GpuAllocation, HostImage, Job, Worker
from core.db.prepared import is_one_of
from core.jobs.guarded_updates import insert_ignore
from core.jobs.queries import WORKER_STALE_SECONDS
from core.jobs.states import OWNED, WAITING_PHASE

MAX_REPORTED = 500
"""Images recorded per host. A host with more is a build machine; jobs do not wait for its other images."""


def replace_host_images(session: Session, host: str, references: Collection[str]) -> None:
    """Replace the recorded images of a host.

    `references`: images as its engine lists them; only the first MAX_REPORTED are recorded.
    """
    session.execute(delete(HostImage).where(HostImage.host == host))
    recorded = [one for one in dict.fromkeys(references) if len(one) <= MAX_REFERENCE][:MAX_REPORTED]
    rows = [{"host": host, "reference": reference} for reference in recorded]
    if rows:  # another worker of the host may report the same concurrently
        session.execute(insert_ignore(session.get_bind().dialect.name, HostImage), rows)


def count_hosts_having(session: Session, images: Collection[str]) -> int:
    living = select(Worker.host).where(Worker.seen_at >= now(-WORKER_STALE_SECONDS))
    count = select(func.count(HostImage.host.distinct())).where(
        HostImage.reference.in_([normalize_reference(image) for image in images]), HostImage.host.in_(living)
    )
    return int(session.scalar(count) or 0)


def other_host_has_images(session: Session, host: str) -> bool:
    """Check whether any other host has reported images; if none has, no job is left to another host."""
    return session.scalar(select(HostImage.host).where(HostImage.host != host).limit(1)) is not None


def prefers_other_host(seconds: float) -> ColumnElement[bool]:
    """Build the condition that a queued job is left to another host that has its image and room for it.

    It holds only for `seconds` after the job is due, so that the job waits no longer for an image. The claiming host
    is the parameter `on_host`.
    """
    here = exists().where(HostImage.host == bindparam("on_host"), HostImage.reference == Job.image)
    recent = func.coalesce(Job.run_after, Job.created_at) > now(-seconds)
    holder = (
        exists()
        .where(
            HostImage.reference == Job.image,
            HostImage.host == Worker.host,
            Worker.host != bindparam("on_host"),
            Worker.seen_at >= now(-WORKER_STALE_SECONDS),
            Worker.drained_at.is_(None),
            *_accepts_job(),
            *_has_capacity(),
        )
        .correlate(Job)
    )
    return and_(Job.image.is_not(None), recent, ~here, holder)


def _accepts_job() -> list[ColumnElement[bool]]:
    """Build the conditions that the worker takes the job's backend and machine type; JSON lists, searched as text."""
    return [
        cast(Worker.backends, String).contains(literal('"') + Job.backend + '"'),
        or_(
            Worker.machine_types.is_(None),
            cast(Worker.machine_types, String).contains(literal('"') + Job.machine_type + '"'),
        ),
    ]


def _has_capacity() -> list[ColumnElement[bool]]:
    """Build the conditions that the worker has a free slot, and its host the GPUs, CPUs and memory for the job."""
    held = aliased(Job)
    busy = is_one_of(held.state, sorted(OWNED)), held.phase.is_distinct_from(WAITING_PHASE)
    on_worker = select(func.count()).where(held.worker == Worker.name, *busy)
    on_host = held.host == Worker.host, *busy
    gpus = select(func.count()).where(GpuAllocation.host == Worker.host)
    free_cpus = Worker.cpus - select(func.coalesce(func.sum(held.cpus), 0)).where(*on_host).scalar_subquery()
    free_memory = (
        Worker.memory_mb - select(func.coalesce(func.sum(held.memory_mb), 0)).where(*on_host).scalar_subquery()
    )
    free_gpus = func.json_array_length(Worker.gpus) - gpus.scalar_subquery()
    return [
        on_worker.scalar_subquery() < Worker.slots,
        or_(Worker.gpus.is_(None), free_gpus >= Job.gpus),
        or_(Job.cpus.is_(None), Worker.cpus.is_(None), free_cpus >= Job.cpus),
        or_(Job.memory_mb.is_(None), Worker.memory_mb.is_(None), free_memory >= Job.memory_mb),
    ]
