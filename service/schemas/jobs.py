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
_IMAGE = "the image reference that container stands for; null: the worker's default image, or one that is built"


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
    list[str] | str | None, single_error_message("must be texts such as 8888:8888, as a list or comma separated")
]


class SubmitJob(RequestOptions, RequestModel):
    """A job to run: its command, machine type and options."""

    machine_type: str = Field(max_length=200, description="one of GET /machine-types")
    command: str = Field(description="run by the container's shell")
    project_id: str | None = Field(None, description="an existing project; not together with `project`")
    project: str | None = Field(None, description='name of a project, made if missing; default "default"')
    workspace_sha256: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="of an uploaded archive, or of the part sent along"
    )
    ports: Ports = Field(
        None,
        description="what it is to be reached at: `external:internal[:scheme]`, as a list or comma separated; external "
        "0 or left out: any free one of the host's",
    )
    registry_password: str | None = Field(
        None, description="with which password; kept encrypted until the job has ended", repr=False
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
    """Base of what narrows an answer, in the query: text is read as numbers there, unknown names are refused."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")


class ListJobs(QueryModel):
    """Filters of a list of jobs."""

    state: str | None = Field(None, description="Pending, Running, …; one or more, comma separated")
    project: str | None = Field(None, description="a project's name")
    project_id: str | None = None
    machine_type: str | None = None
    name: str | None = Field(None, description="a job's exact name")
    limit: int = Field(50, ge=1, le=500)
    after: str | None = Field(None, description="`next` of the page before")


class ReadLog(QueryModel):
    """The lines of a log to read."""

    line: int = Field(0, ge=0, le=MAX_LINE, description="lines after this one; 0: from the start")
    limit: int = Field(2000, ge=1, le=10_000)
    tail: int | None = Field(None, ge=0, le=MAX_LINE, description="the last so many lines")


class ErrorDetail(View):
    """The details of an error."""

    name: str = Field(description="stable name of the kind of error")
    status: int = Field(description="the HTTP status")
    message: str = Field(description="what is wrong and what to do about it")
    field: str | None = Field(None, description="the input that caused it")


class ErrorView(View):
    """Every error."""

    error: ErrorDetail


class PortView(View):
    """A port of a job."""

    internal: int = Field(description="what the job listens on; a process without a container: `external`")
    external: int | None = Field(description="the host's port; null where the host has yet to choose one")
    url: str | None = Field(
        description="link, while a host runs the job; null where it would lead to the dashboard's own host name"
    )


class GpuView(View):
    """A GPU that a job has for itself."""

    index: str = Field(description="its number on its host; the job numbers its GPUs from 0")
    uuid: str | None
    serial: str | None
    name: str | None
    memory: int | None = Field(description="bytes")


class JobTpu(View):
    """The TPU that a job has for itself."""

    zone: str
    name: str
    type: str = Field(description="the cloud's name of the kind, such as v2-8")
    grpc_url: str | None = Field(description="its address; null where the job runs on the TPU's own VM")


class UsageView(View):
    """The most that an attempt used so far, and its means; null where it is not measured."""

    sampled_seconds: float = Field(description="running time that the means are of")
    peak_memory_bytes: int | None
    peak_cpu_percent: float | None = Field(description="100 is one CPU")
    mean_cpu_percent: float | None
    peak_gpu_memory_bytes: int | None = Field(description="of the GPU that used most")
    peak_gpu_percent: float | None = Field(description="of the busiest GPU; 100 is all of it")
    mean_gpu_percent: float | None = Field(description="of all its GPUs")


class RemovedView(View):
    """Output of a job that a retention policy deleted."""

    what: Literal["logs", "artifacts"]
    at: Time
    message: str = Field(description="by which policy")


class JobView(ViewOptions, View):
    """A job."""

    id: str
    name: str
    project: str
    project_id: str
    state: str = Field(description="Pending, Running, Stopped, Failed, Error or Cancelled")
    phase: str | None
    phase_detail: str | None
    reason: str | None = Field(description="stable code: why it waits or how it ended")
    message: str | None = Field(description="the same as a sentence, with what to do next")
    exit_code: int | None
    machine_type: str
    backend: str
    simulated: bool = Field(description="whether a stand-in runs it instead of the machine asked for")
    image: str | None = Field(description=_IMAGE)
    image_digest: str | None = Field(
        description="the image of this attempt: repository@sha256:…, or the image's id where no registry knows it; "
        "null until it is known"
    )
    attempt: int
    ports: list[PortView]
    parent_job_id: str | None
    created_at: Time
    started_at: Time | None
    finished_at: Time | None
    duration_seconds: float | None = Field(description="of this attempt's command")
    price_per_hour: float = Field(description="US dollars, at the time of submission")
    cost: float = Field(description="US dollars: duration times price")
    queue_position: int | None = Field(
        description="1 is next of its machine type; null when it does not wait, and in the answer to a submission"
    )
    estimated_start_at: Time | None = Field(
        description="an estimate from how long the last jobs of its machine type ran, what runs now and its place; "
        "null when it does not wait, when fewer than three have ended, or when no worker takes it"
    )
    silent_since: Time | None = Field(description="when its worker was last heard of, if that is too long ago")
    gpu_name: str | None = Field(description="model of the GPUs that this attempt has; null until it starts")
    gpu_mem: int | None = Field(description="memory of one GPU, bytes")
    gpu_driver: str | None = Field(description="version of the driver")
    gpu_cuda: str | None = Field(description="newest CUDA version that the driver runs")
    gpu_count: int | None = Field(description="GPUs that this attempt has; null for none")
    gpus: list[GpuView] = Field(description="those GPUs, as the job numbers them")
    tpu: JobTpu | None = Field(description="the TPU that this attempt has or had; null until it starts")
    usage: UsageView | None = Field(description="what this attempt used; null before the first sample")
    artifacts_state: str
    removed: list[RemovedView] = Field(description="what policies removed of what it printed and left")
    stop_requested: bool
    url: str = Field(description="its page")


class JobsPage(View):
    """One page of jobs, newest first."""

    jobs: list[JobView]
    next: str | None = Field(description="cursor of the following page, for `after`")


class MachineTypeView(View):
    """A machine to choose."""

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
    simulated: bool = Field(description="whether a stand-in would run the job")
    available: bool = Field(description="whether a running worker offers it now")


class MachineTypes(View):
    """Every machine type."""

    machine_types: list[MachineTypeView]


class ResolvedJob(ViewOptions, View):
    """A job as it would be made."""

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
    """One line a job printed."""

    line: int = Field(description="1-based, without gaps")
    timestamp: str
    message: str


class LogPage(View):
    """Some lines of a job's log."""

    lines: list[LogRow]
    complete: bool = Field(description="the job ended and no further line will come")
    removed: RemovedView | None = Field(None, description="when and by which policy the log was removed, if it was")


class PointView(View):
    """One value of a metric."""

    step: float | None
    time: Time
    value: float | None = Field(description="null where the job wrote NaN or infinity")


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
    left_out: str | None = Field(None, description="what the answer leaves out, and by which limit; null: nothing")


class ArtifactView(View):
    """A file that a job left."""

    path: str
    size: int
    sha256: str | None = Field(description="null while the job may still write it")
    modified: Time


class SkippedView(View):
    """Something that a job left and that was not kept."""

    path: str
    why: str


class ArtifactsPage(View):
    """One page of a job's files, by path."""

    state: str = Field(description="none, partial, complete, failed or removed")
    files: list[ArtifactView]
    skipped: list[SkippedView]
    next: str | None = Field(description="path to go on after, for `after`")
    total_files: int
    total_bytes: int
    removed: RemovedView | None = Field(None, description="when and by which policy they were removed, if they were")


class WorkspaceView(View):
    """A stored archive."""

    sha256: str
    size: int


class ImageNameView(View):
    """A short name for `container`."""

    name: str
    aliases: list[str]
    image: str = Field(description="the image reference it stands for")
    gpu_image: str | None = Field(description="the same for machine types with NVIDIA GPUs, if it differs")
    summary: str
    hosts: int = Field(description="hosts with a running worker that have one of these images already")


class ImageNames(View):
    """Every short name for `container`."""

    images: list[ImageNameView]
