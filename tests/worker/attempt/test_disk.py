"""Jobs that take more disk than they may, and disks that have too little for another."""

import errno
import os
import threading

import pytest
from support.deployment import TIMEOUT_SECONDS, wait_until

from core.db.database import Database
from core.db.models.jobs import Job
from core.jobs import lifecycle, projects, queries
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.scheduling.wait_status import wait_status
from core.jobs.states import JobState
from core.notify.wakeup_file import WakeupFile
from core.settings import DiskSettings, Settings
from core.storage.artifacts.store import ArtifactLimits, DirectoryStore
from worker.attempt import disk_quota, pipeline
from worker.attempt.control import AttemptControl
from worker.attempt.outputs import collection
from worker.attempt.outputs.recorder import OutputRecorder
from worker.attempt.pipeline import run_attempt
from worker.backends.job_processes import JobProcesses
from worker.context import WorkerContext
from worker.supervisor import Supervisor

pytestmark = pytest.mark.integration

MIB = 1024**2


@pytest.fixture
def database(sqlite_database: Database):
    return sqlite_database


@pytest.fixture
def opened(database, tmp_path, monkeypatch):
    monkeypatch.setattr(disk_quota, "CHECK_SECONDS", 0.1)

    def opened(**limits):
        settings = Settings(home=tmp_path / "home", disk=DiskSettings(**limits))
        settings.worker.lease_seconds, settings.worker.poll_seconds = 0.3, 0.05
        settings.worker.sweep_seconds = 0.1
        return WorkerContext.open(settings, database, worker_name="w1", hostname="here")

    return opened


@pytest.fixture
def claim(database, submit):
    def claim(command, **spec):
        submit(command, **spec)
        with database.write() as session:
            return claims.claim(session, WorkerOffer("w1", "here", ("process",)))

    return claim


def row(host, job) -> Job:
    with host.database.read() as session:
        return queries.get_row(session, job.id)


FULL = 'cd "$GRADIENT_{}_DIR"; echo small >a; fallocate --length 8M big; echo up; sleep 600'


@pytest.mark.parametrize("folder", ["WORKSPACE", "ARTIFACTS"])
def test_a_job_that_fills_the_disk_is_ended_and_what_fits_is_kept(opened, claim, folder):
    host = opened(job_mb=6)
    job = claim(FULL.format(folder), max_attempts=3, stop_grace=5)
    run_attempt(host, job, AttemptControl())
    ended = row(host, job)
    assert (ended.state, ended.reason) == (JobState.FAILED, "disk_quota")
    assert "of 6 MiB" in ended.reason_detail
    page = host.artifacts.list(job.id, 1)
    if folder == "ARTIFACTS":
        assert ([file.path for file in page.files], page.state) == (["a"], "partial")
        assert [skipped.path for skipped in page.skipped] == ["big"]


DELETED = 'exec 3>"$GRADIENT_{}_DIR/big"; rm "$GRADIENT_{}_DIR/big"; head -c 8M /dev/zero >&3; echo up; sleep {}'


@pytest.mark.parametrize("sandbox", ["auto", pytest.param("off", marks=pytest.mark.slow)])
def test_a_job_that_fills_the_disk_with_a_file_without_a_name_is_ended(opened, claim, sandbox):
    host = opened(job_mb=6)
    host.settings.process.sandbox = sandbox
    job = claim(DELETED.format("WORKSPACE", "WORKSPACE", 600), stop_grace=5)
    run_attempt(host, job, AttemptControl())
    assert (row(host, job).state, row(host, job).reason) == (JobState.FAILED, "disk_quota")


@pytest.mark.parametrize("sandbox", ["auto", pytest.param("off", marks=pytest.mark.slow)])
def test_a_deleted_file_of_the_shared_storage_is_no_job_s_own(opened, claim, sandbox):
    host = opened(job_mb=6)
    host.settings.process.sandbox = sandbox
    job = claim(DELETED.format("STORAGE", "STORAGE", 2))
    run_attempt(host, job, AttemptControl())
    assert row(host, job).reason == "completed"


