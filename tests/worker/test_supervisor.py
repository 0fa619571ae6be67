"""The supervisor's loop, with attempts that only wait."""

import errno
import threading
import time

import pytest
from support.deployment import wait_until

from core.db.models.jobs import Worker
from core.errors import StoreUnavailable
from core.jobs import lifecycle, queries
from core.jobs.queries import JobFilter
from core.jobs.scheduling import claims, workers
from core.jobs.scheduling.wait_status import wait_status
from core.notify.wakeup_file import WakeupFile
from core.settings import Settings
from core.system.inotify import FileWatcher
from worker import supervisor as module
from worker import usable_gpus
from worker.context import WorkerContext
from worker.supervisor import Supervisor

pytestmark = pytest.mark.integration


@pytest.fixture
def attempts(monkeypatch, tmp_path):
    """The signals of every attempt that runs, by job id; an attempt ends when it is detached."""
    running = {}

    def wait(_host, job, signals, _run):
        running[job.id] = signals
        with FileWatcher(tmp_path) as watcher:
            signals.set_watcher(watcher)
            while not signals.detached:
                threading.Event().wait(0.01)
            signals.set_watcher(None)

    monkeypatch.setattr(module, "run_attempt", wait)
    return running


@pytest.fixture
def host(database, tmp_path):
    settings = Settings(home=tmp_path / "home")
    settings.worker.lease_seconds, settings.worker.poll_seconds = 0.3, 0.05
    return WorkerContext.open(settings, database, worker_name="w1", hostname="here")


@pytest.fixture
def supervisor(host, tmp_path):
    return Supervisor(host, WakeupFile(tmp_path / "wakeup"))


@pytest.fixture
def start(supervisor):
    thread = threading.Thread(target=supervisor.run)
    yield thread.start
    supervisor.stop()
    thread.join()


def test_a_job_that_another_worker_took_over_is_let_go(host, database, submit, attempts, start):
    job = submit()
    start()
    wait_until(lambda: job.id in attempts, "the job to be claimed")
    assert not attempts[job.id].detached
    with database.write() as session:
        assert lifecycle.adopt(session, "w2", "here", backends=["process"], stale_seconds=-10)
    wait_until(lambda: attempts[job.id].detached, "the first worker to let go")
    assert host.worker_name == "w1"


def test_the_loop_outlives_what_nobody_thought_of(host, submit, attempts, start, monkeypatch):
    failed = threading.Event()
    sweep = host.workspaces.sweep_temporary

    def fail(*arguments):
        if failed.is_set():
            return sweep(*arguments)
        failed.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "FAILURE_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(host.workspaces, "sweep_temporary", fail)
    host.settings.worker.sweep_seconds = 0.01
    start()
    wait_until(failed.is_set, "the sweep to fail")
    job = submit()
    wait_until(lambda: job.id in attempts, "the next job to be claimed all the same")
    assert not attempts[job.id].detached


def test_a_worker_that_cannot_claim_keeps_the_jobs_that_it_has(
    host, database, submit, attempts, start, monkeypatch, caplog
):
    """For example, because the disk of its outputs is gone: other workers must not take it for lost."""

    def fail():
        raise OSError(errno.ESTALE, "Stale file handle")

    def heartbeat():
        with database.read() as session:
            return queries.get_row(session, running.id).heartbeat_at

    def state():
        with database.read() as session:
            [(worker, state)] = workers.states(session)
            return state, worker.refusal

    running = submit()
    start()
    wait_until(lambda: running.id in attempts, "the first job to be claimed")
    monkeypatch.setattr(host, "disk_shortage", fail)
    submit()
    wait_until(lambda: "claim_failed" in caplog.text, "the claim of the second to fail")
    last = heartbeat()
    wait_until(lambda: heartbeat() > last, "a heartbeat of the first")
    assert state() == ("refusing", "It cannot claim jobs: OSError: [Errno 116] Stale file handle")
    monkeypatch.undo()
    wait_until(lambda: state() == ("ready", None), "it to claim again")


def test_attempts_that_end_or_wait_elsewhere_cost_few_looks_at_an_empty_queue(
    host, submit, attempts, start, supervisor, monkeypatch
):
    """An array's thousand members wake the loop twice each."""
    looks, has_claimable_job = [], supervisor._has_claimable_job
    monkeypatch.setattr(supervisor, "_has_claimable_job", lambda offer: looks.append(1) or has_claimable_job(offer))
    host.settings.worker.poll_seconds = 60
    running = submit()
    start()
    wait_until(lambda: running.id in attempts, "the job to be claimed")
    wait_until(lambda: looks, "a look at the queue")
    looks.clear()
    began = time.monotonic()
    for _ in range(100):
        attempts[running.id].set_waiting(waiting=True)
        attempts[running.id].set_waiting(waiting=False)
        time.sleep(0.002)
    assert len(looks) <= 2 + (time.monotonic() - began) / 0.1
    looks.clear()
    attempts[running.id].set_waiting(waiting=True)
    wait_until(lambda: looks, "a look that was put off")
    later = submit()
    wait_until(lambda: later.id in attempts, "a job that is submitted then to be claimed")


