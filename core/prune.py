"""Removes what policies no longer keep: logs and artifacts of jobs that ended for long, archives that no job needs.

May run anywhere, any number of times, also beside itself.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from sqlalchemy import select

from core import retention, sessions
from core.artifacts import ArtifactStore
from core.db import Database
from core.errors import StoreUnavailable
from core.joblogs import JobLogs
from core.jobs import measured
from core.jobs.models import Project
from core.retention import DAY_SECONDS, Due, Kind, Policy
from core.settings import Settings
from core.workspaces import WorkspaceStore

logger = logging.getLogger(__name__)

BATCH = 100
"""Jobs whose record is written in one transaction."""


class Kept(Protocol):
    """Everything that is kept: what the service and every worker hold open."""

    @property
    def settings(self) -> Settings:
        """The process's configuration."""

    @property
    def database(self) -> Database:
        """The truth."""

    @property
    def logs(self) -> JobLogs:
        """What jobs print."""

    @property
    def artifacts(self) -> ArtifactStore:
        """What jobs leave."""

    @property
    def workspaces(self) -> WorkspaceStore:
        """Uploaded archives."""


@dataclass(slots=True)
class Tally:
    """How many jobs (or archives) something is removed of, its bytes, and when the oldest ended (or was last used)."""

    count: int = 0
    bytes: int = 0
    oldest: datetime | None = None

    def add(self, size: int, at: datetime) -> None:
        """Count one more."""
        self.count += 1
        self.bytes += size
        self.oldest = at if self.oldest is None else min(self.oldest, at)


@dataclass(slots=True)
class ProjectTally:
    """What goes of one project, by kind; and the policies it goes by, of those kinds that are not kept for good."""

    id: str
    name: str
    policies: dict[Kind, Policy]
    removed: dict[Kind, Tally] = field(default_factory=lambda: {kind: Tally() for kind in Kind})


@dataclass(slots=True)
class Report:
    """What was removed, or what would be.

    Attributes:
        projects: Those whose policies do not keep everything for good.
        workspaces_days: How long an archive is kept that no job needs; 0: for good.
        workspaces: The archives.
        unfinished: Removals of an earlier time whose files were still there.
        failed: Removals whose files could not be removed; they are tried again next time.
        more: Whether time ran out before everything was done.
    """

    projects: list[ProjectTally] = field(default_factory=list)
    workspaces_days: int = 0
    workspaces: Tally = field(default_factory=Tally)
    unfinished: int = 0
    failed: int = 0
    more: bool = False

    @property
    def total(self) -> Tally:
        """All of it together."""
        tallies = [tally for project in self.projects for tally in project.removed.values()] + [self.workspaces]
        ends = [tally.oldest for tally in tallies if tally.oldest is not None]
        counted, size = sum(tally.count for tally in tallies), sum(tally.bytes for tally in tallies)
        return Tally(counted, size, min(ends, default=None))


def prune(
    kept: Kept,
    *,
    dry_run: bool = False,
    seconds: float | None = None,
    progress: Callable[[Report], None] | None = None,
) -> Report:
    """Remove what no policy keeps any longer: the record says so first, then the files go.

    Args:
        kept: The open stores.
        dry_run: Only say what would go; nothing is changed.
        seconds: Begin no further batch after this time.
        progress: Told what was removed so far, after each batch.

    Raises:
        StoreUnavailable: The database does not answer; what is not done is done by the next call.
    """
    until = None if seconds is None else time.monotonic() + seconds
    run = _Run(kept, dry_run=dry_run, until=until, progress=progress or (lambda _: None))
    run.whole()
    return run.report


