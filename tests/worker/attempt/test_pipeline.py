"""One attempt over a real process, where the machine or an earlier worker fails it."""

import errno
import os
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import update
from support.deployment import wait_until
from support.servers.postgres import BackendTerminator

from core.db import migrations
from core.db.database import Database
from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.formatting import MIB
from core.jobs import lifecycle, queries
from core.jobs.queries import relations_of
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.states import JobState
from core.settings import Settings
from core.settings.worker import ProcessSettings
from core.storage.joblogs.writer import LogWriter
from core.storage.workspaces import WorkspaceStore
from worker.attempt import monitor
from worker.attempt import pipeline as module
from worker.attempt.control import AttemptControl, Detached
from worker.attempt.monitor import JobMonitor
from worker.attempt.pipeline import AttemptRun, run_attempt
from worker.backends.process import backend as process
from worker.backends.process.backend import ProcessBackend
from worker.context import WorkerContext
from worker.environments.prepare import _Preparation
from worker.runner.control_files import read_control

pytestmark = pytest.mark.integration


@pytest.fixture
def database(sqlite_database: Database):
    return sqlite_database


def ended(host, job):
    with host.database.read() as session:
        return queries.get_row(session, job.id)


def output(host, job):
    return [line.message for line in host.logs.reader(job.id).lines(0, 100, final=True)]


def test_a_full_disk_delays_output_and_ends_nothing(host, claim, monkeypatch):
    """The disk stays full for more looks than an attempt has failures."""
    append, refused = LogWriter.append, []

    def refuse(writer, *arguments, **options):
        if len(refused) < 8:
            refused.append(1)
            raise OSError(errno.ENOSPC, "No space left on device")
        return append(writer, *arguments, **options)

    monkeypatch.setattr(LogWriter, "append", refuse)
    monkeypatch.setattr(module, "FAILURE_PAUSE_SECONDS", 0.01)
    job = claim("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $i; sleep 0.1; done")
    run_attempt(host, job, AttemptControl())
    assert ended(host, job).state is JobState.SUCCEEDED
    assert output(host, job) == [str(number) for number in range(1, 13)]


def test_a_job_that_never_ran_does_not_wait_for_a_store_that_refuses(host, claim, monkeypatch):
    def refuse(*_, **__):
        raise StoreUnavailable("Cloud Storage: 403")

    monkeypatch.setattr(host.artifacts, "close", refuse)
    job = claim("true", working_dir="missing")
    run_attempt(host, job, AttemptControl())
    assert (ended(host, job).reason, ended(host, job).artifacts_state) == ("no_working_dir", "none")


def test_a_worker_that_was_frozen_leaves_its_successor_the_python_of_the_job(host, claim, monkeypatch):
    job = claim("true")
    installed = host.scratch(job.id, 1).root / "python" / "installed-by-the-job"

    def freeze(*_):
        with host.database.write() as session:  # another worker takes over
            session.execute(update(Job).values(lease=Job.lease + 1))
        installed.parent.mkdir()
        installed.touch()
        return Path(sys.prefix)

    monkeypatch.setattr(_Preparation, "install_packages", freeze)
    run_attempt(host, job, AttemptControl())
    assert installed.exists()


@pytest.mark.parametrize(("number", "reason"), [(errno.ENOSPC, "disk_full"), (errno.EIO, "launch_failed")])
def test_only_a_full_disk_is_said_to_be_full(host, claim, monkeypatch, number, reason):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(WorkspaceStore, "extract", fail)
    job = claim("true", workspace_sha256="0" * 64)
    run_attempt(host, job, AttemptControl())
    with host.database.read() as session:
        (attempt,) = queries.attempts(session, job.id)
    assert (attempt.reason, os.strerror(number) in attempt.reason_detail) == (reason, True)


def test_what_bills_is_given_back_before_a_long_copy_is_awaited(host, claim, tmp_path, monkeypatch):
    released, in_time, copying = threading.Event(), [], tmp_path / "copying"
    host.settings.worker.sync_seconds = 0.01

    def copy(*_):
        copying.touch()
        in_time.append(released.wait(60))

    monkeypatch.setattr(ProcessBackend, "release", lambda *_: released.set())
    monkeypatch.setattr(type(host.artifacts), "sync", copy)
    job = claim(f"while [ ! -e {copying} ]; do sleep 0.02; done")
    run_attempt(host, job, AttemptControl())
    assert in_time == [True]
    assert ended(host, job).state is JobState.SUCCEEDED