def test_a_job_whose_thread_cannot_be_started_is_taken_up_later(host, submit, attempts, start, monkeypatch):
    """As when a job has used up the threads that its host allows, for a moment."""
    failed = []

    def start_thread(thread, real=threading.Thread.start):
        if thread.name.startswith("job-") and not failed:
            failed.append(thread.name)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start_thread)
    host.settings.worker.sweep_seconds = 0.05
    job = submit()
    start()
    wait_until(lambda: job.id in attempts, "the job to be taken up")
    assert failed == [f"job-{job.id}"]


def test_cut_off_from_the_database_it_ends_what_others_will_start_again(host, submit, attempts, start, monkeypatch):
    once, again = submit(), submit(max_attempts=2)
    host.settings.worker.lost_after_seconds = 0.4
    monkeypatch.setattr(module, "DATABASE_PAUSE_SECONDS", 0.01)
    start()
    wait_until(lambda: {once.id, again.id} <= attempts.keys(), "both jobs to be claimed")
    write = host.database.write

    def away():
        raise StoreUnavailable("The database does not answer.")

    monkeypatch.setattr(host.database, "write", away)
    wait_until(lambda: attempts[again.id].contact_lost, "the job that may run again to be ended")
    assert not attempts[once.id].contact_lost, "nobody starts this one again: it runs on"
    monkeypatch.setattr(host.database, "write", write)


@pytest.fixture
def taken(host, monkeypatch):
    """GPUs of the host that are used by something other than a job, each with a description."""
    host.settings.worker.gpus, host.settings.worker.slots = ["0", "1"], 3
    found = {}
    monkeypatch.setattr(host, "taken_gpus", lambda gpus: {gpu: found[gpu] for gpu in gpus if gpu in found})
    return found


def test_a_gpu_that_something_uses_is_passed_over(database, submit, attempts, taken, host, start, monkeypatch):
    monkeypatch.setattr(usable_gpus, "REPORT_SECONDS", 0.1)
    host.settings.worker.sweep_seconds = 0.1
    taken["0"] = "900 MiB in use, by process 7"
    first, second = submit(machine="V100"), submit(machine="V100")
    submitted = submit()
    start()
    wait_until(lambda: {first.id, submitted.id} <= attempts.keys(), "those that can run to be claimed")

    def told():
        with database.read() as session:
            return session.get(Worker, "w1").taken_gpus

    def held():
        with database.read() as session:
            return {job.id: claims.gpus_of(session, job) for job in queries.page(session, JobFilter(), limit=9).jobs}

    assert (second.id in attempts, held()[first.id]) == (False, ("1",)), "the free GPU goes to the first"
    wait_until(lambda: told() == {"0": "900 MiB in use, by process 7"}, "it to be told why the second waits")
    taken["0"] = "901 MiB in use, by process 7"
    wait_until(lambda: told() == taken, "it to be told anew")
    del taken["0"]
    wait_until(lambda: second.id in attempts, "the second to be claimed once the GPU is free")
    assert held()[second.id] == ("0",)
    wait_until(lambda: told() is None, "nothing to be told any more")


def test_a_broken_gpu_gets_no_job_until_its_worker_is_resumed(
    database, submit, attempts, taken, host, start, monkeypatch
):
    host.settings.worker.sweep_seconds = 0.1
    broken = {"0": "it fell off the bus", "1": "7 ECC errors"}
    monkeypatch.setattr(host, "broken_gpus", lambda gpus: {gpu: broken[gpu] for gpu in gpus if gpu in broken})
    first = submit(machine="V100")
    start()

    def worker():
        with database.read() as session:
            return session.get(Worker, "w1")

    wait_until(lambda: (row := worker()) is not None and row.gpu_faults == broken, "both to be taken out")
    assert taken == {}
    with database.read() as session:
        told = wait_status(session, queries.get(session, first.id))
    assert "0 of 2 are free" in told.detail
    assert "GPU 0 is broken (it fell off the bus); GPU 1 is broken (7 ECC errors)" in told.detail
    broken["1"] = "8 ECC errors"
    with database.write() as session:
        workers.set_drained(session, "w1", drained=False)
    wait_until(lambda: first.id in attempts, "the job to be claimed")
    with database.read() as session:
        assert claims.gpus_of(session, queries.get(session, first.id)) == ("0",)
    assert worker().gpu_faults == {"1": "8 ECC errors"}, "its new fault was not accepted"


@pytest.fixture
def one_slot(host, monkeypatch):
    host.settings.worker.slots = 1
    monkeypatch.setattr(module, "MAX_WAITING", 1)


@pytest.mark.usefixtures("one_slot")
def test_a_job_that_only_waits_uses_no_slot(submit, attempts, start):
    first, second, third = submit(), submit(), submit()
    start()
    wait_until(lambda: first.id in attempts, "the first job to be claimed")
    assert second.id not in attempts
    attempts[first.id].set_waiting(waiting=True)
    wait_until(lambda: second.id in attempts, "another to be claimed in its place")
    attempts[second.id].set_waiting(waiting=True)
    threading.Event().wait(0.3)
    assert third.id not in attempts, "only as many wait without a slot as the settings allow"
    attempts[second.id].set_waiting(waiting=False)
    attempts[first.id].set_waiting(waiting=False)
    threading.Event().wait(0.3)
    assert third.id not in attempts