def test_a_worker_that_takes_over_knows_that_the_quota_ended_the_job(opened, claim):
    host = opened(job_mb=6)
    job = claim(
        f"trap '' TERM; {FULL.format('WORKSPACE').removesuffix('sleep 600')}while :; do sleep 0.1; done", stop_grace=600
    )
    signals = AttemptControl()
    thread = threading.Thread(target=run_attempt, args=(host, job, signals))
    thread.start()
    control = host.scratch(job.id, 1).control
    wait_until((control / "stopping").exists, "it to be asked to end")
    signals.detach()
    thread.join(TIMEOUT_SECONDS)
    (adopted,) = host.write(
        lambda session: lifecycle.adopt(session, "w2", "here", backends=["process"], stale_seconds=-10)
    )
    host.backend("process").signal(adopted.handle, grace=False)
    host.settings.disk.job_mb = 0  # it measures nothing itself
    run_attempt(host, adopted, AttemptControl())
    assert row(host, job).reason == "disk_quota"


def test_a_sparse_file_is_no_way_to_keep_a_machine(tmp_path):
    """Six GiB of holes would be hashed, and written out where the store is on another disk."""
    source = tmp_path / "source"
    source.mkdir()
    with (source / "huge").open("wb") as file:
        file.write(b"begins")
        file.truncate(6 << 30)
    with (source / "small").open("wb") as file:
        file.truncate(2 * MIB)
    (source / "whole").write_bytes(os.urandom(2 * MIB))
    manifest = DirectoryStore(tmp_path / "store").close("j1", 1, source)
    assert (manifest.state, manifest.files, manifest.bytes) == ("partial", 2, 4 * MIB)
    assert [(one.path, "sparse" in one.why) for one in manifest.skipped] == [("huge", True)]


