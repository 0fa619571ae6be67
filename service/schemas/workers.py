from pydantic import Field

from service.schemas.base import Time, View


class WorkerGpu(View):
    """A GPU of a worker's host."""

    gpu: str = Field(description="index or UUID")
    job_id: str | None = Field(description="job that holds it; null: none")
    taken_by: str | None = Field(description="what uses it outside this service; null: nothing known")
    fault: str | None = Field(description="how it shows that it is broken, so that no job gets it; null: nothing known")
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
    drain_reason: str | None = Field(description="why the service drained it; null: it did not")
    slots: int
    job_ids: list[str] = Field(description="jobs that it holds, oldest first")
    other_jobs: int = Field(0, description="number of jobs that it holds in projects that the caller does not see")
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
