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
    "image reference that `container` resolves to; null: the worker's default image, a built image, or a container "
    "that is not used"
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
        description="ports to publish: `external:internal[:scheme]`, as a list or comma separated; without an external "
        "port, or with 0: any free port of the host",
    )
    registry_password: str | None = Field(
        None, description="password of `registryUsername`; stored encrypted until the job has ended", repr=False
    )

    array: str | None = Field(
        None,
        max_length=64 * 1024,
        description="submit one job for each of these: `0-999`, `a,b,c`, or one value per line; append `%8` to run "
        "at most 8 at once. Each job has $GRADIENT_ARRAY_INDEX and $GRADIENT_ARRAY_VALUE; the response is the first "
        "job",
    )
    nodes: int | None = Field(
        None,
        ge=1,
        le=MAX_NODES,
        description="start this many jobs together as members of an array, and end all of them if one fails. They find "
        "each other with $MASTER_ADDR, $MASTER_PORT, $RANK, $WORLD_SIZE and $TF_CONFIG; the response is rank 0",
    )
    wait_anyway: bool = Field(
        default=False, description="accept the job even if it is too large for every running worker of its machine type"
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
        description="for a dry run: digest of the requirements, to check whether they are installed",
    )


class PortView(View):
    """A port of a job."""

    internal: int = Field(description="port that the job listens on; same as `external` without a container")
    external: int | None = Field(description="port of the host; null until the host has chosen one")
    url: str | None = Field(
        description="link to the port while the job is running; null if it would point to the dashboard's host name"
    )


class GpuView(View):
    """A GPU allocated to a job."""

    index: str = Field(description="index on its host; the job numbers its GPUs from 0")
    uuid: str | None
    serial: str | None
    name: str | None
    memory: int | None = Field(description="bytes")


class MachineNode(View):
    """A host of a job: of a TPU slice, or of an allocation in Slurm."""

    rank: int
    host: str = Field(description="its address, or its name in Slurm")
    state: str = Field(description="as the state of a job")
    exit_code: int | None


class JobTpu(View):
    """The TPU allocated to a job."""

    zone: str
    name: str
    type: str = Field(description="the cloud's name of the type, such as v2-8")
    grpc_url: str | None = Field(description="address; null if the job runs on the TPU's own VM")
    nodes: list[MachineNode] = Field(description="the hosts of a slice, by rank; empty if it has one")


class JobSlurm(View):
    """The allocation of a job in Slurm."""

    job_id: str = Field(description="number of the job in Slurm")
    partition: str
    nodes: list[MachineNode] = Field(description="its nodes, by rank; empty if it has one")


class UsageView(View):
    """Peak and mean usage of an attempt so far; null if not measured."""

    sampled_seconds: float = Field(description="running time covered by the mean values")
    peak_memory_bytes: int | None
    peak_cpu_percent: float | None = Field(description="100 is one CPU")
    mean_cpu_percent: float | None
    peak_gpu_memory_bytes: int | None = Field(description="memory used on the GPU with the highest usage")
    peak_gpu_percent: float | None = Field(description="usage of the busiest GPU; 100 is full use")
    mean_gpu_percent: float | None = Field(description="mean over all its GPUs")
    mean_host_cpu_percent: float | None = Field(description="usage by everything on its host; null: it ran elsewhere")


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
    note: str | None = Field(description="what people wrote about the job")
    project: str
    project_id: str
    owner: str | None = Field(
        description="name of the API key that submitted it; null in responses to submissions and if unknown"
    )
    owner_key: str = Field(description="id of that API key")
    state: str = Field(description="Pending, Running, Kept, Stopped (it succeeded), Failed, Error or Cancelled")
    phase: str | None
    phase_detail: str | None
    reason: str | None = Field(description="stable code: why the job waits or how it ended")
    message: str | None = Field(description="the reason as a sentence, with what to do next")
    diverged: str | None = Field(
        description="a loss that is not finite or has exploded in this attempt, with its value and step; null: none is "
        "known, or it recovered; in a folded list: of how many members"
    )
    exit_code: int | None
    machine_type: str
    backend: str
    simulated: bool = Field(description="whether the job runs on a stand-in instead of the requested machine")
    sandboxed: bool | None = Field(
        description=(
            "whether it runs in a sandbox, as a process on the server's machine; null unless it is running there"
        )
    )
    image: str | None = Field(description=_IMAGE)
    image_digest: str | None = Field(
        description="the image of this attempt: repository@sha256:…, or the image's id if it is not in a registry; "
        "null until known"
    )
    attempt: int
    machine_faults: int = Field(
        description="earlier attempts ended by a machine fault; they do not count towards maxAttempts"
    )
    ports: list[PortView]
    parent_job_id: str | None
    schedule_id: str | None = Field(description="schedule that created the job; null: none")
    array_id: str | None = Field(description="id of the array that the job belongs to")
    array_index: int | None
    array_value: str | None
    nodes: int | None = Field(
        description="number of members of its array, if they start and end together: `arrayIndex` is the job's rank; "
        "in Slurm: of nodes of its allocation"
    )
    array_members: dict[str, int] | None = Field(
        None,
        description=(
            "in a folded list: the number of members of its array in each state; `durationSeconds`, `cost`, "
            "`gpuHours` and `finishedAt` then cover all of them"
        ),
    )
    created_at: Time
    started_at: Time | None
    finished_at: Time | None
    duration_seconds: float | None = Field(description="running time of this attempt's command")
    price_per_hour: float = Field(description="US dollars, at the time of submission")
    cost: float = Field(description="US dollars of all attempts: running time times price, or what its machines cost")
    gpu_hours: float = Field(description="duration times number of GPUs; 0 without GPUs")
    cost_set: str | None = Field(description="id of the array, sweep or comparison whose jobs share one ceiling")
    queue_position: int | None = Field(
        description="1 is next for its machine type; null if the job is not waiting and in responses to submissions"
    )
    estimated_start_at: Time | None = Field(
        description=(
            "estimate from the durations of the last jobs of its machine type, the running jobs and the queue "
            "position; null if the job is not waiting or no reliable estimate is possible"
        )
    )
    worker: str | None = Field(description="worker that runs it or ran its last attempt; null before")
    host: str | None = Field(description="host of this worker")
    kept_until: Time | None = Field(description="until when the machine of the failed job is kept; null: it is not")
    silent_since: Time | None = Field(description="last heartbeat of its worker, if it is overdue")
    gpu_name: str | None = Field(description="model of this attempt's GPUs; null until it starts")
    gpu_mem: int | None = Field(description="memory of one GPU, bytes")
    gpu_driver: str | None = Field(description="driver version")
    gpu_cuda: str | None = Field(description="newest CUDA version that the driver supports")
    gpu_count: int | None = Field(description="number of this attempt's GPUs; null: none")
    gpus: list[GpuView] = Field(description="GPUs of this attempt, in the job's order")
    tpu: JobTpu | None = Field(description="TPU of this attempt; null until it starts")
    slurm: JobSlurm | None = Field(description="allocation of this attempt in Slurm; null until it starts")
    usage: UsageView | None = Field(description="usage of this attempt; null before the first sample")
    artifacts_state: str
    notes: list[str] = Field(
        description="remarks on the job and its last attempt, such as an unused container or files that were not kept"
    )
    removed: list[RemovedView] = Field(description="logs and artifacts of the job that were deleted by policies")
    comparisons: list[JobComparison] = Field(description="comparisons that include the job, oldest first")
    metrics: dict[str, Number] | None = Field(
        None, description="last values of the metrics that were requested for a list"
    )
    stop_requested: bool = Field(description="in a folded list: of all members of its array that run")
    stops_by: Time | None = Field(
        description="by when a job that was asked to stop is killed; null: it was not, or its command has ended"
    )
    url: str = Field(description="address of the job's page")
    ssh_url: str | None = Field(description="address at which ssh enters the job; null: it cannot be entered now")