def test_an_attempt_that_is_given_up_keeps_its_output(host, claim, monkeypatch):
    monkeypatch.setattr(module, "FAILURE_PAUSE_SECONDS", 0.01)
    job = claim("echo said; echo made > $GRADIENT_ARTIFACTS_DIR/made; sleep 100")

    def fail(watch):
        log = watch.control / "log"
        wait_until(lambda: log.exists() and log.read_bytes(), "the output")
        wait_until(lambda: any(host.scratch(job.id, 1).artifacts.iterdir()), "the artifact")
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(JobMonitor, "run", fail)
    run_attempt(host, job, AttemptControl())
    row = ended(host, job)
    assert (row.state, row.reason, row.artifacts_state) == (JobState.FAILED, "internal_error", "complete")
    assert output(host, job) == ["said"]


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_ends_while_nobody_watches_was_stopped_all_the_same(host, claim, code):
    """A worker asks it to end and goes away; the next one finds only its exit code."""
    program = (
        f"import signal,sys; signal.signal(15, lambda *_: sys.exit({code})); print('up', flush=True); signal.pause()"
    )
    job = claim(f'exec "{sys.executable}" -c "{program}"')
    signals = AttemptControl()
    attempt = AttemptRun(host, job, signals)
    attempt.start()
    backend, handle = host.backend("process"), attempt.job.handle
    log = host.scratch(job.id, 1).control / "log"
    wait_until(lambda: log.exists() and b"up" in log.read_bytes(), "the job to listen")
    host.write(lambda session: lifecycle.request_stop(session, job.id))
    backend.signal(handle, grace=True)
    signals.detach()
    with pytest.raises(Detached):
        attempt.monitor()
    wait_until(lambda: backend.ended(handle), "the job to end")
    (adopted,) = host.write(
        lambda session: lifecycle.adopt(session, "w2", "here", backends=["process"], stale_seconds=-10)
    )
    run_attempt(host, adopted, AttemptControl(stop_requested=True))
    row = ended(host, job)
    assert (row.state, row.reason, row.exit_code) == (JobState.CANCELLED, "stopped_by_user", code)


def test_nothing_in_a_stored_handle_leads_to_another_attempt(host, claim):
    other, job = (AttemptRun(host, claim("sleep 100"), AttemptControl()) for _ in range(2))
    for attempt in (other, job):
        attempt.start()
    handles = [attempt.job.handle for attempt in (other, job)]
    names, scratch = ("job_id", "attempt", "name", "control"), host.scratch(job.job.id, 1)
    for stored in (handles[0], {"name": "../x"}, {"control": "/"}):
        own = scratch.own_handle(stored | {"runner": stored, "vm": stored})
        for handle in (own, own["runner"], own["vm"]):
            assert [handle[name] for name in names] == [handles[1][name] for name in names]
    assert scratch.own_handle(handles[1]) == handles[1], "its own is used as it is"
    for handle in handles:
        host.backend("process").destroy(handle)


def test_a_job_is_asked_to_end_though_that_cannot_be_recorded(host, claim):
    job = claim("sleep 100")
    attempt = AttemptRun(host, job, AttemptControl())
    attempt.start()
    backend, handle = host.backend("process"), attempt.job.handle
    control = host.scratch(job.id, 1).control
    wait_until(lambda: read_control(control, "started"), "the wrapper")
    (control / "stopping").mkdir()
    backend.signal(handle, grace=True)
    assert wait_until(lambda: backend.ended(handle), "the job to end").code == 143
    backend.destroy(handle)


def attempts(host, job):
    with host.database.read() as session:
        return queries.attempts(session, job.id)


def test_what_is_kept_of_each_attempt_is_recorded_when_it_is_closed(host, submit):
    command = 'echo "attempt $GRADIENT_ATTEMPT"; echo made >>"$GRADIENT_ARTIFACTS_DIR/made"'
    job = submit(f"{command}; kill -9 $$", max_attempts=2)
    for number in (1, 2):
        with host.database.write() as session:
            session.execute(update(Job).values(run_after=None))
        claimed = host.write(lambda session: claims.claim(session, WorkerOffer("w1", "here", ("process",))))
        assert claimed.attempt == number
        run_attempt(host, claimed, AttemptControl())
    rows = attempts(host, job)
    assert [row.artifact_bytes for row in rows] == [5, 10]
    assert rows[0].log_bytes == len("attempt 1\n")
    assert sum(row.log_bytes for row in rows) == host.logs.reader(job.id).size


def test_a_working_directory_that_leads_out_is_refused(host, claim, tmp_path):
    job = claim("pwd", working_dir="out")
    workspace = host.scratch(job.id, 1).workspace
    workspace.mkdir(parents=True)
    (workspace / "out").symlink_to(tmp_path)
    run_attempt(host, job, AttemptControl())
    assert ended(host, job).reason_detail == "out leads out of the workspace"
    assert output(host, job) == []


