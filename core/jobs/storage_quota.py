from collections.abc import Callable

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from core.db.models.jobs import Attempt, Job, Project
from core.errors import StorageFull
from core.formatting import MIB

_LOGS = case((Job.logs_removed_at.is_(None), Attempt.log_bytes), else_=0)
_ARTIFACTS = case((Job.artifacts_removed_at.is_(None), Attempt.artifact_bytes), else_=0)


def limit_mb(project: Project, usual_mb: int) -> int:
    """Return the limit of a project's logs and artifacts in MiB; 0: no limit.

    `usual_mb`: limit of projects without one of their own.
    """
    return usual_mb if project.max_stored_mb is None else project.max_stored_mb


def remaining_bytes(session: Session, project: Project, usual_mb: int) -> int | None:
    """Return the bytes that may still be stored for a project, at least 0; None: no limit."""
    limit = limit_mb(project, usual_mb) * MIB
    return max(0, limit - _stored_bytes(session, project)) if limit else None


def check_quota(session: Session, project: Project, usual_mb: int) -> None:
    """Check that a project's storage quota allows another job. Raises `StorageFull`: the quota is used up."""
    limit = limit_mb(project, usual_mb)
    kept = _stored_bytes(session, project) if limit else 0
    if limit and kept >= limit * MIB:
        raise StorageFull(
            f"The stored logs and artifacts of project {project.name!r} take {kept // MIB:,} MiB; its limit is "
            f"{limit:,} MiB. Delete jobs or artifacts that are not needed, or have an administrator raise the limit "
            "(maxStoredMb of the project).",
            field="project",
        )


def check_upload(
    session: Session, project: Project, usual_mb: int, *, coming: int, measure_storage: Callable[[], int]
) -> None:
    """Check that a project's storage quota has room for a file in its `/storage`, whose files count here, too.

    Args:
        usual_mb: Limit of projects without one of their own.
        coming: Bytes of the file.
        measure_storage: Returns the bytes of the project's `/storage`; called only if there is a limit.
    """
    left = remaining_bytes(session, project, usual_mb)
    if left is not None and (stored := measure_storage()) + coming > left:
        raise StorageFull(
            f"The project {project.name!r} has room for {max(0, left - stored) // MIB:,} MiB, and the file has "
            f"{coming // MIB:,} MiB: its limit is {limit_mb(project, usual_mb):,} MiB for logs, artifacts and storage. "
            "Delete files or jobs that are not needed, or have an administrator raise the limit (maxStoredMb of the "
            "project).",
            field="path",
        )


def _stored_bytes(session: Session, project: Project) -> int:
    of_project = select(func.sum(func.coalesce(_LOGS, 0) + func.coalesce(_ARTIFACTS, 0)))
    joined = of_project.join_from(Attempt, Job, Attempt.job_id == Job.id).where(Job.project_id == project.id)
    return int(session.scalar(joined) or 0)
