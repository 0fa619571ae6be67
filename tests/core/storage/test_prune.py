"""Removal by retention policies: what is deleted, what stays, and recovery from a crash in between."""

import io
import os
import threading
import time
from collections import Counter

import pytest
from sqlalchemy import func, select
from support.live_service import make_zip
from support.retention_jobs import RetentionJobs, read_tree

from core.db.models.jobs import PendingDeletion
from core.jobs import lifecycle
from core.jobs.states import JobState
from core.settings import Settings
from core.settings.limits import RetentionSettings
from core.storage import prune as pruning
from core.storage import retention
from core.storage.artifacts.store import DirectoryStore
from core.storage.joblogs.store import JobLogs
from core.storage.prune import prune
from core.storage.retention import DAY_SECONDS, FOREVER, OutputKind
from core.storage.stores import Stores
from core.storage.workspaces.limits import WorkspaceLimits


class Crash(BaseException):
    """The process ends here."""


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def stores(home, database):
    settings = Settings(home=home, retention=RetentionSettings(logs_days=30, artifacts_days=30, workspaces_days=30))
    return Stores(settings=settings, database=database, artifacts=DirectoryStore(home / "artifacts"))


@pytest.fixture
def retention_jobs(stores, tmp_path):
    return RetentionJobs(stores, tmp_path / "left")


def pending(database):
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(PendingDeletion))


def removed(report, name="default"):
    (project,) = [one for one in report.projects if one.name == name]
    return {kind: (tally.count, tally.bytes) for kind, tally in project.removed.items()}


def test_what_is_due_goes_and_the_record_says_so(stores, retention_jobs, home):
    old = retention_jobs.create_job(31, log=b"one\ntwo\n", files=["model", "notes"])
    young = retention_jobs.create_job(29, log=b"one\n", files=["model"])
    before = read_tree(home / "artifacts" / young.id[:3] / young.id)
    report = prune(stores)
    assert removed(report) == {OutputKind.LOGS: (1, 8), OutputKind.ARTIFACTS: (1, 20)}
    assert (report.unfinished, report.failed, report.more) == (0, 0, False)
    row = retention_jobs.read_row(old)
    assert row.artifacts_state == "removed"
    assert row.logs_removed_at is not None
    assert row.artifacts_removed_at is not None
    assert retention_jobs.retention_events(old) == [
        ("logs_removed", "The log was removed: kept 30 days after the job's end by the service's settings."),
        (
            "artifacts_removed",
            "The artifacts were removed: kept 30 days after the job's end by the service's settings.",
        ),
    ]
    assert not (home / "logs" / old.id[:3] / old.id).exists()
    assert not (home / "artifacts" / old.id[:3] / old.id).exists()
    assert read_tree(home / "artifacts" / young.id[:3] / young.id) == before
    assert retention_jobs.read_row(young).artifacts_state == "complete"
    assert pending(stores.database) == 0
    assert prune(stores).total.count == 0
    assert len(retention_jobs.retention_events(old)) == 2


def test_without_a_policy_everything_is_kept_for_good(stores, retention_jobs, home):
    stores.settings.retention = RetentionSettings(workspaces_days=0)
    retention_jobs.create_job(10_000, log=b"x\n", files=["model"])
    stores.workspaces.add(io.BytesIO(make_zip()), WorkspaceLimits())
    before = read_tree(home)
    report = prune(stores)
    assert (report.projects, report.workspaces_days, report.total.count) == ([], 0, 0)
    assert read_tree(home) == before


def test_a_projects_own_policy_wins(stores, retention_jobs):
    short = retention_jobs.create_job(5, project="short", log=b"x\n", files=["model"])
    forever = retention_jobs.create_job(5000, project="forever", log=b"x\n", files=["model"])
    mixed = retention_jobs.create_job(5000, project="mixed", log=b"x\n", files=["model"])
    retention_jobs.set_retention("short", keep_logs_days=4)
    retention_jobs.set_retention("forever", keep_logs_days=FOREVER, keep_artifacts_days=FOREVER)
    retention_jobs.set_retention("mixed", keep_artifacts_days=FOREVER)
    report = prune(stores)
    assert [project.name for project in report.projects] == ["mixed", "short"]
    assert [removed(report, name)[OutputKind.LOGS] for name in ("short", "mixed")] == [(1, 2), (1, 2)]
    assert [retention_jobs.read_row(job).artifacts_state for job in (short, forever, mixed)] == ["complete"] * 3
    assert retention_jobs.read_row(forever).logs_removed_at is None
    assert (
        retention_jobs.retention_events(short)[0][1]
        == "The log was removed: kept 4 days after the job's end by its project's policy."
    )


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.FINISHING])
def test_a_job_that_has_not_ended_keeps_everything(stores, retention_jobs, state):
    job = retention_jobs.create_job(5000, state=state, log=b"x\n", files=["model"])
    assert prune(stores).total.count == 0
    assert stores.logs.reader(job.id).size == 2
    assert retention_jobs.read_row(job).logs_removed_at is None


