"""Jobs of a database that was restored while the stores were newer, and perhaps their processes alive."""

import shutil
import sqlite3
from contextlib import closing

import pytest
from support.deployment import Deployment, wait_until
from support.far_worker import GATE, FarWorker


@pytest.fixture
def service(tmp_path):
    service = Deployment(tmp_path / "home", GRADIENT_WORKER__SWEEP_SECONDS="1")
    yield service
    service.stop()


def back_up(service, copy):
    with closing(sqlite3.connect(service.home / "gradient.db")) as live, closing(sqlite3.connect(copy)) as saved:
        live.backup(saved)


def restore(service, copy):
    for suffix in ("", "-wal", "-shm"):
        (service.home / f"gradient.db{suffix}").unlink(missing_ok=True)
    shutil.copy(copy, service.home / "gradient.db")
    assert service.start("reconcile").wait() == 0
    service.start_api()


@pytest.fixture
def run_past_backup(service, tmp_path):
    """Backs up while a worker has just died at a failpoint, lets the job end, and restores without `attempts/`."""

    def run(failpoint, **spec):
        text, copy = tmp_path / "text", tmp_path / "copy.db"
        text.write_text("first\n")
        api = service.start_api()
        job = service.submit(f'cat {text}; cp {text} "$GRADIENT_ARTIFACTS_DIR/model"', **spec)
        service.start_worker(GRADIENT_FAILPOINT=failpoint).wait()
        back_up(service, copy)
        worker = service.start_worker()
        service.wait_ended(job)
        for process in (api, worker):
            process.kill()
        shutil.rmtree(service.home / "attempts")
        text.write_text("second\n")
        restore(service, copy)
        service.start_worker()
        return job

    return run


def test_a_job_that_ran_is_lost_and_runs_no_second_time(service, run_past_backup):
    ended = service.wait_ended(run_past_backup("running"))
    assert (ended["state"], ended["attempt"], ended["reason"]) == ("Error", 1, "process_lost")
    assert ended["artifactsState"] == "complete"
    assert service.raw_log(ended["id"]) == b"first\n"


def test_processes_that_the_backup_does_not_know_end_and_those_of_the_new_attempt_do_not(service, tmp_path):
    def attempts():
        return {env.get("GRADIENT_ATTEMPT") for _, env in service.find_job_environments()}

    api = service.start_api()
    job = service.submit("echo begin; exec sleep 600")
    back_up(service, tmp_path / "copy.db")
    worker = service.start_worker()
    wait_until(lambda: service.raw_log(job), "the first attempt to run")
    for process in (api, worker):
        process.kill()
    assert attempts()
    restore(service, tmp_path / "copy.db")
    service.start_worker()
    wait_until(lambda: service.raw_log(job) == b"begin\nbegin\n", "the second attempt to run")
    wait_until(lambda: "1" not in attempts(), "the first attempt to end")
    assert service.job(job)["state"] == "Running"
    assert "2" in attempts()
    wait_until(lambda: service.scratch() == [f"{job}-2"], "the first attempt's folder to go")


def test_a_job_of_a_host_that_shares_only_the_network_goes_on_there(service, tmp_path):
    api = service.start_api()
    far = FarWorker(service, tmp_path / "far", service.cli_json["url"])
    worker = far.start()
    job = service.submit("echo before; " + GATE.format(name="go") + "; echo after")
    ended = service.submit("echo ended")
    wait_until(lambda: service.raw_log(job) == b"before\n", "it to print")
    back_up(service, tmp_path / "copy.db")
    service.wait_ended(ended)
    for process in (api, worker):
        process.kill()
    restore(service, tmp_path / "copy.db")
    far.start(GRADIENT_WORKER__SERVICE_URL=service.cli_json["url"])  # it has another port
    far.open_gate()
    assert service.wait_ended(job)["attempt"] == 1
    assert service.raw_log(job) == b"before\nafter\n"
    assert service.wait_ended(ended)["attempt"] <= 2
