"""Faults of the cluster and of workers while jobs are handed over, run and end: none is lost, none runs twice."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.backend_harness import BackendHarness
from support.deployment import wait_until

from core.settings.slurm import SlurmSettings
from worker.backends.base import LaunchError

pytestmark = [pytest.mark.faults, pytest.mark.slow]


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
        patch.setattr("worker.backends.slurm.backend.failpoint", lambda name: kill() if name == point else None)
        with pytest.raises(Killed):
            place.launch(spec)
    place.backend = place.new_instance()
    handle = place.launch(spec)
    wait_until(lambda: place.output(spec) == b"up\n", "its first line")
    assert (spec.workspace / "runs").read_text() == "run\n"
    assert [owned["name"] for owned in place.backend.owned()] == [spec.name]
    place.backend.destroy(handle)


def test_a_controller_killed_before_during_and_after_a_job_changes_nothing(place, slurm):
    slurm.kill("slurmctld")
    reports = []
    spec = place.spec('echo run >>"$PWD/runs"; echo up; until [ -e go ]; do sleep 0.1; done; exit 7')
    launch = launching(place, spec, progress=lambda phase, detail: reports.append(f"{phase}: {detail}"))
    wait_until(
        lambda: reports[-1:] and reports[-1][0] == "waiting" and "does not answer" in reports[-1][1], "its report"
    )
    slurm.start_daemon("slurmctld")
    handle = launch.result(120)
    wait_until(lambda: place.output(spec) == b"up\n", "its first line")
    slurm.kill("slurmctld")
    assert place.backend.ended(handle) is None
    with pytest.raises(LaunchError):
        place.backend.owned()
    (spec.workspace / "go").touch()
    assert place.wait(handle).code == 7, "the exit file is the truth, without Slurm's word"
    slurm.start_daemon("slurmctld")
    assert (spec.workspace / "runs").read_text() == "run\n"


def test_a_daemon_of_a_node_that_is_away_ends_no_job(place, slurm):
    spec, handle = place.running("echo up; until [ -e go ]; do sleep 0.1; done; exit 7")
    node = slurm.run("squeue", "-h", "-o", "%N")
    slurm.kill(node)
    (spec.workspace / "go").touch()
    assert place.wait(handle).code == 7
    slurm.start_daemon(node)


def test_a_job_that_slurm_forgot_runs_on_while_its_heartbeat_moves(place, monkeypatch):
    """As after a controller that lost its state."""
    spec, handle = place.running("echo up; until [ -e go ]; do sleep 0.1; done; exit 7")
    monkeypatch.setattr(place.backend._follower, "list_jobs", list)
    monkeypatch.setattr(place.backend._follower, "_query_one", lambda _: None)
    wait_until(lambda: place.backend.ended(handle) is None and place.backend._follower.is_missing(spec.name), "three")
    assert place.backend.ended(handle) is None
    (spec.workspace / "go").touch()
    assert place.wait(handle).code == 7


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