def test_a_deleted_job_is_left_to_its_own_removal(stores, retention_jobs):
    job = retention_jobs.create_job(31, log=b"x\n")
    with stores.database.write() as session:
        lifecycle.delete(session, job.id)
    assert prune(stores).total.count == 0
    with stores.database.write() as session:
        retention.mark_outputs_removed(session, job.id)
    row = retention_jobs.read_row(job)
    assert (row.artifacts_state, row.logs_removed_at is None) == ("removed", False)


@pytest.mark.parametrize("store", ["logs", "artifacts"])
def test_a_crash_between_record_and_files_is_mended_by_the_next_pass(stores, retention_jobs, home, monkeypatch, store):
    jobs = [retention_jobs.create_job(31, log=b"x\n", files=["model"]) for _ in range(3)]

    def die(_self, _job_id):
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(type(getattr(stores, store)), "remove", die)
        with pytest.raises(Crash):
            prune(stores)
    assert pending(stores.database) == 3
    for job in jobs:
        row = retention_jobs.read_row(job)
        assert (row.logs_removed_at if store == "logs" else row.artifacts_removed_at) is not None
        assert (home / store / job.id[:3] / job.id).exists()
    report = prune(stores)
    assert (report.unfinished, report.failed, pending(stores.database)) == (3, 0, 0)
    for job in jobs:
        assert not (home / "logs" / job.id[:3] / job.id).exists()
        assert not (home / "artifacts" / job.id[:3] / job.id).exists()
        assert len(retention_jobs.retention_events(job)) == 2


def test_files_that_cannot_be_removed_hold_up_nobody_and_are_tried_again(stores, retention_jobs, monkeypatch):
    stuck, other = (retention_jobs.create_job(31, log=b"x\n") for _ in range(2))
    remove = JobLogs.remove

    def refuse(self, job_id):
        if job_id == stuck.id:
            raise PermissionError(13, "not yours")
        remove(self, job_id)

    with monkeypatch.context() as patched:
        patched.setattr(JobLogs, "remove", refuse)
        assert prune(stores).failed == 1
    assert stores.logs.reader(other.id).size == 0
    assert pending(stores.database) == 1
    report = prune(stores)
    assert (report.unfinished, report.failed, pending(stores.database)) == (1, 0, 0)
    assert stores.logs.reader(stuck.id).size == 0


def test_a_dry_run_tells_the_same_and_changes_nothing(stores, retention_jobs, home):
    jobs = [retention_jobs.create_job(31 + number, log=b"x\n", files=["model"]) for number in range(3)]
    stored = stores.workspaces.add(io.BytesIO(make_zip()), WorkspaceLimits())
    age(stores, stored.sha256, 40)
    before, rows = read_tree(home), [vars_of(retention_jobs.read_row(job)) for job in jobs]
    dry = prune(stores, dry_run=True)
    assert (read_tree(home), [vars_of(retention_jobs.read_row(job)) for job in jobs]) == (before, rows)
    assert pending(stores.database) == 0
    assert prune(stores) == dry
    assert (dry.total.count, dry.workspaces.count) == (7, 1)


def vars_of(row):
    return {column.key: getattr(row, column.key) for column in type(row).__table__.columns if column.key != "spec"}


def test_it_goes_in_batches_and_stops_between_them(stores, retention_jobs, monkeypatch):
    monkeypatch.setattr(pruning, "BATCH", 2)
    for number in range(5):
        retention_jobs.create_job(31 + number, log=b"x\n")
    retention_jobs.create_job(1, log=b"x\n")
    assert prune(stores, seconds=0).more
    told = []
    report = prune(stores, progress=lambda so_far: told.append(so_far.total.count))
    assert removed(report)[OutputKind.LOGS] == (5, 10)
    assert told[:3] == [2, 4, 5]
    assert not report.more


