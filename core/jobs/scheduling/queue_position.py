"""Queue positions: the order in which claims would take the jobs that wait for the same machine type.

The order is that of the claim: the highest priority first; then the project with the fewest running jobs by then;
then the one that was served longest ago; then the oldest job. Jobs past their project's quota come after all others.
Jobs that cannot start at once (a pause before a retry, a need that no machine can meet now) keep their position.

No job rows are fetched, however many wait: the database counts them by project and priority, and the rest is
arithmetic.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import bindparam, case, func, literal_column, select
from sqlalchemy.orm import Session, aliased

from core.db.models.jobs import IS_QUEUED, Job, Project
from core.jobs.states import OWNED

_NEVER = datetime.min.replace(tzinfo=UTC)
_OF_TYPES = Job.machine_type.in_(bindparam("types", expanding=True))
_pool_counts = (
    select(Job.machine_type, Job.backend, Job.project_id, Job.priority, func.count().label("jobs"))
    .where(IS_QUEUED, _OF_TYPES)
    .group_by(Job.machine_type, Job.backend, Job.project_id, Job.priority)
    .subquery()
)
_other = aliased(Job)
_IS_OTHER_QUEUED = _other.state == literal_column("'queued'")
_OF_GROUP = (
    _IS_OTHER_QUEUED,
    _other.machine_type == _pool_counts.c.machine_type,
    _other.backend == _pool_counts.c.backend,
    _other.project_id == _pool_counts.c.project_id,
    _other.priority == _pool_counts.c.priority,
)
# The ends of each group are looked up in its index: as aggregates, they take as long as the count.
_GROUPS = select(
    *_pool_counts.c,
    select(func.min(_other.seq)).where(*_OF_GROUP).scalar_subquery().label("first_seq"),
    select(func.max(_other.seq)).where(*_OF_GROUP).scalar_subquery().label("last_seq"),
)
_OTHERS = (
    select(func.count())
    .where(
        _IS_OTHER_QUEUED,
        _other.machine_type == Job.machine_type,
        _other.backend == Job.backend,
        _other.project_id == Job.project_id,
        _other.priority == Job.priority,
    )
    .correlate(Job)
)
_BEFORE = _OTHERS.where(_other.seq < Job.seq).scalar_subquery()
_FROM_HERE = _OTHERS.where(_other.seq >= Job.seq).scalar_subquery()
_at_end = Job.seq.in_(bindparam("at_end", expanding=True))
_COUNTS = select(Job.seq, case((_at_end, _FROM_HERE), else_=_BEFORE).label("jobs")).where(
    IS_QUEUED, Job.seq.in_(bindparam("jobs", expanding=True))
)
_RUNNING = select(Job.project_id, func.count().label("jobs")).where(Job.state.in_(OWNED)).group_by(Job.project_id)
_PROJECTS = select(Project.id, Project.max_running, Project.last_claimed_at).where(
    Project.id.in_(bindparam("projects", expanding=True))
)


@dataclass(frozen=True, slots=True)
class ProjectUsage:
    """A project's use of machines, of all types together."""

    running: int = 0
    max_running: int | None = None  # most jobs that it may have there at once; None: no limit
    last_claimed_at: datetime | None = None  # time of its last claim; None: never

    @property
    def at_limit(self) -> bool:
        return self.max_running is not None and self.running >= self.max_running


@dataclass(frozen=True, slots=True)
class QueueGroup:
    """The jobs of one project and one priority that wait in one pool."""

    project_id: str
    priority: int
    jobs: int
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class QueuePosition:
    number: int  # 1 is next
    rank: int
    usage: ProjectUsage


@dataclass(frozen=True, slots=True)
class _GroupRow:
    """A group in claim order: its job k is taken when its project has `turn + k` jobs on machines."""

    group: QueueGroup
    before: int
    turn: int
    within_quota: int
    last_claimed_at: datetime

    def turn_range(self, *, over: bool) -> tuple[int, int]:
        """Return the range of turns of its jobs past the quota (`over`) or within it; the end is exclusive."""
        quota = self.turn + self.within_quota
        return (quota, self.turn + self.group.jobs) if over else (self.turn, quota)

    def tiebreak_key(self, turn: int) -> tuple[int, int, datetime, int]:
        """Return the sort key of jobs at the same turn: longest unserved project first, counting earlier turns."""
        return turn - self.turn, self.before, self.last_claimed_at, self.group.first_seq


