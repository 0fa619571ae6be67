from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, case, func, select
from sqlalchemy.orm import Session

from core.db.database import Base, now
from core.db.models.jobs import IS_ACTIVE, Attempt, Job, Project
from core.db.prepared import Prepared
from core.errors import ProjectNotFound, SpecInvalid, StorageFull
from core.formatting import MIB
from core.ids import new_id
from core.jobs import lifecycle, queries
from core.jobs.costs import budgets
from core.jobs.guarded_updates import insert_ignore
from core.jobs.spec.job_spec import MAX_NAME
from core.jobs.spec.labels import check_label, check_tags
from core.jobs.states import JobState
from core.jobs.templates import templates
from core.security.actor import record_change
from core.security.visibility import hidden_projects
from core.settings.limits import MAX_DAYS
from core.storage.retention import FOREVER

MAX_RUNNING = 1_000_000
MAX_STORED_MB = 2**31 - 1
_MAX_URL = 2000
_DELETED_MARK = "\x7f"  # first character of a deleted project's name; labels cannot contain it
_DAYS = "days (null: forever)"
_RANGES = {
    "max_stored_mb": ("maxStoredMb", MAX_STORED_MB, "MiB (null: no limit)"),
    "max_running": ("maxRunning", MAX_RUNNING, "jobs at once (null: no limit)"),
    "keep_logs_days": ("keepLogsDays", MAX_DAYS, _DAYS),
    "keep_artifacts_days": ("keepArtifactsDays", MAX_DAYS, _DAYS),
}
_PROJECTS = Base.metadata.tables[Project.__tablename__]
_SUBMITTED_TO = ("id", "name", "max_stored_mb", "closed_at")
_FOR_SUBMISSION = Prepared(
    select(*(_PROJECTS.c[name] for name in _SUBMITTED_TO)).where(_PROJECTS.c.name == bindparam("name"))
)
_BY_NAME = select(Project).where(Project.name == bindparam("name"))


def find_for_submission(session: Session, name: str) -> Project | None:
    """Return a project with `_SUBMITTED_TO` alone, without the ORM; the object belongs to no session.

    Raises `SpecInvalid`: the caller does not see the project of this name.
    """
    rows = _FOR_SUBMISSION.rows(session, {"name": name})
    project = Project(**dict(zip(_SUBMITTED_TO, rows[0], strict=True))) if rows else None
    if project is not None and project.closed_at is not None and project.id in hidden_projects(session):
        raise _name_taken(name)
    return project


def _name_taken(name: str) -> SpecInvalid:
    return SpecInvalid(
        f"The name {name!r} is taken by a closed project of others. Choose another name, or ask an administrator to "
        "make you a member.",
        field="project",
    )


def get_or_create(session: Session, name: str, created_by: str | None = None) -> tuple[Project, bool]:
    """Return the project of this name, created for this API key if missing, and whether it was created now."""
    existing = session.scalar(_BY_NAME, {"name": name})
    if existing is not None:
        return existing, False
    statement = insert_ignore(session.get_bind().dialect.name, Project)
    values = {"id": new_id("pr"), "name": name, "created_at": now(), "created_by": created_by}
    made = session.scalars(statement.values(values).returning(Project)).one_or_none()
    if made is not None:
        record_change(session, "project_created", name)
        return made, True
    existing = session.scalar(_BY_NAME, {"name": name})
    if existing is None:
        raise _name_taken(name)
    return existing, False


@dataclass(frozen=True, slots=True)
class ActiveCounts:
    """Numbers of a project's jobs that run (or are being set up or finished), and that wait."""

    running: int = 0
    queued: int = 0


def update_limits(session: Session, project_id: str, requested: Mapping[str, Any]) -> Project:
    """Set limits and policies of a project.

    `requested`: any of `max_running` (None: no limit), `max_stored_mb` (None: no limit), `keep_logs_days` and
    `keep_artifacts_days` (None: forever; of these three "default": as in the service's settings). Others stay as they
    are. `budgets`: as `budgets.put` takes them.
    """
    project = queries.project(session, project_id)
    for column, value in requested.items():
        if column == "budgets":
            budgets.put(session, "project", project.id, project.name, value or ())
            continue
        name, most, unit = _RANGES[column]
        if isinstance(value, int) and not 1 <= value <= most:
            raise SpecInvalid(f"{value} is out of range: 1 to {most:,} {unit}.", field=name)
        setattr(project, column, value if column == "max_running" else _stored_limit(value))
    session.flush()
    if requested.keys() - {"budgets"}:
        ranges = (f"{_RANGES[name][0]} {value}" for name, value in requested.items() if name in _RANGES)
        changed = ", ".join(ranges)
        record_change(session, "project_changed", f"{project.name}: {changed}")
    return project


def _stored_limit(requested: int | str | None) -> int | None:
    """Convert a limit for the database, where NULL means the service's default and FOREVER means no limit."""
    if requested is None:
        return FOREVER
    return None if requested == "default" else int(requested)


def find_id(session: Session, name: str) -> str | None:
    return session.scalar(select(Project.id).where(Project.name == name))


def get_id(session: Session, name: str, field: str | None = None) -> str:
    if (project_id := find_id(session, name)) is None:
        raise ProjectNotFound(f"There is no project {name[:80]!r}. Create it first, or choose another.", field=field)
    return project_id