class _Run:
    """One pass over everything."""

    def __init__(self, kept: Kept, *, dry_run: bool, until: float | None, progress: Callable[[Report], None]) -> None:
        self._kept = kept
        self._dry = dry_run
        self._until = until
        self._progress = progress
        self._settings = kept.settings.retention
        self.report = Report(workspaces_days=self._settings.workspaces_days)

    def whole(self) -> None:
        """Everything that is due."""
        if not self._dry:
            with self._kept.database.write() as session:
                sessions.remove_expired(session, self._kept.settings.sign_in)
        self._finish_earlier()
        with self._kept.database.read() as session:
            projects = list(session.scalars(select(Project).order_by(Project.name)))
        for project in projects:
            policies = {kind: retention.policy(project, kind, self._settings) for kind in Kind}
            ending = {kind: policy for kind, policy in policies.items() if policy.days is not None}
            if ending:
                tally = ProjectTally(project.id, project.name, ending)
                self.report.projects.append(tally)
                for kind in ending:
                    self._expire(tally, kind)
        if self._settings.workspaces_days:
            self._discard_workspaces(self._settings.workspaces_days)

    def _time_is_up(self) -> bool:
        self.report.more = self.report.more or (self._until is not None and time.monotonic() >= self._until)
        return self.report.more

    def _finish_earlier(self) -> None:
        """Remove files that the record has already given up: whoever wrote that did not come to it."""
        after = ("", "")
        while not self._time_is_up():
            with self._kept.database.read() as session:
                page = retention.unfinished(session, after=after, limit=BATCH)
            if not page:
                return
            self.report.unfinished += len(page)
            if not self._dry:
                self._remove_files(page)
            after = page[-1]

    def _expire(self, tally: ProjectTally, kind: Kind) -> None:
        policy, after = tally.policies[kind], None
        while policy.days is not None and not self._time_is_up():
            with self._kept.database.read() as session:
                page = retention.due(session, tally.id, kind, policy.days, after=after, limit=BATCH)
            if not page:
                return
            left = {job.id: size for job in page if (size := self._left(job, kind)) is not None}
            going = {job.id for job in page} if self._dry else self._expire_batch(page, kind, policy, left)
            for job in page:
                if job.id in going and job.id in left:
                    tally.removed[kind].add(left[job.id], job.finished_at)
            self._progress(self.report)
            after = page[-1]

    def _expire_batch(self, page: Sequence[Due], kind: Kind, policy: Policy, left: dict[str, int]) -> set[str]:
        with self._kept.database.write() as session:
            marked = retention.expire(session, kind, [job.id for job in page], policy.sentence, left=left)
        # The record stands. Whoever dies from here on leaves files that the next pass finds by `removals`.
        self._remove_files([(job_id, kind) for job_id in marked])
        return set(marked)

    def _left(self, job: Due, kind: Kind) -> int | None:
        """Bytes that the job printed, or left in all its attempts; None if that is nothing."""
        try:
            if kind is Kind.LOGS:
                return self._kept.logs.reader(job.id).size or None
            pages = [self._kept.artifacts.list(job.id, attempt, limit=0) for attempt in range(1, job.attempt + 1)]
        except (OSError, ValueError, KeyError, TypeError, StoreUnavailable):
            # What cannot be read any more (a damaged disk) is removed like everything else.
            logger.warning("output_not_measured", extra={"job_id": job.id, "what": kind.value}, exc_info=True)
            return 0
        return (
            sum(page.total_bytes for page in pages) if any(page.total_files or page.skipped for page in pages) else None
        )

    def _remove_files(self, removals: Sequence[tuple[str, Kind]]) -> None:
        gone = []
        for job_id, kind in removals:
            store = self._kept.logs if kind is Kind.LOGS else self._kept.artifacts
            try:
                store.remove(job_id)
                if kind is Kind.LOGS:  # metrics are kept as long as the log
                    measured.remove(self._kept.database, job_id)
            except (OSError, StoreUnavailable):
                self.report.failed += 1
                logger.warning("files_not_removed", extra={"job_id": job_id, "what": kind.value}, exc_info=True)
            else:
                gone.append((job_id, kind))
        with self._kept.database.write() as session:
            retention.done(session, gone)

    def _discard_workspaces(self, days: int) -> None:
        unused_since = time.time() - days * DAY_SECONDS
        # Listed before the record is asked: a job that comes after that uses its archive, which keeps it.
        unused = [archive for archive in self._kept.workspaces.archives() if archive.used_at < unused_since]
        if not unused or self._time_is_up():
            return
        with self._kept.database.read() as session:
            needed = retention.needed_workspaces(session, days)
        for archive in unused:
            if archive.sha256 in needed:
                continue
            if self._dry or self._discard(archive.sha256, unused_since):
                self.report.workspaces.add(archive.size, datetime.fromtimestamp(archive.used_at, UTC))
        self._progress(self.report)

    def _discard(self, sha256: str, unused_since: float) -> bool:
        try:
            return self._kept.workspaces.discard(sha256, unused_since=unused_since)
        except OSError:
            self.report.failed += 1
            logger.warning("workspace_not_removed", extra={"sha256": sha256}, exc_info=True)
            return False
