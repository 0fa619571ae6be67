"""The errors that users meet, and their base; this module knows neither HTTP nor Celery.

The service maps each class to a status (`service.http.errors`).
"""

from __future__ import annotations

import math
from typing import Any


class GradientError(Exception):
    """Base of every expected failure. `field`: the input field that caused it, in the API's camelCase, if one did."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    def __reduce__(self) -> tuple[Any, ...]:
        """Let any of them be passed between processes, whatever its `__init__` takes."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class NotFound(GradientError):
    """Something named in a request does not exist (or not for this caller)."""


class JobNotFound(NotFound):
    def __init__(self, job_id: str) -> None:
        super().__init__(f"No such job: {job_id!r}. `gradient-cli jobs list` lists the ids.", field="jobId")


class ComparisonNotFound(NotFound):
    def __init__(self, comparison_id: str) -> None:
        super().__init__(
            f"No such comparison: {comparison_id!r}. `gradient-cli compare list` lists the ids.", field="comparisonId"
        )


class ScheduleNotFound(NotFound):
    def __init__(self, schedule_id: str) -> None:
        super().__init__(
            f"No such schedule: {schedule_id!r}. `gradient-cli schedules list` lists the ids.", field="scheduleId"
        )


class SweepNotFound(NotFound):
    def __init__(self, sweep_id: str) -> None:
        super().__init__(f"No such sweep: {sweep_id!r}. `gradient-cli sweeps list` lists the ids.", field="sweepId")


class TrialNotFound(NotFound):
    def __init__(self, sweep_id: str, number: int) -> None:
        super().__init__(
            f"Trial {number} of sweep {sweep_id} was not requested by a program. Request one: POST "
            f"/sweeps/{sweep_id}/trials.",
            field="number",
        )


class ProjectNotFound(NotFound):
    """No project has this id or name."""


class WorkerNotFound(NotFound):
    """No worker of this name ever registered."""


class WorkerNameTaken(GradientError):
    """Another living worker has the same name."""


class WorkspaceNotFound(NotFound):
    """No workspace with this sha256 is stored."""


class ArtifactNotFound(NotFound):
    """The job has no artifact at this path."""


class StoredFileNotFound(NotFound):
    """The project's storage has nothing at this path."""


class CredentialNotFound(NotFound):
    """No secret of this name, or no registry of this host, is stored."""


class OutputRemoved(NotFound):
    """The job's log or artifacts were removed by policy; the job's row has the time."""


class SpecInvalid(GradientError):
    """The request is well formed, but a value in it is invalid."""


class SettingsInvalid(SpecInvalid):
    """Settings that cannot be read, a line of the message for each. `variables`: those that give them."""

    def __init__(self, message: str, *, variables: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.variables = variables


class MachineTypeUnknown(SpecInvalid):
    """The catalogue has no machine type of this name."""


class WorkspaceInvalid(SpecInvalid):
    """The workspace is broken, hostile or too large."""


class CursorInvalid(SpecInvalid):
    """The page cursor was not issued by this service."""


class IdempotencyMismatch(GradientError):
    """An Idempotency-Key was reused with a different request."""


class Unauthorized(GradientError):
    """The API key is missing, unknown, revoked or expired."""


class AdministratorOnly(GradientError):
    """The API key is valid, but not that of an administrator."""


class KeyRefused(GradientError):
    """The API key is valid, but has no right to this; an administrator may create one that has."""


class KeyNeeded(GradientError):
    """A browser session does not do for this: it takes the API key that opened it."""


class OwnerOnly(GradientError):
    """The API key is valid, but the job or project belongs to another one."""


class SecretUnreadable(GradientError):
    """A value cannot be encrypted or decrypted: the key is missing or wrong."""


class StoreUnavailable(GradientError):
    """A store (disk, bucket, database) does not answer now; a later retry may succeed."""


class DatabaseFull(StoreUnavailable):
    """The database's disk is full. `disk`: sentence that names the disk, without its full stop."""

    def __init__(self, disk: str) -> None:
        super().__init__(
            f"{disk}, so the database on it cannot be changed. Delete jobs (`gradient-cli jobs delete`) or other "
            "files there, then try again."
        )


class DatabaseMissing(GradientError):
    """The database is a file that does not exist, or is empty, and only the service creates it."""


class StorageFull(GradientError):
    """A disk or a quota has no room for the request until something is deleted."""


class StorageClosed(GradientError):
    """The service's user may not read or write this part of a project's storage."""


class BudgetSpent(GradientError):
    """A budget of the project, the user or the key can never pay the job."""


class LimitReached(GradientError):
    """A limit of the caller's key or project is reached; the same request may succeed later.

    `retry_after`: seconds until a repeat may succeed.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = max(1, math.ceil(retry_after))
        super().__init__(f"{message} Try again in {self.retry_after} second{'s' * (self.retry_after != 1)}.")


class ExtraMissing(GradientError):
    """A library is missing, because the extra that contains it is not installed.

    `part`: the part that needs the library, with its verb: "The backend 'tpu' needs".
    """

    def __init__(self, part: str, error: ModuleNotFoundError, extra: str) -> None:
        super().__init__(
            f"{part} {error.name}, which is not installed. Run `pip install 'gradient-jobs[{extra}]'` (in a "
            "checkout: `.ci/environment all`), or change the settings that require it."
        )


class ExecDisabled(GradientError):
    def __init__(self) -> None:
        super().__init__("This service does not let users enter running jobs (GRADIENT_EXEC__ENABLED=false).")


class TensorBoardUnavailable(GradientError):
    """This installation cannot open TensorBoard; the message has the reason, and what to do."""


class JobNotKept(GradientError):
    """The machine of the job is not kept."""


class JobNotEnterable(GradientError):
    """The job cannot be entered: it does not run, or its backend or its worker does not allow it."""


class SchemaMismatch(GradientError):
    """The database's schema is not the one this version needs."""


class LeaseLost(GradientError):
    """Another worker owns the job now: the caller must stop and write nothing more."""
