from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from core.jobs.spec.arrays import MAX_NODES
from core.jobs.spec.job_spec import JobSpec
from service.schemas.base import (
    Number,
    QueryModel,
    RequestList,
    RequestModel,
    Time,
    View,
    single_error_message,
)
from service.schemas.catalogue import MachineTypeView
from service.schemas.job_options import RequestOptions, ViewOptions

MAX_LINE = 2**62
_NOT_IN_SPEC = {"project", "project_id", "registry_password", "idempotency_key", "wait_anyway", "array", "nodes"}
_IMAGE = (
    "image reference that `container` resolves to; null: the worker's default image, an image that is built, or a "
    "container that is not used"
)


Ports = Annotated[
    RequestList[str] | str | None,
    single_error_message("must be strings such as 8888:8888, as a list or comma separated"),
]


class SubmitJob(RequestOptions, RequestModel):
    """A job to run: its command, machine type and options."""

    machine_type: str = Field(max_length=200, description="name or alias from GET /machine-types")
    command: str = Field(description="command, run by the container's shell")
    project_id: str | None = Field(None, description="id of an existing project; cannot be combined with `project`")
    project: str | None = Field(None, description='name of the project, created if missing; default "default"')
    workspace_sha256: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of a stored workspace, or of the archive in the part `workspace`, to check it",
    )
    ports: Ports = Field(
        None,
        description="ports to publish: `external:internal[:scheme]`, as a list or comma separated; external 0 or left "
        "out: any free port of the host",
    )
    registry_password: str | None = Field(
        None, description="password of `registryUsername`; stored encrypted until the job has ended", repr=False
    )

    array: str | None = Field(
        None,
        max_length=64 * 1024,
        description="submit one job for each of these: `0-999`, `a,b,c`, or a value on each line; `%8` after it: at "
        "most 8 run at once. Each has $GRADIENT_ARRAY_INDEX and $GRADIENT_ARRAY_VALUE; the answer is the first",
    )
    nodes: int | None = Field(
        None,
        ge=1,
        le=MAX_NODES,
        description="start this many jobs together, as the members of an array, and end all when one "
        "fails. They find each other by $MASTER_ADDR, $MASTER_PORT, $RANK, $WORLD_SIZE and $TF_CONFIG; the answer is "
        "that of rank 0",
    )
    wait_anyway: bool = Field(
        default=False, description="accept a job that is too large for every running worker of its machine type"
    )

    def spec(self, machine_type: str) -> JobSpec:
        """Build the job's spec, which validates the values.

        `machine_type`: the machine type's name; the request may have an alias.
        """
        given = self.model_dump(exclude_none=True, exclude=_NOT_IN_SPEC)
        ports = given.get("ports", ())
        return JobSpec(
            **given
            | {
                "machine_type": machine_type,
                "workspace": None if self.workspace in {"", "none"} else self.workspace,
                "tags": tuple(given.get("tags", ())),
                "ports": (ports,) if isinstance(ports, str) else tuple(ports),
                "registry_username": self.registry_username or None,
            }
        )


class SubmissionQuery(QueryModel):
    """Query parameters of a submission."""

    dry_run: bool = Field(default=False, description="only return the job that would be created")
    requirements: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="of a dry run: digest of the requirements, to learn whether they are installed",
    )


class PortView(View):
    """A port of a job."""

    internal: int = Field(description="port that the job listens on; without a container, the same as `external`")
    external: int | None = Field(description="port of the host; null until the host has chosen one")
    url: str | None = Field(
        description="link to the port while the job runs; null if it would lead to the dashboard's own host name"
    )


class GpuView(View):
    """A GPU allocated to a job."""

    index: str = Field(description="index on its host; the job numbers its GPUs from 0")
    uuid: str | None
    serial: str | None
    name: str | None
    memory: int | None = Field(description="bytes")


class JobTpu(View):
    """The TPU allocated to a job."""

    zone: str
    name: str
    type: str = Field(description="the cloud's name of the type, such as v2-8")
    grpc_url: str | None = Field(description="address; null if the job runs on the TPU's own VM")


class UsageView(View):
    """Peak and mean usage of an attempt so far; null if not measured."""

    sampled_seconds: float = Field(description="running time that the means cover")
    peak_memory_bytes: int | None
    peak_cpu_percent: float | None = Field(description="100 is one CPU")
    mean_cpu_percent: float | None
    peak_gpu_memory_bytes: int | None = Field(description="of the GPU with the highest usage")
    peak_gpu_percent: float | None = Field(description="of the busiest GPU; 100 is full use")
    mean_gpu_percent: float | None = Field(description="over all its GPUs")
    mean_host_cpu_percent: float | None = Field(description="of everything that its host ran; null: it ran elsewhere")


class RemovedView(View):
    """Output of a job that a retention policy deleted."""

    what: Literal["logs", "artifacts"]
    at: Time
    message: str = Field(description="sentence that names the policy")


class JobComparison(View):
    """A comparison that a job is part of."""

    id: str
    name: str | None
    url: str = Field(description="address of its page")


