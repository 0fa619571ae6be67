"""Removal by retention policies: what is deleted, what stays, and recovery from a crash in between."""

import io
import os
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from sqlalchemy import event, func, select
from support.live_service import a_zip
from support.old_jobs import Aging, tree

from core.db.models.jobs import PendingDeletion
from core.jobs import lifecycle
from core.jobs.states import JobState
from core.settings import Settings
from core.settings.retention import RetentionSettings
from core.storage import prune as pruning
from core.storage import retention
from core.storage.archives import ArchiveLimits
from core.storage.artifacts.store import DirectoryStore
from core.storage.joblogs.files import JobLogs
from core.storage.prune import prune
from core.storage.retention import DAY_SECONDS, FOREVER, OutputKind
from core.storage.workspaces import WorkspaceStore


class Crash(BaseException):
    """The process ends here."""


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def kept(home, database):
    settings = Settings(home=home, retention=RetentionSettings(logs_days=30, artifacts_days=30, workspaces_days=30))
    return SimpleNamespace(
        settings=settings,
        database=database,
        logs=JobLogs(home / "logs"),
        artifacts=DirectoryStore(home / "artifacts"),
        workspaces=WorkspaceStore(home / "workspaces"),
    )


@pytest.fixture
def aging(kept, tmp_path):
    return Aging(kept, tmp_path / "left")


def pending(database):
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(PendingDeletion))


def removed(report, name="default"):
    (project,) = [one for one in report.projects if one.name == name]
    return {kind: (tally.count, tally.bytes) for kind, tally in project.removed.items()}


def test_what_is_due_goes_and_the_record_says_so(kept, aging, home):
    old = aging.job(31, log=b"one\ntwo\n", files=["model", "notes"])
    young = aging.job(29, log=b"one\n", files=["model"])
    before = tree(home / "artifacts" / young.id[:3] / young.id)
    report = prune(kept)
    assert removed(report) == {OutputKind.LOGS: (1, 8), OutputKind.ARTIFACTS: (1, 20)}
    assert (report.unfinished, report.failed, report.more) == (0, 0, False)
    row = aging.row(old)
    assert row.artifacts_state == "removed"
    assert row.logs_removed_at is not None
    assert row.artifacts_removed_at is not None
    assert aging.events(old) == [
        ("logs_removed", "The log was removed: kept 30 days after the job's end by the service's settings."),
        (
            "artifacts_removed",
            "The artifacts were removed: kept 30 days after the job's end by the service's settings.",
        ),
    ]
    assert not (home / "logs" / old.id[:3] / old.id).exists()
    assert not (home / "artifacts" / old.id[:3] / old.id).exists()
    assert tree(home / "artifacts" / young.id[:3] / young.id) == before
    assert aging.row(young).artifacts_state == "complete"
    assert pending(kept.database) == 0
    assert prune(kept).total.count == 0
    assert len(aging.events(old)) == 2


def test_without_a_policy_everything_is_kept_for_good(kept, aging, home):
    kept.settings.retention = RetentionSettings(workspaces_days=0)
    aging.job(10_000, log=b"x\n", files=["model"])
    kept.workspaces.add(io.BytesIO(a_zip()), ArchiveLimits())
    before = tree(home)
    report = prune(kept)
    assert (report.projects, report.workspaces_days, report.total.count) == ([], 0, 0)
    assert tree(home) == before


def test_a_projects_own_policy_wins(kept, aging):
    short = aging.job(5, project="short", log=b"x\n", files=["model"])
    forever = aging.job(5000, project="forever", log=b"x\n", files=["model"])
    mixed = aging.job(5000, project="mixed", log=b"x\n", files=["model"])
    aging.policy("short", keep_logs_days=4)
    aging.policy("forever", keep_logs_days=FOREVER, keep_artifacts_days=FOREVER)
    aging.policy("mixed", keep_artifacts_days=FOREVER)
    report = prune(kept)
    assert [project.name for project in report.projects] == ["mixed", "short"]
    assert [removed(report, name)[OutputKind.LOGS] for name in ("short", "mixed")] == [(1, 2), (1, 2)]
    assert [aging.row(job).artifacts_state for job in (short, forever, mixed)] == ["complete"] * 3
    assert aging.row(forever).logs_removed_at is None
    assert aging.events(short)[0][1] == "The log was removed: kept 4 days after the job's end by its project's policy."


