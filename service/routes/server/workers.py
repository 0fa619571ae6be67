import re
from collections.abc import Mapping

from pydantic import Field
from sqlalchemy.orm import Session

from core.db.models.jobs import Worker
from core.jobs.scheduling import workers
from core.jobs.tracking import metrics
from service.auth.authentication import Caller, SearchSlot
from service.deps import ReadSession, WriteSession
from service.http.routing import api_router
from service.schemas.base import Time, View

router = api_router(prefix="/workers", tags=["workers"])


class WorkerGpu(View):
    """A GPU of a worker's host."""

    gpu: str = Field(description="index or UUID")
    job_id: str | None = Field(description="job that holds it; null: none")
    taken_by: str | None = Field(description="what uses it outside this service; null: nothing known")
    percent: float | None = Field(description="last sample of its use; of several of one job, their mean")
    memory_bytes: float | None = Field(
        description="last sample of its memory in use; of several, the one with the most"
    )


class WorkerView(View):
    """A worker that has reported at least once."""

    name: str
    host: str
    state: str = Field(
        description="ready, drained (claims no jobs), refusing (takes none; `refusal` says why), or silent (sent no "
        "heartbeat lately)"
    )
    seen_at: Time = Field(description="time of its last heartbeat")
    started_at: Time
    drained_at: Time | None
    slots: int
    job_ids: list[str] = Field(description="jobs that it holds, oldest first")
    backends: list[str]
    machine_types: list[str] | None = Field(description="machine types that it takes; null: all of its backends")
    gpus: list[WorkerGpu] | None = Field(description="null: not counted")
    cpus: float | None
    memory_mb: int | None
    refusal: str | None = Field(
        description="why it takes no jobs, none of one of its backends, or no nodes together with other hosts; null: "
        "nothing known"
    )
    low_disk: str | None = Field(description="why it claims nothing for lack of disk space; null: it has enough")


class Workers(View):
    """The workers, by name."""

    workers: list[WorkerView]


@router.get("", dependencies=[SearchSlot])
def list_workers(session: ReadSession) -> Workers:
    """List the workers with their state, jobs and GPUs."""
    return Workers(workers=_views(session))


@router.post("/{worker}/drain")
def drain_worker(session: WriteSession, _caller: Caller, worker: str) -> WorkerView:
    """Let a worker claim no more jobs; those it runs continue."""
    return _set_drained(session, worker, drained=True)


@router.post("/{worker}/resume")
def resume_worker(session: WriteSession, _caller: Caller, worker: str) -> WorkerView:
    """Let a drained worker claim jobs again."""
    return _set_drained(session, worker, drained=False)


def _set_drained(session: Session, name: str, *, drained: bool) -> WorkerView:
    workers.set_drained(session, name, drained=drained)
    session.flush()
    return next(one for one in _views(session) if one.name == name)


def _views(session: Session) -> list[WorkerView]:
    held = workers.held_job_ids(session)
    holders = workers.gpu_holders(session)
    samples = metrics.last_system_samples(session, set(holders.values()))
    used = {job_id: _gpu_usage(sample) for job_id, sample in samples.items()}
    return [
        WorkerView.of(
            worker,
            state=state,
            job_ids=held.get(worker.name, []),
            gpus=None if worker.gpus is None else [_gpu_view(worker, gpu, holders, used) for gpu in worker.gpus],
        )
        for worker, state in workers.states(session)
    ]


def _gpu_usage(sample: Mapping[str, float | None]) -> tuple[float | None, float | None]:
    """Return the mean use of a job's GPUs in percent, and the memory in use of the one with the most."""
    percents, memory = (
        [value for name, value in sample.items() if value is not None and re.fullmatch(rf"gpu\d+_{kind}", name)]
        for kind in ("percent", "memory_bytes")
    )
    return (sum(percents) / len(percents) if percents else None), max(memory, default=None)


def _gpu_view(
    worker: Worker, gpu: str, holders: dict[tuple[str, str], str], used: dict[str, tuple[float | None, float | None]]
) -> WorkerGpu:
    job_id = holders.get((worker.host, gpu))
    percent, memory = used[job_id] if job_id else (None, None)
    taken = None if job_id else (worker.taken_gpus or {}).get(gpu)
    return WorkerGpu(gpu=gpu, job_id=job_id, taken_by=taken, percent=percent, memory_bytes=memory)