class TemplateView(ViewOptions, View):
    """The fields that a schedule and a sweep have alike, with the options of their jobs."""

    id: str
    name: str
    project: str
    project_id: str
    owner: str | None = Field(description="name of the API key that created it and that its jobs belong to")
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
        [],
        description="if there are no jobs: names in `q` that are not a parameter or metric of any job, with similar "
        "existing names",
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


class ImageCheck(View):
    """The answer of a registry about the image of a job that is not submitted."""

    state: Literal["found", "missing", "login", "unknown"] = Field(
        description="found; missing; login: it takes a login, or another one; unknown: the registry could not be asked"
    )
    message: str
    remedy: str | None = None
    digest: str | None = None
    bytes: int | None = Field(default=None, description="of the compressed layers; null: unknown")


class DryRun(View):
    """The job that a submission would create."""

    job: ResolvedJob
    machine_type: MachineTypeView
    price_per_hour: float
    max_cost: float | None = Field(
        description="maximum US dollars, by time limit and attempts or by a ceiling; null: there is neither"
    )
    queue_position: int = Field(description="position in the queue of its machine type; 1 is next")
    wait_reason: str = Field(description="stable code: why the job would have to wait")
    wait_message: str = Field(description="the reason as a sentence")
    estimated_start_at: Time | None = Field(
        description="estimate from the last jobs of its machine type; null: it cannot be known to within a quarter, or "
        "a minute"
    )
    would_start: str | None = Field(
        description="`would start at once`, `would start in about 4 minutes`, `cannot start: …` or `would wait: …`; "
        "null: it cannot be known"
    )
    package_sources: list[str] = Field(description="indexes from which packages are installed on the server's machine")
    default_packages: list[str] = Field(
        description="distributions available to jobs whose workspace does not declare any"
    )
    requirements_installed: bool | None = Field(
        description="whether the requirements in the query are already installed on the server's machine; null: unknown"
    )
    image_check: ImageCheck | None = Field(description="null: no image would be pulled")
    max_workspace_files: int = Field(description="maximum number of files, folders and links in a workspace archive")
    notes: list[str]


class LogEvidence(View):
    """A line of a job's log."""

    line: int
    message: str


class PlaceView(View):
    """A line of the workspace's code."""

    file: str
    line: int


class CloneAdvice(View):
    """A change with which a clone may succeed."""

    option: str
    value: int
    label: str
    url: str = Field(description="the form for new jobs, filled in")


class ExplanationView(View):
    """The explanation of a job that failed."""

    id: str
    state: str
    cause: str | None = Field(
        description="class: code, memory, device_memory, image, data, disk, network, machine, preempted, time, budget; "
        "null: it is not known, or the job has not failed"
    )
    meaning: str | None = Field(description="the class in words")
    source: str | None = Field(description="who tells the class: service, or log")
    reason: str | None
    message: str | None
    evidence: LogEvidence | None
    last_line: LogEvidence | None = Field(description="the last line of the log, if none shows the cause")
    place: PlaceView | None = Field(description="the innermost frame in the workspace")
    remedy: str | None = Field(description="what to do, if the message does not say it already")
    clone: CloneAdvice | None


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
    actor: str | None = Field(description="name of the API key of the user who caused it; null: not caused by a user")
    actor_key: str | None = Field(description="id of that API key")


class Events(View):
    """A job's events, oldest first."""

    events: list[EventView]
