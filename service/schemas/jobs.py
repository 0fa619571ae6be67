"""Schemas of requests and responses: JSON in camelCase, times in UTC with milliseconds and Z."""

from datetime import datetime
from typing import Annotated, Literal, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.alias_generators import to_camel

from core.formatting import iso_time
from core.jobs.spec.job_spec import JobSpec
from service.schemas.base import View
from service.schemas.job_options import RequestOptions, ViewOptions

MAX_LINE = 2**62
_IMAGE = "image reference that `container` resolves to; null: the worker's default image, or an image that is built"


Time = Annotated[datetime, PlainSerializer(iso_time, return_type=str)]


class RequestModel(BaseModel):
    """Base of requests: unknown fields are refused, and text such as "5" is not taken as a number."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True)


R = TypeVar("R", bound=RequestModel)


def parse_request(model: type[R], raw: bytes | dict[str, object]) -> R:
    """Validate a request, given as JSON text or as its fields.

    Raises:
        RequestValidationError: The JSON does not fit the model; for an unknown field, the error lists the known names.
    """
    try:
        return model.model_validate_json(raw) if isinstance(raw, bytes) else model.model_validate(raw)
    except ValidationError as error:
        hidden = {field.alias or name for name, field in model.model_fields.items() if field.repr is False}
        known = [field.alias or name for name, field in model.model_fields.items()]
        found = [
            {"type": one["type"], "loc": ("body", *one["loc"]), "msg": one["msg"]}
            # Hidden fields must not be echoed; the input of invalid JSON is the whole request.
            | {"input": None if hidden & {*one["loc"]} or (hidden and not one["loc"]) else one["input"]}
            | ({"ctx": {"known": known}} if one["type"] == "extra_forbidden" else {})
            for one in error.errors(include_url=False, include_context=False)
        ]
        raise RequestValidationError(found) from error


def single_error_message(text: str) -> WrapValidator:
    """Return a validator that reports one message instead of one for each type of a union."""

    def validate(given: object, check: ValidatorFunctionWrapHandler) -> object:
        try:
            return check(given)
        except ValidationError:
            raise ValueError(text) from None

    return WrapValidator(validate)


Ports = Annotated[
    list[str] | str | None, single_error_message("must be strings such as 8888:8888, as a list or comma separated")
]


class SubmitJob(RequestOptions, RequestModel):
    """A job to run: its command, machine type and options."""

    machine_type: str = Field(max_length=200, description="name or alias from GET /machine-types")
    command: str = Field(description="command, run by the container's shell")
    project_id: str | None = Field(None, description="id of an existing project; cannot be combined with `project`")
    project: str | None = Field(None, description='name of the project, created if missing; default "default"')
    workspace_sha256: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="SHA-256 of a stored archive, or of the uploaded part `workspace`"
    )
    ports: Ports = Field(
        None,
        description="ports to publish: `external:internal[:scheme]`, as a list or comma separated; external 0 or left "
        "out: any free port of the host",
    )
    registry_password: str | None = Field(
        None, description="password of `registryUsername`; stored encrypted until the job has ended", repr=False
    )

    def spec(self, machine_type: str) -> JobSpec:
        """Build the job's spec, which validates the values.

        Args:
            machine_type: The machine type's name; the request may have an alias.

        Raises:
            SpecInvalid: A value is not valid; the error names the field and the remedy.
        """
        given = self.model_dump(exclude_none=True, exclude={"project", "project_id", "registry_password"})
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


class QueryModel(BaseModel):
    """Base of query parameters: numbers are parsed from text, unknown names are refused."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")


class ReadLog(QueryModel):
    """The lines of a log to read."""

    line: int = Field(0, ge=0, le=MAX_LINE, description="return lines after this number; 0: from the start")
    limit: int = Field(2000, ge=1, le=10_000)
    tail: int | None = Field(None, ge=0, le=MAX_LINE, description="return only this number of last lines")


