"""Faults of the cluster and of workers while jobs are handed over, run and end: none is lost, none runs twice."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.backend_harness import BackendHarness
from support.deployment import wait_until
from support.slurm_cluster import running_cluster

from core.settings.slurm import SlurmSettings
from worker.backends.base import LaunchError
from worker.backends.slurm.commands import SlurmError
from worker.runner.streams import ExecRefused, ExecRequest

pytestmark = [pytest.mark.faults, pytest.mark.slow]

UNTIL_GO = 'echo run >>"$PWD/runs"; echo up; until [ -e go ]; do sleep 0.1; done; exit 7'


@pytest.fixture
def place(slurm, tmp_path):  # noqa: ARG001 - where its jobs run
    place = BackendHarness("slurm", tmp_path, slurm=SlurmSettings(enabled=True, poll_seconds=1))
    yield place
    place.clear()


def launching(place, spec, **calls):
    """Launch in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    return pool.submit(place.launch, spec, **calls)


class Killed(BaseException):
    """The worker ends at this point."""


def kill(*_):
    raise Killed


@pytest.mark.parametrize("point", ["created", "confirmed", "launched"])
def test_a_worker_killed_in_a_submission_is_followed_by_one_that_submits_once(place, monkeypatch, point):
    spec = place.spec('echo run >>"$PWD/runs"; echo up; sleep 600')
    with monkeypatch.context() as patch:
        patch.setattr("worker.backends.slurm.submitter.failpoint", lambda name: kill() if name == point else None)
        with pytest.raises(Killed):
            place.launch(spec)
    place.backend = place.new_instance()
    handle = place.launch(spec)
    wait_until(lambda: place.output(spec) == b"up\n", "its first line")
    assert (spec.workspace / "runs").read_text() == "run\n"
    assert [owned["name"] for owned in place.backend.owned()] == [spec.name]
    place.backend.destroy(handle)


@pytest.fixture(scope="module")
def slurm_accounting():
    """One cluster for all kills."""
    with running_cluster(accounting=True) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.conf))
        yield cluster


def lose_answer(place, strike):
    """Let Slurm take the next job, and the worker learn nothing of it; the event is set then."""
    struck, run = threading.Event(), place.backend._commands.run

    def submit(program, *arguments):
        answer = run(program, *arguments)
        if program == "sbatch" and not struck.is_set():
            try:
                strike()
            finally:
                struck.set()
        return answer

    place.backend._commands.run = submit
    return struck


def launch_with_kill(place, spec, victim, cluster):
    """Kill a part after Slurm has taken the job, and before the worker knows that."""
    if victim == "worker":
        lose_answer(place, kill)
        with pytest.raises(Killed):
            place.launch(spec)
        place.backend = place.new_instance()
        return place.launch(spec)

    def strike():
        cluster.save(cluster.run("squeue", "-h", "-t", "all", "-n", spec.name, "-o", "%A"))
        cluster.kill(victim)
        raise SlurmError("Socket timed out on send/recv operation", unanswered=True)

    struck, launch = lose_answer(place, strike), launching(place, spec)
    wait_until(struck.is_set, "Slurm to have the job")
    cluster.start_daemon(victim)
    return launch.result(300)


@pytest.mark.parametrize("phase", ["submission", "run", "end"])
@pytest.mark.parametrize("victim", ["slurmdbd", "n1", "worker", "slurmctld"])
def test_a_kill_neither_loses_nor_doubles_a_job(slurm_accounting, tmp_path, monkeypatch, victim, phase):
    monkeypatch.setattr("worker.backends.slurm.submitter._RETRY_SECONDS", 1.0)
    cluster, settings = slurm_accounting, SlurmSettings(enabled=True, poll_seconds=1, options=["--nodelist=n1"])
    place = BackendHarness("slurm", tmp_path, slurm=settings)
    spec = place.spec(UNTIL_GO)
    if phase == "submission":
        handle = launch_with_kill(place, spec, victim, cluster)
        (spec.workspace / "go").touch()
    else:
        handle = place.launch(spec)
        wait_until(lambda: place.output(spec) == b"up\n", "its first line")
        cluster.save(handle["allocation"]["name"])
        if phase == "end":
            (spec.workspace / "go").touch()
        if victim == "worker":
            place.backend = place.new_instance()
        else:
            cluster.kill(victim)
            assert phase == "end" or place.backend.ended(handle) is None
            cluster.start_daemon(victim)
        (spec.workspace / "go").touch()
    end = place.wait(handle)
    # A busy machine may start the node's daemon only when Slurm has given the node up.
    failed = end.reason == "slurm_node_failed" and victim == "n1"
    assert failed or (end.reason, end.code) == (None, 7)
    assert failed or (spec.workspace / "runs").read_text() == "run\n"
    place.backend.destroy(handle)
    cluster.wait_until_ready()
    assert cluster.run("squeue", "-h") == ""