def test_many_small_holes_are_not_more_than_one_large_one(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in "abc":
        with (source / name).open("wb") as file:
            file.truncate(2 * MIB)
    limits = ArtifactLimits(max_hole_bytes=4 * MIB)
    manifest = DirectoryStore(tmp_path / "store", limits=limits).close("j1", 1, source)
    assert (manifest.files, [one.path for one in manifest.skipped]) == (2, ["c"])


@pytest.mark.parametrize("elsewhere", [False, True], ids=["linked", "copied"])
def test_collecting_is_stopped_by_who_does_not_want_to_wait(opened, claim, small_disk, monkeypatch, elsewhere):
    monkeypatch.setattr(collection, "CHECK_SECONDS", 0.0)
    host = opened()
    if elsewhere:
        small_disk(host.settings.root / "artifacts", 64 * MIB)
    host.settings.worker.sync_seconds = 600
    job = claim('for name in a b c; do head -c 4M /dev/urandom >"$GRADIENT_ARTIFACTS_DIR/$name"; done')
    close = host.artifacts.close

    def stop_first(*arguments, **options):
        host.write(lambda session: lifecycle.request_stop(session, job.id))
        return close(*arguments, **options)

    monkeypatch.setattr(host.artifacts, "close", stop_first)
    run_attempt(host, job, AttemptControl())
    ended = row(host, job)
    assert (ended.state, ended.reason, ended.artifacts_state) == (JobState.SUCCEEDED, "completed", "partial")
    page = host.artifacts.list(job.id, 1)
    assert page.files == ()
    assert {one.why for one in page.skipped} == {"collection was stopped before it was stored"}


@pytest.mark.parametrize("patience", [60.0, -1.0], ids=["for a moment", "for longer"])
def test_output_is_completed_when_a_full_disk_passes_though_the_user_stops_waiting(
    opened, claim, monkeypatch, patience
):
    monkeypatch.setattr(collection, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(pipeline, "TEARDOWN_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(pipeline, "STOPPED_COLLECT_SECONDS", patience)
    host = opened()
    job = claim("echo printed")
    finish, failures = OutputRecorder.finish, []

    def full_at_first(recorder):
        if not failures:
            host.write(lambda session: lifecycle.request_stop(session, job.id))
            failures.append(OSError(errno.ENOSPC, "No space left on device"))
            raise failures[0]
        finish(recorder)

    monkeypatch.setattr(OutputRecorder, "finish", full_at_first)
    run_attempt(host, job, AttemptControl())
    assert row(host, job).artifacts_state == ("none" if patience > 0 else "failed"), "it left no artifacts"


def is_asleep(job):
    return any(process.name() == "sleep" for process in JobProcesses(job.id, 1, leader=None).all())


def test_a_stopped_job_keeps_its_outputs_unless_it_is_stopped_again(opened, claim, monkeypatch):
    monkeypatch.setattr(collection, "CHECK_SECONDS", 0.0)
    host = opened()
    for again, state in ((False, "complete"), (True, "partial")):
        job = claim('echo left >"$GRADIENT_ARTIFACTS_DIR/left"; echo up; sleep 600')
        close, signals = host.artifacts.close, AttemptControl()

        def closing(*arguments, job=job, close=close, again=again, **options):
            if again:
                host.write(lambda session: lifecycle.request_stop(session, job.id))
            return close(*arguments, **options)

        monkeypatch.setattr(host.artifacts, "close", closing)
        thread = threading.Thread(target=run_attempt, args=(host, job, signals))
        thread.start()
        wait_until(lambda job=job: is_asleep(job), "its last program, which a stop reaches")
        wait_until(lambda job=job: row(host, job).state is JobState.RUNNING, "it to run")
        host.write(lambda session, job=job: lifecycle.request_stop(session, job.id))
        signals.request_stop()
        thread.join(TIMEOUT_SECONDS)
        monkeypatch.setattr(host.artifacts, "close", close)
        assert (row(host, job).state, row(host, job).artifacts_state) == (JobState.CANCELLED, state)


def test_artifacts_are_kept_up_to_what_is_left_of_the_projects_quota(opened, claim):
    host = opened()
    job = claim('cd "$GRADIENT_ARTIFACTS_DIR"; echo small >a; head -c 2M /dev/urandom >big')
    host.write(lambda session: projects.update_limits(session, job.project_id, {"max_stored_mb": 1}))
    run_attempt(host, job, AttemptControl())
    page = host.artifacts.list(job.id, 1)
    assert (row(host, job).state, page.state) == (JobState.SUCCEEDED, "partial")
    assert ([file.path for file in page.files], [one.path for one in page.skipped]) == (["a"], ["big"])


@pytest.fixture
def supervised(tmp_path):
    made = []

    def start(host):
        supervisor = Supervisor(host, WakeupFile(tmp_path / "wakeup"))
        thread = threading.Thread(target=supervisor.run)
        thread.start()
        made.append((supervisor, thread))

    yield start
    for supervisor, thread in made:
        supervisor.stop()
        thread.join()


def told(host, job):
    with host.database.read() as session:
        found = queries.get_row(session, job.id)
        return wait_status(session, found) if found.state is JobState.QUEUED else None


def test_a_worker_whose_disk_is_full_claims_nothing_and_jobs_say_so(opened, submit, supervised, small_disk):
    host = opened(min_free_mb=2)
    disk = small_disk(host.scratch_root, 4 * MIB)
    disk.fill()
    job = submit("true")
    supervised(host)
    said = wait_until(lambda: (one := told(host, job)) and one.reason == "low_disk" and one, "the reason")
    assert "have to stay free" in said.detail
    assert "here" in said.detail
    disk.free()
    wait_until(lambda: row(host, job).state is JobState.SUCCEEDED, "it to run once there is room")
    later = submit("true", machine="TPU")
    said = told(host, later)
    assert said is None or said.reason != "low_disk"
    wait_until(lambda: row(host, later).state is JobState.SUCCEEDED, "the other one to run, too")


def test_attempts_that_take_more_than_the_host_gives_keep_others_waiting(opened, submit, supervised):
    host = opened(host_mb=2)
    left = host.scratch_root / "somebody"
    left.mkdir(parents=True)
    (left / "data").write_bytes(os.urandom(4 * MIB))
    supervised(host)
    wait_until(lambda: host.scratch_bytes > 2 * MIB, "the measurement")
    job = submit("true")
    said = wait_until(lambda: (one := told(host, job)) and one.reason == "low_disk" and one, "the reason")
    assert "GRADIENT_DISK__HOST_MB" in said.detail
    (left / "data").unlink()
    wait_until(lambda: row(host, job).state is JobState.SUCCEEDED, "it to run once there is room")