def set_repository(session: Session, project_id: str, *, repo_name: str | None, repo_url: str | None) -> Project:
    """Set the repository of a project's code; None leaves a value as it is."""
    project = queries.project(session, project_id)
    for column, name, value, longest in (
        ("repo_name", "repoName", repo_name, MAX_NAME),
        ("repo_url", "repoUrl", repo_url, _MAX_URL),
    ):
        if value is not None:
            check_label(value, name, longest)
            setattr(project, column, value)
            record_change(session, "project_changed", f"{project.name}: {name}")
    session.flush()
    return project


def set_tags(session: Session, project_id: str, tags: Sequence[str]) -> Project:
    check_tags(tags)
    project = queries.project(session, project_id)
    project.tags = list(tags)
    session.flush()
    record_change(session, "project_changed", f"{project.name}: tags {', '.join(tags)}")
    return project


def delete(session: Session, project_id: str) -> None:
    """Hide a project and its ended jobs, whose outputs are then removed like those of deleted jobs.

    Its name is free again at once: its row gets a name that no user can choose.
    """
    project = queries.project(session, project_id)
    session.refresh(project, with_for_update=True)
    going = active_counts(session, project_id).get(project_id, ActiveCounts())
    if going.running or going.queued:
        raise SpecInvalid(
            f"{going.running + going.queued} jobs of this project have not ended. Stop them, then delete the project.",
            field="projectId",
        )
    if count := templates.count_of_project(session, project_id):
        raise SpecInvalid(
            f"{count} schedules and sweeps create jobs in this project. Delete them (`gradient-cli schedules list`, "
            "`gradient-cli sweeps list`), then delete the project.",
            field="projectId",
        )
    lifecycle.delete_of_project(session, project_id)
    record_change(session, "project_deleted", f"{project.name} ({project.id})")
    project.name = f"{_DELETED_MARK}{project.id}"
    project.deleted_at = session.scalar(select(now()))
    session.flush()


def active_counts(session: Session, project_id: str | None = None) -> dict[str, ActiveCounts]:
    """Count running and waiting jobs by project id; projects without any are left out. Does not read ended jobs."""
    counts: dict[str, Counter[bool]] = {}
    query = select(Job.project_id, Job.state, func.count()).where(IS_ACTIVE)
    if project_id is not None:
        query = query.where(Job.project_id == project_id)
    for project, state, number in session.execute(query.group_by(Job.project_id, Job.state)):
        counts.setdefault(project, Counter())[state is JobState.QUEUED] += number
    return {project_id: ActiveCounts(running=count[False], queued=count[True]) for project_id, count in counts.items()}


_LOGS = case((Job.logs_removed_at.is_(None), Attempt.log_bytes), else_=0)
_ARTIFACTS = case((Job.artifacts_removed_at.is_(None), Attempt.artifact_bytes), else_=0)


def storage_limit_mb(project: Project, usual_mb: int) -> int:
    """Return the limit of a project's logs and artifacts in MiB; 0: no limit.

    `usual_mb`: limit of projects without one of their own.
    """
    return usual_mb if project.max_stored_mb is None else project.max_stored_mb


def remaining_bytes(session: Session, project: Project, usual_mb: int) -> int | None:
    """Return the bytes that may still be stored for a project, at least 0; None: no limit."""
    limit = storage_limit_mb(project, usual_mb) * MIB
    return max(0, limit - _stored_bytes(session, project)) if limit else None


def check_quota(session: Session, project: Project, usual_mb: int) -> None:
    """Check that a project's storage quota allows another job. Raises `StorageFull`: the quota is used up."""
    limit = storage_limit_mb(project, usual_mb)
    kept = _stored_bytes(session, project) if limit else 0
    if limit and kept >= limit * MIB:
        raise StorageFull(
            f"The stored logs and artifacts of project {project.name!r} take {kept // MIB:,} MiB; its limit is "
            f"{limit:,} MiB. Delete unneeded jobs or artifacts, or have an administrator raise the limit "
            "(maxStoredMb of the project).",
            field="project",
        )


def check_upload(
    session: Session, project: Project, usual_mb: int, *, coming: int, measure_storage: Callable[[], int]
) -> None:
    """Check that a project's storage quota has room for a file in its `/storage`, whose files count here, too."""
    left = remaining_bytes(session, project, usual_mb)
    if left is not None and (stored := measure_storage()) + coming > left:
        raise StorageFull(
            f"The project {project.name!r} has room for {max(0, left - stored) // MIB:,} MiB, but the file has "
            f"{coming // MIB:,} MiB: its limit is {storage_limit_mb(project, usual_mb):,} MiB for logs, artifacts "
            "and storage. Delete unneeded files or jobs, or have an administrator raise the limit (maxStoredMb of "
            "the project).",
            field="path",
        )


def _stored_bytes(session: Session, project: Project) -> int:
    of_project = select(func.sum(func.coalesce(_LOGS, 0) + func.coalesce(_ARTIFACTS, 0)))
    joined = of_project.join_from(Attempt, Job, Attempt.job_id == Job.id).where(Job.project_id == project.id)
    return int(session.scalar(joined) or 0)
