import re
from collections.abc import Mapping

from sqlalchemy.orm import Session

from core.db.models.jobs import Worker
from core.jobs import queries
from core.jobs.scheduling import workers
from core.jobs.tracking import metrics
from core.security.visibility import hidden_projects
from service.schemas.workers import WorkerGpu, WorkerView

HIDDEN = ""  # in place of the id of a job that the caller does not see


def worker_views(session: Session) -> list[WorkerView]:
    held, counts = workers.held_job_ids(session), workers.held_job_counts(session)
    holders = workers.gpu_holders(session)
    if hidden_projects(session):
        visible = {job.id for job in queries.by_ids(session, list(holders.values()))}
        holders = {gpu: job_id if job_id in visible else HIDDEN for gpu, job_id in holders.items()}
    samples = metrics.last_system_samples(session, set(holders.values()) - {HIDDEN})
    used = {job_id: _gpu_usage(sample) for job_id, sample in samples.items()}
    return [
        WorkerView.of(
            worker,
            state=state,
            job_ids=held.get(worker.name, []),
            other_jobs=counts.get(worker.name, 0) - len(held.get(worker.name, [])),
            gpus=None if worker.gpus is None else [_gpu_view(worker, gpu, holders, used) for gpu in _gpus(worker)],
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


def _gpus(worker: Worker) -> list[str]:
    """Return a worker's GPUs, also those that its driver no longer lists."""
    return list(dict.fromkeys([*(worker.gpus or ()), *(worker.gpu_faults or {})]))


def _gpu_view(
    worker: Worker, gpu: str, holders: dict[tuple[str, str], str], used: dict[str, tuple[float | None, float | None]]
) -> WorkerGpu:
    job_id = holders.get((worker.host, gpu))
    percent, memory = used[job_id] if job_id else (None, None)
    taken = "a job that you do not see" if job_id == HIDDEN else None if job_id else (worker.taken_gpus or {}).get(gpu)
    fault = (worker.gpu_faults or {}).get(gpu)
    return WorkerGpu(gpu=gpu, job_id=job_id or None, taken_by=taken, fault=fault, percent=percent, memory_bytes=memory)
