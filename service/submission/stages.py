"""The forms of a submission on its way from the request to the row, in order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.catalogue.machine_types import MachineType
from core.db.models.jobs import Job
from core.jobs.spec.arrays import ArrayMember
from core.jobs.spec.job_spec import JobSpec
from core.jobs.submission import NewJob


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    key_id: str
    request_id: str
    idempotency_key: str | None  # the client's Idempotency-Key, or None
    # whether a container that this server cannot run is recorded with a note, not refused: the original clients name
    # one with every job
    may_ignore_container: bool = False


@dataclass(frozen=True, slots=True)
class ValidatedJob:
    """A job that can be run here."""

    spec: JobSpec
    machine: MachineType
    image: str | None  # the image reference; None: the worker's default image, one to be built, or no image
    git_login: str | None
    notes: tuple[str, ...] = ()  # notes for the user
    answer_notes: tuple[str, ...] = ()  # notes for the answer to the request alone


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedJob(NewJob):
    """A job to insert; without the id of its project, `project_name` counts."""

    project_name: str | None = None  # created if missing; None: the default project
    save_logins: Callable[[Session, Job], None] | None = None
    members: Sequence[tuple[ArrayMember, str | None]] = ()  # those of an array, with the jobs that they are clones of
    notes: Sequence[str] = ()
    answer_notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class InsertedJob:
    """A stored job, and whether it was created now, or before under the same Idempotency-Key."""

    job: Job
    project: str
    created: bool
    notes: Sequence[str]  # notes for the answer to the request