def test_shared_memory_that_this_computer_has_not_is_refused(host, claim):
    job = claim("true", shared_mem_mb=2**26)
    run_attempt(host, job, AttemptControl())
    row = ended(host, job)
    assert (row.reason, "but the job requests 67,108,864" in row.reason_detail) == ("option_refused", True)
    job = claim("true", shared_mem_mb=1)
    run_attempt(host, job, AttemptControl())
    assert ended(host, job).state is JobState.SUCCEEDED


def test_the_most_that_an_attempt_used_is_kept(host, claim, tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "SAMPLE_SECONDS", 1.0)
    sample, sampled = ProcessBackend.sample, tmp_path / "sampled"

    def sample_and_tell(backend, handle):
        values = sample(backend, handle)
        if values["memory_bytes"] > 80_000_000 and "cpu_percent" in values:
            sampled.touch()
        return values

    monkeypatch.setattr(ProcessBackend, "sample", sample_and_tell)
    job = claim(
        f"exec '{sys.executable}' -c 'import os, time\na = bytearray(80_000_000)\n"
        f'while not os.path.exists("{sampled}"): time.sleep(0.05)\''
    )
    run_attempt(host, job, AttemptControl())
    (row,) = attempts(host, job)
    assert row.peak_memory_bytes > 80_000_000
    assert row.peak_cpu_percent >= row.mean_cpu_percent >= 0
    assert 0 < row.sampled_seconds < 60
    assert (row.peak_gpu_percent, row.peak_gpu_memory_bytes) == (None, None)
    with host.database.read() as session:
        shown = relations_of(session, [ended(host, job)])[job.id].attempt
    assert shown.peak_memory_bytes == row.peak_memory_bytes


@pytest.mark.parametrize("cgroups", [pytest.param("off", marks=pytest.mark.slow), "auto"])
def test_the_memory_that_ended_an_attempt_is_kept(database, tmp_path, submit, cgroups):
    settings = Settings(home=tmp_path / "home", process=ProcessSettings(cgroups=cgroups))
    host = WorkerContext.open(settings, database, worker_name="w1", hostname="here")
    submit("exec python -c 'import time; a = b\"x\" * 200_000_000; time.sleep(600)'", memory_mb=100)
    job = host.write(lambda session: claims.claim(session, WorkerOffer("w1", "here", ("process",))))
    run_attempt(host, job, AttemptControl())
    assert ended(host, job).reason == "out_of_memory"
    (row,) = attempts(host, job)
    assert row.peak_memory_bytes >= 100 * MIB


def test_what_cannot_build_images_says_so_and_runs_nothing(host, claim):
    """The service refuses such jobs; one may have been submitted before its settings changed."""
    job = claim("echo ran", use_dockerfile=True, workspace_sha256=None)
    run_attempt(host, job, AttemptControl())
    row = ended(host, job)
    assert (row.state, row.reason, row.exit_code) == (JobState.FAILED, "image_build", None)
    assert output(host, job) == []


class TestOverPostgresql:
    @pytest.fixture
    def database(self, postgres):
        database = Database(postgres.new_database())
        migrations.upgrade(database)
        yield database
        database.close()

    def test_connections_that_die_at_the_end_of_reads_are_no_failures_of_the_attempt(
        self, host, claim, database, monkeypatch, caplog
    ):
        """More of them than an attempt has failures."""
        monkeypatch.setattr("worker.attempt.record.DATABASE_PAUSE_SECONDS", 0.01)
        monkeypatch.setattr(module, "FAILURE_PAUSE_SECONDS", 0.01)
        job = claim("echo done")
        started = AttemptRun(host, job, AttemptControl())
        started.start()
        backends = BackendTerminator(database, 8)
        run_attempt(host, started.job, AttemptControl())
        assert (ended(host, job).state, backends.remaining) == (JobState.SUCCEEDED, 0)
        assert "attempt_failed" not in caplog.text


def test_a_job_that_a_full_disk_kept_from_its_start_runs_when_there_is_room(host, claim, small_disk, monkeypatch):
    """The file system has no name left for the wrapper's lock: the command never began."""
    monkeypatch.setattr(process, "NEVER_STARTED_SECONDS", 0.5)
    disk = small_disk(host.scratch_root, 1024**2)
    job = claim("echo ran", max_attempts=1)
    attempt = AttemptRun(host, job, AttemptControl())
    attempt.prepare()
    disk.exhaust_inodes()
    run_attempt(host, job, AttemptControl())
    assert (ended(host, job).state, ended(host, job).machine_faults) == (JobState.QUEUED, 1)
    disk.free_inodes()
    monkeypatch.setattr(process, "NEVER_STARTED_SECONDS", 60.0)
    with host.database.write() as session:
        session.execute(update(Job).values(run_after=None))
    run_attempt(
        host,
        host.write(lambda session: claims.claim(session, WorkerOffer("w1", "here", ("process",)))),
        AttemptControl(),
    )
    assert (ended(host, job).state, output(host, job)) == (JobState.SUCCEEDED, ["ran"])
