"""Deletes outputs of ended jobs, expired or on request, and workspaces that no job needs or names.

Safe to run in any process, repeatedly and concurrently.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import select

from core.db.models.jobs import Job, Project
from core.errors import SpecInvalid, StoreUnavailable
from core.jobs.guarded_updates import update_attempt
from core.jobs.states import TERMINAL
from core.jobs.templates import templates
from core.jobs.tracking import metrics
from core.security import sessions
from core.storage import retention
from core.storage.retention import DAY_SECONDS, DueRemoval, OutputKind, Policy
from core.storage.stores import Stores
from core.storage.workspaces import StoredFile

logger = logging.getLogger(__name__)

BATCH = 100  # jobs updated in one transaction
FREED_AFTER_SECONDS = 600.0
"""Time that the workspace of deleted jobs is kept after its last use: a submission may be about to name it again."""


@dataclass(slots=True)
class RemovalCount:
    """Number of jobs (or workspaces) with deletions, the bytes, and the oldest time of end (or of last use)."""

    count: int = 0
    bytes: int = 0
    oldest: datetime | None = None

    def add(self, size: int, at: datetime) -> None:
        self.count += 1
        self.bytes += size
        self.oldest = at if self.oldest is None else min(self.oldest, at)


@dataclass(slots=True)
class ProjectRemovals:
    """Deletions for one project by kind, and the finite policies behind them."""

    id: str
    name: str
    policies: dict[OutputKind, Policy]
    removed: dict[OutputKind, RemovalCount] = field(
        default_factory=lambda: {kind: RemovalCount() for kind in OutputKind}
    )


@dataclass(slots=True)
class PruneReport:
    """The deletions that were made, or that would be."""

    projects: list[ProjectRemovals] = field(default_factory=list)
    workspaces_days: int = 0  # days that workspaces are kept which no job needs; 0: until their jobs are deleted
    workspaces: RemovalCount = field(default_factory=RemovalCount)
    unfinished: int = 0
    failed: int = 0  # deletions that failed; the next run retries them
    more: bool = False

    @property
    def total(self) -> RemovalCount:
        """The sum over all projects and workspaces."""
        tallies = [tally for project in self.projects for tally in project.removed.values()] + [self.workspaces]
        ends = [tally.oldest for tally in tallies if tally.oldest is not None]
        counted, size = sum(tally.count for tally in tallies), sum(tally.bytes for tally in tallies)
        return RemovalCount(counted, size, min(ends, default=None))


def prune(
    stores: Stores,
    *,
    dry_run: bool = False,  # only report what would be deleted; nothing is changed
    seconds: float | None = None,
    progress: Callable[[PruneReport], None] | None = None,  # called with the report so far, after each batch
) -> PruneReport:
    """Delete what no policy keeps any longer: the database is updated first, then the files are deleted.

    Raises `StoreUnavailable`: the database does not answer; the next call does the rest.
    """
    until = None if seconds is None else time.monotonic() + seconds
    run = _Run(stores, dry_run=dry_run, until=until, progress=progress or (lambda _: None))
    run.run()
    return run.report


def remove_artifacts(stores: Stores, job: Job, selected: Callable[[str], bool] | None) -> None:
    """Delete artifacts of a job that has ended.

    `selected`: returns by public path whether to delete a file of the latest attempt; None: all of every attempt.
    Raises `OSError`: the store cannot be written.
    """
    if not job.ended:
        raise SpecInvalid("The job has not ended and would write its artifacts again. Stop it first.", field="jobId")
    if selected is not None:
        stores.artifacts.discard(job.id, job.attempt, selected)
        left = stores.artifacts.list(job.id, job.attempt, limit=0).total_bytes
        with stores.database.write() as session:
            update_attempt(session, job, artifact_bytes=left)
        return
    with stores.database.write() as session:
        retention.mark_expired(session, OutputKind.ARTIFACTS, [job.id], "on request", left=[job.id])
    # Committed. If this process dies here, the next pruning finds the files by `pending_deletions`.
    stores.artifacts.remove(job.id)
    with stores.database.write() as session:
        retention.clear_pending(session, [(job.id, OutputKind.ARTIFACTS)])


def remove_late_outputs(stores: Stores, job_id: str) -> None:
    """Remove what was stored of a deleted job after its outputs had been removed, by whoever began that before."""
    ended = Job.deleted_at.is_not(None), Job.state.in_(TERMINAL)
    with stores.database.read() as session:
        deleted = session.scalar(select(Job.id).where(Job.id == job_id, *ended)) is not None
    if deleted:
        stores.logs.remove(job_id)
        stores.artifacts.remove(job_id)


class _Run:
    def __init__(
        self, stores: Stores, *, dry_run: bool, until: float | None, progress: Callable[[PruneReport], None]
    ) -> None:
        self._stores = stores
        self._dry = dry_run
        self._until = until
        self._progress = progress
        self._settings = stores.settings.retention
        self._discarded: set[str] = set()
        self.report = PruneReport(workspaces_days=self._settings.workspaces_days)

    def run(self) -> None:
        if not self._dry:
            with self._stores.database.write() as session:
                sessions.remove_expired(session)
        self._resume_pending()
        with self._stores.database.read() as session:
            projects = list(session.scalars(select(Project).order_by(Project.name)))
        for project in projects:
            policies = {kind: retention.policy_for(project, kind, self._settings) for kind in OutputKind}
            ending = {kind: policy for kind, policy in policies.items() if policy.days is not None}
            if ending:
                tally = ProjectRemovals(project.id, project.name, ending)
                self.report.projects.append(tally)
                for kind in ending:
                    self._expire(tally, kind)
        self._free_workspaces()
        if self._settings.workspaces_days:
            self._discard_workspaces(self._settings.workspaces_days)
        self._discard_packs()
        self._remove_unnamed_uploads()

    def _time_is_up(self) -> bool:
        self.report.more = self.report.more or (self._until is not None and time.monotonic() >= self._until)
        return self.report.more

    def _resume_pending(self) -> None:
        """Delete files left by an interrupted run."""
        after = ("", "")
        while not self._time_is_up():
            with self._stores.database.read() as session:
                page = retention.pending_removals(session, after=after, limit=BATCH)
            if not page:
                return
            self.report.unfinished += len(page)
            if not self._dry:
                self._remove_files(page)
            after = page[-1]

    def _expire(self, tally: ProjectRemovals, kind: OutputKind) -> None:
        policy, after = tally.policies[kind], None
        while policy.days is not None and not self._time_is_up():
            with self._stores.database.read() as session:
                page = retention.due_removals(session, tally.id, kind, policy.days, after=after, limit=BATCH)
            if not page:
                return
            left = {job.id: size for job in page if (size := self._stored_bytes(job, kind)) is not None}
            going = {job.id for job in page} if self._dry else self._expire_batch(page, kind, policy, left)
            for job in page:
                if job.id in going and job.id in left:
                    tally.removed[kind].add(left[job.id], job.finished_at)
            self._progress(self.report)
            after = page[-1]

    def _expire_batch(
        self, page: Sequence[DueRemoval], kind: OutputKind, policy: Policy, left: dict[str, int]
    ) -> set[str]:
        with self._stores.database.write() as session:
            # Again: a schedule that was created since holds its inputs' rows until it is committed.
            kept = templates.needed_jobs(session) if kind is OutputKind.ARTIFACTS else ()
            going = [job.id for job in page if job.id not in kept]
            marked = retention.mark_expired(session, kind, going, policy.describe, left=left)
        # Committed. If this process dies from here on, the next run finds the files by `pending_deletions`.
        self._remove_files([(job_id, kind) for job_id in marked])
        return set(marked)

    def _stored_bytes(self, job: DueRemoval, kind: OutputKind) -> int | None:
        """Return the bytes of the job's log, or of the artifacts of all attempts; None if there are none."""
        try:
            if kind is OutputKind.LOGS:
                return self._stores.logs.reader(job.id).size or None
            pages = [self._stores.artifacts.list(job.id, attempt, limit=0) for attempt in range(1, job.attempt + 1)]
        except (OSError, ValueError, KeyError, TypeError, StoreUnavailable):
            # Unreadable output (a damaged disk) is deleted as well.
            logger.warning("output_not_measured", extra={"job_id": job.id, "what": kind.value}, exc_info=True)
            return 0
        return (
            sum(page.total_bytes for page in pages) if any(page.total_files or page.skipped for page in pages) else None
        )

    def _remove_files(self, removals: Sequence[tuple[str, OutputKind]]) -> None:
        gone = []
        for job_id, kind in removals:
            store = self._stores.logs if kind is OutputKind.LOGS else self._stores.artifacts
            try:
                store.remove(job_id)
                if kind is OutputKind.LOGS:  # metrics are kept as long as the log
                    metrics.remove(self._stores.database, job_id)
            except (OSError, StoreUnavailable):
                self.report.failed += 1
                logger.warning("files_not_removed", extra={"job_id": job_id, "what": kind.value}, exc_info=True)
            else:
                gone.append((job_id, kind))
        with self._stores.database.write() as session:
            retention.clear_pending(session, gone)

    def _free_workspaces(self) -> None:
        """Delete workspaces that only deleted jobs name."""
        unused_since = time.time() - FREED_AFTER_SECONDS
        # Listed before the database query, as below.
        unused = {
            workspace.sha256: workspace
            for workspace in self._stores.workspaces.stored()
            if workspace.used_at < unused_since
        }
        if not unused or self._time_is_up():
            return
        with self._stores.database.read() as session:
            freed = sorted(unused.keys() & retention.workspaces_of_deleted_jobs(session))
        for start in range(0, len(freed), BATCH):
            batch = freed[start : start + BATCH]
            with self._stores.database.read() as session:
                named = retention.workspaces_still_named(session, batch)
            for sha256 in batch:
                if sha256 not in named:
                    self._count_discarded(unused[sha256], unused_since)

    def _count_discarded(self, workspace: StoredFile, unused_since: float) -> None:
        if workspace.sha256 not in self._discarded and (self._dry or self._discard(workspace.sha256, unused_since)):
            self._discarded.add(workspace.sha256)
            self.report.workspaces.add(workspace.size, datetime.fromtimestamp(workspace.used_at, UTC))

    def _discard_workspaces(self, days: int) -> None:
        unused_since = time.time() - days * DAY_SECONDS
        # Listed before the database query: a job submitted later marks its workspace as used, which protects it.
        unused = [workspace for workspace in self._stores.workspaces.stored() if workspace.used_at < unused_since]
        if not unused or self._time_is_up():
            return
        with self._stores.database.read() as session:
            needed = retention.needed_workspaces(session, days)
        for workspace in unused:
            if workspace.sha256 not in needed:
                self._count_discarded(workspace, unused_since)
        self._progress(self.report)

    def _discard_packs(self) -> None:
        """Delete packs of files that no workspace names any more."""
        unused_since = time.time() - FREED_AFTER_SECONDS
        workspaces = self._stores.workspaces
        for pack in workspaces.unused_packs(unused_since=unused_since, without=self._discarded):
            if self._time_is_up():
                return
            if self._dry or workspaces.discard_pack(pack.sha256, unused_since=unused_since):
                self.report.workspaces.bytes += pack.size

    def _remove_unnamed_uploads(self) -> None:
        """Delete what is left in a bucket of uploads that were deleted, replaced or broken off."""
        uploaded = self._stores.storage.uploaded
        try:
            while uploaded is not None and not self._dry and not self._time_is_up() and uploaded.remove_unnamed():
                pass
        except StoreUnavailable:
            self.report.failed += 1
            logger.warning("uploads_not_removed", exc_info=True)

    def _discard(self, sha256: str, unused_since: float) -> bool:
        try:
            return self._stores.workspaces.discard(sha256, unused_since=unused_since)
        except OSError:
            self.report.failed += 1
            logger.warning("workspace_not_removed", extra={"sha256": sha256}, exc_info=True)
            return False