class JobView(ViewOptions, View):
    """A job."""

    model_config = ConfigDict(ser_json_inf_nan="strings")
    id: str
    name: str
    project: str
    project_id: str
    owner: str | None = Field(
        description="name of the API key that submitted it; null in responses to submissions, and if it is unknown"
    )
    owner_key: str = Field(description="id of that key")
    state: str = Field(description="Pending, Running, Stopped (it succeeded), Failed, Error or Cancelled")
    phase: str | None
    phase_detail: str | None
    reason: str | None = Field(description="stable code: why the job waits or how it ended")
    message: str | None = Field(description="the reason as a sentence, with what to do next")
    exit_code: int | None
    machine_type: str
    backend: str
    simulated: bool = Field(description="whether a stand-in runs the job instead of the requested machine")
    sandboxed: bool | None = Field(
        description="whether it runs in a sandbox as a process on the server's machine; null unless it runs there now"
    )
    image: str | None = Field(description=_IMAGE)
    image_digest: str | None = Field(
        description="the image of this attempt: repository@sha256:…, or the image's id if it is in no registry; "
        "null until it is known"
    )
    attempt: int
    machine_faults: int = Field(
        description="earlier attempts that a fault of their machine ended; they do not count towards maxAttempts"
    )
    ports: list[PortView]
    parent_job_id: str | None
    schedule_id: str | None = Field(description="schedule that created it; null: none")
    array_id: str | None = Field(description="id of the array of which the job is a member")
    array_index: int | None
    array_value: str | None
    nodes: int | None = Field(
        description="members of its array, if they start and end together: `arrayIndex` is its rank"
    )
    array_members: dict[str, int] | None = Field(
        None,
        description="in a folded list: the number of members of its array in each state; `durationSeconds`, `cost` and "
        "`finishedAt` are of all of them, too",
    )
    created_at: Time
    started_at: Time | None
    finished_at: Time | None
    duration_seconds: float | None = Field(description="running time of this attempt's command")
    price_per_hour: float = Field(description="US dollars, at the time of submission")
    cost: float = Field(description="US dollars: duration times price")
    queue_position: int | None = Field(
        description="1 is next for its machine type; null if the job does not wait, and in responses to submissions"
    )
    estimated_start_at: Time | None = Field(
        description="estimate from the durations of the last jobs of its machine type, the running jobs and the queue "
        "position; null if the job does not wait, or nothing reliable is known"
    )
    worker: str | None = Field(description="what runs it, or has run its last attempt; null before")
    host: str | None = Field(description="host of this worker")
    silent_since: Time | None = Field(description="last heartbeat of its worker, if that is too long ago")
    gpu_name: str | None = Field(description="model of this attempt's GPUs; null until it starts")
    gpu_mem: int | None = Field(description="memory of one GPU, bytes")
    gpu_driver: str | None = Field(description="driver version")
    gpu_cuda: str | None = Field(description="newest CUDA version that the driver supports")
    gpu_count: int | None = Field(description="number of this attempt's GPUs; null: none")
    gpus: list[GpuView] = Field(description="GPUs of this attempt, in the job's order")
    tpu: JobTpu | None = Field(description="TPU of this attempt; null until it starts")
    usage: UsageView | None = Field(description="usage of this attempt; null before the first sample")
    artifacts_state: str
    notes: list[str] = Field(
        description="facts about the job and its last attempt, such as a container that is not used, or files that "
        "were not kept"
    )
    removed: list[RemovedView] = Field(description="logs and artifacts of the job that policies deleted")
    comparisons: list[JobComparison] = Field(description="comparisons that the job is part of, oldest first")
    metrics: dict[str, Number] | None = Field(None, description="last values of those that a list was asked for")
    stop_requested: bool
    url: str = Field(description="address of the job's page")


class TemplateView(ViewOptions, View):
    """The fields that a schedule and a sweep have alike, with the options of their jobs."""

    id: str
    name: str
    project: str
    project_id: str
    owner: str | None = Field(description="name of the API key that created it; its jobs belong to it, too")
    owner_key: str
    ports: list[PortView]
    created_at: Time
    url: str = Field(description="address of its page")


class JobsPage(View):
    """One page of jobs, newest first."""

    jobs: list[JobView]
    next: str | None = Field(description="cursor of the next page, for `after`")
    previous: str | None = Field(None, description="cursor of the previous page, for `before`")
    notes: list[str] = Field(
        [], description="if there are no jobs: names in `q` that no job has as a parameter or metric, with those it has"
    )


class ResolvedJob(ViewOptions, View):
    """A job as it would be created."""

    project: str | None
    project_id: str | None
    machine_type: str
    backend: str
    simulated: bool
    image: str | None = Field(description=_IMAGE)
    ports: list[PortView]


class DryRun(View):
    """The job that a submission would create."""

    job: ResolvedJob
    machine_type: MachineTypeView
    price_per_hour: float
    max_cost: float | None = Field(
        description="US dollars at most: price times time limit times attempts; null: there is no time limit"
    )
    queue_position: int = Field(description="place in the queue of its machine type; 1 is next")
    wait_reason: str = Field(description="stable code: why the job would wait, if it had to")
    wait_message: str = Field(description="the reason as a sentence")
    estimated_start_at: Time | None = Field(
        description="estimate from the last jobs of its machine type; null: fewer than three have ended, or no worker "
        "offers it"
    )
    package_sources: list[str] = Field(description="indexes from which packages are installed on the server's machine")
    default_packages: list[str] = Field(description="distributions that jobs whose workspace declares none can import")
    requirements_installed: bool | None = Field(
        description="whether the requirements of the query are installed already on the server's machine; null: unknown"
    )
    max_workspace_files: int = Field(description="most files, folders and links in the archive of a workspace")
    notes: list[str]


class EventView(View):
    """Something that happened to a job."""

    id: int
    at: Time
    attempt: int
    kind: str
    from_state: str | None
    to_state: str | None
    phase: str | None
    reason: str | None
    message: str | None
    actor: str | None = Field(description="name of the API key of the person who caused it; null: nobody did")
    actor_key: str | None = Field(description="id of that key")


class Events(View):
    """A job's events, oldest first."""

    events: list[EventView]