def test_a_job_that_left_nothing_is_not_told_to_have_lost_it(kept, aging):
    job = aging.job(31)
    assert prune(kept).total.count == 0
    row = aging.row(job)
    assert (row.artifacts_state, aging.events(job)) == ("none", [])
    with kept.database.read() as session:
        due = retention.due_removals(session, job.project_id, OutputKind.LOGS, 30, after=None, limit=10)
    assert due == [], "it is not looked at again"


def test_all_attempts_of_a_job_go(kept, aging, home):
    job = aging.job(31, files=["model"])
    aging.write(job, b"", ["model", "more"], attempt=2)
    with kept.database.write() as session:
        session.get(type(job), job.seq).attempt = 2
    assert removed(prune(kept))[OutputKind.ARTIFACTS] == (1, 30)
    assert not (home / "artifacts" / job.id[:3] / job.id).exists()


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.FINISHING])
def test_a_job_that_has_not_ended_keeps_everything(kept, aging, state):
    job = aging.job(5000, state=state, log=b"x\n", files=["model"])
    assert prune(kept).total.count == 0
    assert kept.logs.reader(job.id).size == 2
    assert aging.row(job).logs_removed_at is None


def test_a_deleted_job_is_left_to_its_own_removal(kept, aging):
    job = aging.job(31, log=b"x\n")
    with kept.database.write() as session:
        lifecycle.delete(session, job.id)
    assert prune(kept).total.count == 0
    with kept.database.write() as session:
        lifecycle.mark_outputs_removed(session, job.id)
    row = aging.row(job)
    assert (row.artifacts_state, row.logs_removed_at is None) == ("removed", False)


@pytest.mark.parametrize("store", ["logs", "artifacts"])
def test_a_crash_between_record_and_files_is_mended_by_the_next_pass(kept, aging, home, monkeypatch, store):
    jobs = [aging.job(31, log=b"x\n", files=["model"]) for _ in range(3)]

    def die(_self, _job_id):
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(type(getattr(kept, store)), "remove", die)
        with pytest.raises(Crash):
            prune(kept)
    assert pending(kept.database) == 3
    for job in jobs:
        row = aging.row(job)
        assert (row.logs_removed_at if store == "logs" else row.artifacts_removed_at) is not None
        assert (home / store / job.id[:3] / job.id).exists()
    report = prune(kept)
    assert (report.unfinished, report.failed, pending(kept.database)) == (3, 0, 0)
    for job in jobs:
        assert not (home / "logs" / job.id[:3] / job.id).exists()
        assert not (home / "artifacts" / job.id[:3] / job.id).exists()
        assert len(aging.events(job)) == 2


def test_files_that_cannot_be_removed_hold_up_nobody_and_are_tried_again(kept, aging, monkeypatch):
    stuck, other = (aging.job(31, log=b"x\n") for _ in range(2))
    remove = JobLogs.remove

    def refuse(self, job_id):
        if job_id == stuck.id:
            raise PermissionError(13, "not yours")
        remove(self, job_id)

    with monkeypatch.context() as patched:
        patched.setattr(JobLogs, "remove", refuse)
        assert prune(kept).failed == 1
    assert kept.logs.reader(other.id).size == 0
    assert pending(kept.database) == 1
    report = prune(kept)
    assert (report.unfinished, report.failed, pending(kept.database)) == (1, 0, 0)
    assert kept.logs.reader(stuck.id).size == 0


def test_a_dry_run_tells_the_same_and_changes_nothing(kept, aging, home):
    jobs = [aging.job(31 + number, log=b"x\n", files=["model"]) for number in range(3)]
    stored = kept.workspaces.add(io.BytesIO(a_zip()), ArchiveLimits())
    age(kept, stored.sha256, 40)
    before, rows = tree(home), [vars_of(aging.row(job)) for job in jobs]
    dry = prune(kept, dry_run=True)
    assert (tree(home), [vars_of(aging.row(job)) for job in jobs]) == (before, rows)
    assert pending(kept.database) == 0
    assert prune(kept) == dry
    assert (dry.total.count, dry.workspaces.count) == (7, 1)


def vars_of(row):
    return {column.key: getattr(row, column.key) for column in type(row).__table__.columns if column.key != "spec"}