def test_two_at_once_remove_everything_once(stores, retention_jobs, monkeypatch, home):
    monkeypatch.setattr(pruning, "BATCH", 3)
    jobs = [retention_jobs.create_job(31 + number, log=b"x\n", files=["a", "b"]) for number in range(12)]
    reports = []
    threads = [threading.Thread(target=lambda: reports.append(prune(stores))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 2
    reports.append(prune(stores))
    total = Counter()
    for report in reports:
        total.update({kind: count for kind, (count, _) in removed(report).items()})
        assert report.failed == 0
    assert total == {OutputKind.LOGS: 12, OutputKind.ARTIFACTS: 12}
    assert pending(stores.database) == 0
    assert [len(retention_jobs.retention_events(job)) for job in jobs] == [2] * 12
    assert not any(path.is_file() for store in ("logs", "artifacts") for path in (home / store).rglob("*"))


def age(stores, sha256, days):
    at = time.time() - days * DAY_SECONDS
    os.utime(stores.workspaces.path(sha256), (at, at))


@pytest.fixture
def archive(stores):
    """Stores an archive that was last used so many days ago."""

    def store(content, days):
        stored = stores.workspaces.add(io.BytesIO(make_zip({"main.py": content})), WorkspaceLimits())
        age(stores, stored.sha256, days)
        return stored.sha256

    return store


def test_archives_go_that_no_job_needs(stores, retention_jobs, archive):
    unused, fresh, waiting, recent, over, hidden = (
        archive(name, 5 if name == b"fresh" else 100)
        for name in (b"unused", b"fresh", b"waiting", b"recent", b"over", b"hidden")
    )
    retention_jobs.create_job(100, state=JobState.QUEUED, workspace_sha256=waiting)
    retention_jobs.create_job(29, workspace_sha256=recent)
    retention_jobs.create_job(31, workspace_sha256=recent)
    retention_jobs.create_job(31, workspace_sha256=over)
    gone = retention_jobs.create_job(2, workspace_sha256=hidden)
    with stores.database.write() as session:
        lifecycle.delete(session, gone.id)
    report = prune(stores)
    assert report.workspaces.count == 3
    assert {one.sha256 for one in stores.workspaces.stored()} == {fresh, waiting, recent}
    assert not any(stores.workspaces.has(sha256) for sha256 in (unused, over, hidden))
    assert not list((stores.settings.root / "workspaces" / "incoming").iterdir())


def test_an_archive_that_a_new_job_is_about_to_name_stays(stores, archive, monkeypatch):
    sha256 = archive(b"again", 100)
    ask = retention.needed_workspaces

    def submitted_meanwhile(session, days):
        found = ask(session, days)
        assert stores.workspaces.mark_used(sha256)
        return found

    monkeypatch.setattr(retention, "needed_workspaces", submitted_meanwhile)
    assert prune(stores).workspaces.count == 0
    assert stores.workspaces.has(sha256)


def test_the_archive_of_deleted_jobs_is_freed_without_a_policy(stores, retention_jobs, database):
    stores.settings.retention = RetentionSettings(workspaces_days=0)
    archives = {}
    for name in ("deleted", "shared", "live", "unnamed", "recent"):
        stored = stores.workspaces.add(io.BytesIO(make_zip({"main.py": name})), WorkspaceLimits())
        archives[name] = stored.sha256
        at = time.time() - pruning.FREED_AFTER_SECONDS - 10
        if name != "recent":
            os.utime(stores.workspaces.path(stored.sha256), (at, at))
    gone = [retention_jobs.create_job(1, workspace_sha256=archives[name]) for name in ("deleted", "shared", "recent")]
    retention_jobs.create_job(1, workspace_sha256=archives["shared"])
    stopping = retention_jobs.create_job(0, state=JobState.RUNNING, workspace_sha256=archives["live"])
    with database.write() as session:
        for job in (*gone, stopping):
            lifecycle.delete(session, job.id)
    assert prune(stores, dry_run=True).workspaces.count == 1
    assert stores.workspaces.has(archives["deleted"])
    report = prune(stores)
    assert (report.workspaces.count, report.failed) == (1, 0)
    assert {one.sha256 for one in stores.workspaces.stored()} == set(archives.values()) - {archives["deleted"]}
