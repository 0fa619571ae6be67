"""The forms of a submission on its way from the request to the row, in order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from core.catalogue.machine_types import MachineType
from core.db.models.jobs import Job
from core.jobs.spec.arrays import ArrayMember
from core.jobs.spec.job_spec import JobSpec
from core.monitoring import tracing


@dataclass(frozen=True, slots=True)
class ChosenImage:
    reference: str | None = None  # the image reference; None: the worker's default image, one to be built, or no image
    notes: tuple[str, ...] = ()  # notes for the user on a `container` that is not run as a container


@dataclass(frozen=True, slots=True)
class ValidatedJob:
    """A job that can be run here, except that its workspace is not yet checked."""

    spec: JobSpec
    machine: MachineType
    image: ChosenImage
    git_login: str | None
    answer_notes: tuple[str, ...] = ()  # notes for the answer to the request alone


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    key_id: str
    request_id: str
    idempotency_key: str | None  # the client's Idempotency-Key, or None
    # whether a container that this server cannot run is recorded with a note, not refused: the original clients name
    # one with every job
    may_ignore_container: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedJob:
    origin: RequestOrigin
    valid: ValidatedJob
    digest: str | None  # digest of the request, to recognise a repeat; None: it cannot be repeated
    project_id: str | None = None  # id of its project; None: `project_name` counts
    project_name: str | None = None  # name of its project, created if missing; None: the default project
    parent_id: str | None = None
    schedule_id: str | None = None  # id of the schedule that it is a job of
    save_logins: Callable[[Session, Job], None] | None = None
    members: Sequence[tuple[ArrayMember, str | None]] = ()  # those of an array, with the jobs that they are clones of
    array: ArrayMember | None = None  # the one that it is
    withheld: Sequence[str] = ()  # what it goes without, as sentences: see `service.submission.withheld`
    trace_parent: str | None = field(default_factory=tracing.trace_parent)

    @property
    def notes(self) -> list[str]:
        return [*self.withheld, *self.valid.image.notes]


@dataclass(frozen=True, slots=True)
class InsertedJob:
    """A stored job, and whether it was created now, or before under the same Idempotency-Key."""

    job: Job
    project: str
    created: bool
    notes: Sequence[str]  # notes for the answer to the request