def test_it_goes_in_batches_and_stops_between_them(kept, aging, monkeypatch):
    monkeypatch.setattr(pruning, "BATCH", 2)
    for number in range(5):
        aging.job(31 + number, log=b"x\n")
    aging.job(1, log=b"x\n")
    assert prune(kept, seconds=0).more
    told = []
    report = prune(kept, progress=lambda so_far: told.append(so_far.total.count))
    assert removed(report)[OutputKind.LOGS] == (5, 10)
    assert told[:3] == [2, 4, 5]
    assert not report.more


def test_two_at_once_remove_everything_once(kept, aging, monkeypatch, home):
    monkeypatch.setattr(pruning, "BATCH", 3)
    jobs = [aging.job(31 + number, log=b"x\n", files=["a", "b"]) for number in range(12)]
    reports = []
    threads = [threading.Thread(target=lambda: reports.append(prune(kept))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 2
    reports.append(prune(kept))
    total = Counter()
    for report in reports:
        total.update({kind: count for kind, (count, _) in removed(report).items()})
        assert report.failed == 0
    assert total == {OutputKind.LOGS: 12, OutputKind.ARTIFACTS: 12}
    assert pending(kept.database) == 0
    assert [len(aging.events(job)) for job in jobs] == [2] * 12
    assert not any(path.is_file() for store in ("logs", "artifacts") for path in (home / store).rglob("*"))


@pytest.mark.parametrize("kind", OutputKind)
def test_what_is_due_is_found_by_its_index(kept, aging, kind):
    job = aging.job(31, log=b"x\n")
    asked = []
    listen = (kept.database.engine, "before_cursor_execute", lambda _c, _u, *asks: asked.append(asks[:2]))
    event.listen(*listen)
    with kept.database.read() as session:
        found = retention.due_removals(session, job.project_id, kind, 30, after=None, limit=10)
        assert retention.due_removals(session, job.project_id, kind, 30, after=found[0], limit=10) == []
    event.remove(*listen)
    asked = [one for one in asked if one[0].startswith("SELECT")]
    with kept.database.engine.connect() as connection:
        for setting in () if kept.database.is_sqlite else ("seqscan", "sort"):  # so few rows would be read whole
            connection.exec_driver_sql(f"SET enable_{setting} = off")
        explain = "EXPLAIN QUERY PLAN " if kept.database.is_sqlite else "EXPLAIN "
        for statement, values in asked:
            plan = str(connection.exec_driver_sql(explain + statement, values).all())
            assert f"ix_jobs_kept_{kind.value}" in plan, plan
    assert len(asked) == 2


def age(kept, sha256, days):
    at = time.time() - days * DAY_SECONDS
    os.utime(kept.workspaces.path(sha256), (at, at))


@pytest.fixture
def archive(kept):
    """Stores an archive that was last used so many days ago."""

    def store(content, days):
        stored = kept.workspaces.add(io.BytesIO(a_zip({"main.py": content})), ArchiveLimits())
        age(kept, stored.sha256, days)
        return stored.sha256

    return store


def test_archives_go_that_no_job_needs(kept, aging, archive):
    unused, fresh, waiting, recent, over, hidden = (
        archive(name, 5 if name == b"fresh" else 100)
        for name in (b"unused", b"fresh", b"waiting", b"recent", b"over", b"hidden")
    )
    aging.job(100, state=JobState.QUEUED, workspace_sha256=waiting)
    aging.job(29, workspace_sha256=recent)
    aging.job(31, workspace_sha256=recent)
    aging.job(31, workspace_sha256=over)
    gone = aging.job(2, workspace_sha256=hidden)
    with kept.database.write() as session:
        lifecycle.delete(session, gone.id)
    report = prune(kept)
    assert report.workspaces.count == 3
    assert {one.sha256 for one in kept.workspaces.archives()} == {fresh, waiting, recent}
    assert not any(kept.workspaces.has(sha256) for sha256 in (unused, over, hidden))
    assert not list((kept.settings.root / "workspaces" / "incoming").iterdir())


def test_an_archive_that_a_new_job_is_about_to_name_stays(kept, archive, monkeypatch):
    sha256 = archive(b"again", 100)
    ask = retention.needed_workspaces

    def submitted_meanwhile(session, days):
        found = ask(session, days)
        assert kept.workspaces.mark_used(sha256)
        return found

    monkeypatch.setattr(retention, "needed_workspaces", submitted_meanwhile)
    assert prune(kept).workspaces.count == 0
    assert kept.workspaces.has(sha256)