class ErrorDetail(View):
    """The details of an error."""

    name: str = Field(description="stable name of the kind of error")
    status: int = Field(description="the HTTP status")
    message: str = Field(description="what is wrong and what to do about it")
    field: str | None = Field(None, description="name of the input that caused the error")


class ErrorView(View):
    """The response to a failed request."""

    error: ErrorDetail


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


class RemovedView(View):
    """Output of a job that a retention policy deleted."""

    what: Literal["logs", "artifacts"]
    at: Time
    message: str = Field(description="sentence that names the policy")


class JobView(ViewOptions, View):
    """A job."""

    id: str
    name: str
    project: str
    project_id: str
    state: str = Field(description="Pending, Running, Stopped, Failed, Error or Cancelled")
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
    ports: list[PortView]
    parent_job_id: str | None
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
        "position; null if the job does not wait, fewer than three have ended, or no worker offers its machine type"
    )
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
    notes: list[str] = Field(description="facts about the last attempt, such as files that were not kept")
    removed: list[RemovedView] = Field(description="logs and artifacts of the job that policies deleted")
    stop_requested: bool
    url: str = Field(description="address of the job's page")


class JobsPage(View):
    """One page of jobs, newest first."""

    jobs: list[JobView]
    next: str | None = Field(description="cursor of the next page, for `after`")


class MachineTypeView(View):
    """A machine type."""

    name: str
    aliases: list[str]
    backend: str
    accelerator: str
    count: int
    cpus: int | None
    memory_gb: float
    memory_bandwidth_gbps: float
    tflops: dict[str, float]
    price_per_hour: float
    price_source: str
    spec_source: str
    simulated: bool = Field(description="whether a stand-in runs its jobs")
    available: bool = Field(description="whether a running worker offers it now")


class MachineTypes(View):
    """Every machine type."""

    machine_types: list[MachineTypeView]


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


class Events(View):
    """A job's events, oldest first."""

    events: list[EventView]


class LogRow(View):
    """One line of a job's output."""

    line: int = Field(description="line number from 1, without gaps")
    timestamp: str
    message: str


class LogPage(View):
    """Some lines of a job's log."""

    lines: list[LogRow]
    complete: bool = Field(description="whether the job has ended and no more lines follow")
    partial: str | None = Field(
        None, description="text so far of the unfinished line after these, such as a progress bar; null: there is none"
    )
    removed: RemovedView | None = Field(
        None, description="when and by which policy the log was deleted; null: it was not"
    )


class PointView(View):
    """One value of a metric."""

    step: float | None
    time: Time
    value: float | None = Field(description="null if the job wrote NaN or infinity")


class SeriesView(View):
    """One metric over time."""

    name: str
    source: Literal["job", "system"]
    points: list[PointView]
    last: float | None
    min: float | None
    max: float | None


class Metrics(View):
    """A job's metrics."""

    series: list[SeriesView]
    left_out: str | None = Field(None, description="data left out because of a limit, and the limit; null: none")


class ArtifactView(View):
    """An artifact of a job."""

    path: str
    size: int
    sha256: str | None = Field(description="null while the job may still write the file")
    modified: Time


class SkippedView(View):
    """An output of a job that was not stored."""

    path: str
    why: str


class ArtifactsPage(View):
    """One page of a job's artifacts, by path."""

    state: str = Field(description="none, partial, complete, failed or removed")
    files: list[ArtifactView]
    skipped: list[SkippedView]
    next: str | None = Field(description="cursor of the next page, for `after`")
    total_files: int
    total_bytes: int
    removed: RemovedView | None = Field(
        None, description="when and by which policy they were deleted; null: they were not"
    )


class WorkspaceView(View):
    """A stored workspace archive."""

    sha256: str
    size: int


class ImageNameView(View):
    """A short name for `container`."""

    name: str
    aliases: list[str]
    image: str = Field(description="image reference that it stands for")
    gpu_image: str | None = Field(description="image reference for machine types with NVIDIA GPUs, if different")
    summary: str
    hosts: int = Field(description="number of hosts with a running worker that already have one of these images")


class ImageNames(View):
    """Every short name for `container`."""

    images: list[ImageNameView]