class QueuePool:
    """The jobs that wait for one machine type."""

    def __init__(self, groups: Iterable[QueueGroup], usages: Mapping[str, ProjectUsage]) -> None:
        self._usages = usages
        self._rows: dict[int, list[_GroupRow]] = defaultdict(list)
        before: Counter[str] = Counter()
        for group in sorted(groups, key=lambda group: -group.priority):
            usage = usages.get(group.project_id, ProjectUsage())
            turn = usage.running + before[group.project_id]
            quota = group.jobs if usage.max_running is None else usage.max_running - turn
            within = max(0, min(group.jobs, quota))
            served = usage.last_claimed_at or _NEVER
            self._rows[group.priority].append(_GroupRow(group, before[group.project_id], turn, within, served))
            before[group.project_id] += group.jobs
        self._within_quota = {priority: sum(row.within_quota for row in rows) for priority, rows in self._rows.items()}
        self._jobs = {priority: sum(row.group.jobs for row in rows) for priority, rows in self._rows.items()}

    def position(self, project_id: str, priority: int, rank: int) -> QueuePosition:
        usage = self._usages.get(project_id, ProjectUsage())
        turn = usage.running + rank
        over = usage.max_running is not None and turn >= usage.max_running
        ahead = sum(self._within_quota.values()) if over else 0
        for higher in self._rows:
            if higher > priority:
                ahead += self._jobs[higher] - self._within_quota[higher] if over else self._within_quota[higher]
        rows = self._rows[priority]
        own_row = next((row for row in rows if row.group.project_id == project_id), None)
        for row in rows:
            first, last = row.turn_range(over=over)
            ahead += max(0, min(turn, last) - first)
            if own_row is not None and row is not own_row and first <= turn < last:
                ahead += row.tiebreak_key(turn) < own_row.tiebreak_key(turn)
        return QueuePosition(ahead + 1, rank, usage)


def queue_positions(session: Session, jobs: Sequence[Job]) -> dict[str, QueuePosition]:
    """Return the positions of some waiting jobs by job id, in four queries; jobs claimed meanwhile have none."""
    groups = _groups(session, jobs)
    usages = _project_usages(session, sorted({group.project_id for some in groups.values() for group in some}))
    pools = {pool: QueuePool(some, usages) for pool, some in groups.items()}
    ranks = _ranks(session, jobs, groups)
    return {
        job.id: pools[job.machine_type, job.backend].position(job.project_id, job.priority, ranks[job.seq])
        for job in jobs
        if job.seq in ranks
    }


def _groups(session: Session, jobs: Sequence[Job]) -> Mapping[tuple[str, str], Sequence[QueueGroup]]:
    """Return all groups of the jobs' machine types by pool: machine type and backend."""
    groups: dict[tuple[str, str], list[QueueGroup]] = defaultdict(list)
    for row in session.execute(_GROUPS, {"types": sorted({job.machine_type for job in jobs})}):
        group = QueueGroup(row.project_id, row.priority, row.jobs, row.first_seq, row.last_seq)
        groups[row.machine_type, row.backend].append(group)
    return groups


def _ranks(
    session: Session, jobs: Sequence[Job], groups: Mapping[tuple[str, str], Sequence[QueueGroup]]
) -> dict[int, int]:
    """Return how many jobs of the same project and pool come before each job, by `Job.seq`.

    Of its own group, those between the job and the nearer end are counted: the first and the last page of a long queue
    cost the same.
    """
    higher: dict[int, int] = {}
    group_of: dict[int, QueueGroup] = {}
    for job in jobs:
        pool = groups.get((job.machine_type, job.backend), ())
        of_project = {group.priority: group for group in pool if group.project_id == job.project_id}
        higher[job.seq] = sum(group.jobs for priority, group in of_project.items() if priority > job.priority)
        if job.priority in of_project:
            group_of[job.seq] = of_project[job.priority]
    at_end = {seq for seq, group in group_of.items() if group.last_seq - seq < seq - group.first_seq}
    ranks = {}
    for row in session.execute(_COUNTS, {"jobs": sorted(group_of), "at_end": sorted(at_end)}):
        before = max(0, group_of[row.seq].jobs - row.jobs) if row.seq in at_end else row.jobs
        ranks[row.seq] = higher[row.seq] + before
    return ranks


def prospective_positions(session: Session, jobs: Sequence[Job]) -> dict[str, QueuePosition]:
    """Return the positions that jobs would get if each of them alone were submitted now, by job id."""
    groups = _groups(session, jobs)
    projects = {group.project_id for some in groups.values() for group in some} | {job.project_id for job in jobs}
    usages = _project_usages(session, sorted(projects))
    return {job.id: _prospective_position(job, groups.get((job.machine_type, job.backend), ()), usages) for job in jobs}


def _prospective_position(job: Job, groups: Sequence[QueueGroup], usages: Mapping[str, ProjectUsage]) -> QueuePosition:
    own_group = next(
        (group for group in groups if (group.project_id, group.priority) == (job.project_id, job.priority)), None
    )
    with_job = (
        QueueGroup(job.project_id, job.priority, 1, sys.maxsize, sys.maxsize)
        if own_group is None
        else replace(own_group, jobs=own_group.jobs + 1)
    )
    pool = QueuePool([*(group for group in groups if group is not own_group), with_job], usages)
    rank = sum(group.jobs for group in groups if group.project_id == job.project_id and group.priority >= job.priority)
    return pool.position(job.project_id, job.priority, rank)


def _project_usages(session: Session, projects: Sequence[str]) -> dict[str, ProjectUsage]:
    running = {row.project_id: row.jobs for row in session.execute(_RUNNING)}
    rows = session.execute(_PROJECTS, {"projects": projects})
    return {row.id: ProjectUsage(running.get(row.id, 0), row.max_running, row.last_claimed_at) for row in rows}