def test_a_controller_that_is_away_for_long_loses_no_job(place, slurm, monkeypatch):
    began = time.monotonic()
    later = SimpleNamespace(monotonic=lambda: began + 100 * (time.monotonic() - began))  # 100 seconds are one
    monkeypatch.setattr("worker.backends.slurm.ends.time", later)
    monkeypatch.setattr("worker.backends.slurm.follower._REST_FACTOR", 0)
    spec, handle = place.running(UNTIL_GO)
    slurm.save(handle["allocation"]["name"])
    slurm.kill("slurmctld")
    until, reports = time.monotonic() + 6, []
    place.job_id = f"{place.job_id[:-1]}0"
    waiting = place.spec(UNTIL_GO)
    launch = launching(place, waiting, progress=lambda phase, detail: reports.append(f"{phase}: {detail}"))
    wait_until(lambda: reports[-1:] and re.match("waiting: .*does not answer", reports[-1]), "its report")
    with pytest.raises(LaunchError):
        place.backend.owned()
    wait_until(lambda: place.backend.ended(handle) is not None or time.monotonic() > until, "ten minutes")
    assert place.backend.ended(handle) is None
    slurm.start_daemon("slurmctld")
    for ours, its_handle in ((spec, handle), (waiting, launch.result(120))):
        (ours.workspace / "go").touch()
        assert place.wait(its_handle).code == 7
        assert (ours.workspace / "runs").read_text() == "run\n"


@pytest.mark.parametrize("states", [[], ["PENDING"], ["FAILED"]])
def test_a_job_that_slurm_forgot_runs_on_while_its_heartbeat_moves(place, monkeypatch, states):
    """As after a controller that lost its state, or only that the job began, and failed to start it again."""
    monkeypatch.setattr("worker.backends.slurm.ends._LATE_SECONDS", 1.0)
    spec, handle = place.running(UNTIL_GO)
    follower = place.backend._follower
    listed = [replace(job, state=state) for job, state in zip(follower.list_jobs(), states, strict=False)]
    monkeypatch.setattr(follower, "list_jobs", lambda: listed)
    monkeypatch.setattr(follower, "_query_one", lambda _: None)
    wait_until(lambda: follower.is_missing(spec.name) or (states and follower.job(spec.name).state in states), "that")
    until = time.monotonic() + 3
    while time.monotonic() < until:
        (spec.control / "heartbeat").touch()
        assert place.backend.ended(handle) is None
    (spec.workspace / "go").touch()
    end = place.wait(handle)
    assert (end.code, end.reason) == (7, None)


def test_a_job_that_an_administrator_requeues_is_an_attempt_of_its_own(place, slurm):
    spec, handle = place.running('echo run >>"$PWD/runs"; echo up; sleep 600')
    job_id = slurm.run("squeue", "-h", "-o", "%A")
    slurm.run("scontrol", "update", f"jobid={job_id}", "requeue=1")
    slurm.run("scontrol", "requeue", job_id)
    ended = place.wait(handle)
    assert ended.reason == "preempted"
    assert "requeued" in ended.detail
    place.backend.destroy(handle)
    assert (spec.workspace / "runs").read_text() == "run\n"


def test_a_number_that_is_another_jobs_by_now_leads_to_none(place, slurm, monkeypatch):
    """As after a cluster that lost its state and counts from 1 again."""
    other = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 600")
    spec, handle = place.running("echo up; sleep 600")
    for name in ("slurm_job", "slurm_number"):
        (spec.control / name).write_text(other)
    for grace in (True, False):
        place.backend.signal(handle, grace=grace)
    place.backend = place.new_instance()
    place.backend.ended(handle)
    monkeypatch.setattr(place.backend._follower, "list_jobs", list)
    wait_until(lambda: place.backend._follower.is_missing(spec.name), "Slurm not to know it")
    with pytest.raises(ExecRefused):
        place.backend.run_in_job(handle, ExecRequest("session", ("true",)))
    monkeypatch.undo()
    place.backend.destroy(handle)
    assert slurm.run("squeue", "-h", "-j", other, "-o", "%T") == "RUNNING"
    slurm.run("scancel", "--me")


def test_many_waiting_jobs_cost_one_query_at_a_time(place, slurm, monkeypatch):
    slurm.run("scontrol", "update", "partition=main", "state=down")
    queries, run = [], place.backend._commands.run
    monkeypatch.setattr(place.backend._commands, "run", lambda *words: (queries.append(words[0]), run(*words))[1])
    stopped = threading.Event()

    def progress(*_):
        if stopped.is_set():
            raise LaunchError("stopped_by_user", "before it was started")

    specs = []
    for number in range(1, 41):
        place.job_id = f"{place.job_id[:8]}{number:03}"
        specs.append(place.spec("true", check=progress))
    with ThreadPoolExecutor(40) as pool:
        launches = [pool.submit(place.launch, spec, progress=progress) for spec in specs]
        wait_until(lambda: len(slurm.run("squeue", "-h").splitlines()) == 40, "all to be in Slurm's queue")
        turn = place.backend._follower._turn
        queries.clear()
        wait_until(lambda: place.backend._follower._turn >= turn + 3, "three answers")
        assert queries.count("squeue") <= 4
        assert set(queries) == {"squeue"}
        stopped.set()
        for launch in launches:
            with pytest.raises(LaunchError):
                launch.result(60)
    slurm.run("scancel", "--me")
    slurm.run("scontrol", "update", "partition=main", "state=up")
