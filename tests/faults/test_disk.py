"""Full disks, and a store of artifacts that is away: how a job ended is told apart from what could be kept of it."""

import random
import sqlite3
import time

import pytest
from support.deployment import wait_until
from support.faults.fault_report import FULL_RUN, fault_trial, tries
from support.faults.job_journal import gate_command, recorded_command

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL_RUN else 300)]

MIB = 1024**2
LARGE = tries(48, 1024)
"""MiB of the file that is being collected when the worker dies."""
# A file that does not compress and is different every time; its hash is the job's own.
BIG = f"""
head -c {LARGE}M /dev/urandom >"$GRADIENT_ARTIFACTS_DIR/big"
sha256sum <"$GRADIENT_ARTIFACTS_DIR/big" | {{ read -r sum _; echo "$sum big" >>"$truth.artifacts"; }}
say done
"""


def collecting(deployment, job_id):
    return deployment.job(job_id)["phase"] in {"collecting", None}


def test_a_worker_killed_while_it_collects_a_large_file(deployment, small_disk):
    """The store lies on another disk, so that the file is copied."""
    chance = random.Random(4)  # noqa: S311 - repeatable, not secret
    small_disk(deployment.home / "artifacts", 8 * LARGE * MIB)
    deployment.start_api()
    worker = deployment.start_worker(GRADIENT_WORKER__SYNC_SECONDS="600")
    with fault_trial("F4", deployment, seconds=900) as one:
        one.tries = tries(2, 50)
        for _ in range(one.tries):
            job_id = deployment.submit(recorded_command(BIG, 6))
            for _ in range(2):
                wait_until(lambda job_id=job_id: collecting(deployment, job_id), "the collection to begin", 120)
                time.sleep(chance.random() * LARGE / 200)
                worker.kill()
                worker = deployment.start_worker(GRADIENT_WORKER__SYNC_SECONDS="600")
            one.mark_lifted()
            job = deployment.wait_ended(job_id, 300)
            one.repaired()
            assert (job["state"], job["exitCode"], job["artifactsState"]) == ("Failed", 6, "complete")
            deployment.request("DELETE", f"/jobs/{job_id}")


@pytest.mark.parametrize("_", range(tries(1, 10)))
def test_the_disk_of_the_logs_is_full_for_a_while(deployment, small_disk, _):
    disk = small_disk(deployment.home / "logs", MIB)
    deployment.start_up(GRADIENT_WORKER__SLOTS="2")
    with fault_trial("F18", deployment) as one:
        noisy = deployment.submit(
            recorded_command(f"say before; {gate_command('full')}; say one; say two; {gate_command()}", 4)
        )
        wait_until(lambda: b"before" in deployment.raw_log(noisy), "its first line")
        disk.fill()
        deployment.open_gate("full")
        neighbour = deployment.submit(recorded_command("say neighbour; leave model weights"))
        wait_until(lambda: deployment.job(neighbour)["phase"] == "collecting", "the neighbour to have run")
        assert deployment.job(noisy)["state"] == "Running"
        # Longer than any number of quick tries would last.
        wait_until(lambda: tried_again(deployment, neighbour), "its outputs to be tried again")
        disk.free()
        one.mark_lifted()
        deployment.open_gate()
        assert deployment.wait_ended(noisy)["exitCode"] == 4
        assert deployment.wait_ended(neighbour)["state"] == "Stopped"


def test_the_disk_of_the_scratch_directories_is_full(deployment, small_disk):
    disk = small_disk(deployment.home / "attempts", MIB)
    deployment.start_up(GRADIENT_WORKER__SLOTS="2")
    with fault_trial("F18", deployment) as one:
        neighbour = deployment.submit(recorded_command(f"say before; {gate_command()}; say after"))
        wait_until(lambda: b"before" in deployment.raw_log(neighbour), "the neighbour's first line")
        disk.fill()
        doomed = deployment.submit(recorded_command(), maxAttempts=1)
        wait_until(lambda: spoken_of_a_full_disk(deployment, doomed), "the full disk to be told")
        disk.free()
        one.mark_lifted()
        deployment.open_gate()
        assert deployment.wait_ended(neighbour)["state"] == "Stopped"


def spoken_of_a_full_disk(deployment, job_id):
    return [event for event in deployment.events(job_id) if event["reason"] == "disk_full"]


def test_the_disk_of_the_database_is_full(deployment, small_disk):
    disk = small_disk(deployment.home, 64 * MIB)
    deployment.start_up()
    with fault_trial("F18", deployment) as one:
        job_id = deployment.submit(recorded_command(f"say before; {gate_command()}; say after"))
        wait_until(lambda: b"before" in deployment.raw_log(job_id), "its first line")
        disk.fill()
        refused = deployment.request("POST", "/jobs", json={"machineType": "CPU", "command": "true"})
        assert refused.status_code in {201, 503}, refused.text
        disk.free()
        one.mark_lifted()
        deployment.open_gate()
        if refused.status_code == 201:
            deployment.accepted.append((refused.json()["id"], None))
        assert deployment.wait_ended(job_id)["state"] == "Stopped"
    with sqlite3.connect(deployment.home / "gradient.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


@pytest.mark.parametrize("how", [pytest.param("away", marks=pytest.mark.slow), "full"])
def test_the_store_of_artifacts_is_out_of_order_while_a_job_ends(deployment, small_disk, how):
    """A directory's ways to fail, in place of a bucket's."""
    store = deployment.home / "artifacts"
    store.mkdir(parents=True)
    disk = small_disk(store, MIB) if how == "full" else None
    deployment.start_up(GRADIENT_WORKER__SYNC_SECONDS="0.2")
    with fault_trial("F31", deployment) as one:
        one.tries = tries(1, 5)
        for number in range(one.tries):
            body = f'say before; {gate_command(f"go{number}")}; leave model "$(seq 20000)"; leave note small'
            job_id = deployment.submit(recorded_command(body, 5))
            wait_until(lambda job_id=job_id: b"before" in deployment.raw_log(job_id), "its first line")
            if disk is not None:
                disk.fill()
            else:
                store.rename(store.with_name("away"))
                store.write_bytes(b"in the way")
            deployment.open_gate(f"go{number}")
            wait_until(lambda job_id=job_id: tried_again(deployment, job_id), "the collection to fail")
            assert deployment.job(job_id)["state"] == "Running"
            if disk is not None:
                disk.free()
            else:
                store.unlink()
                store.with_name("away").rename(store)
            one.mark_lifted()
            job = deployment.wait_ended(job_id)
            one.repaired()
            assert (job["state"], job["exitCode"], job["artifactsState"]) == ("Failed", 5, "complete")


def tried_again(deployment, job_id):
    return (deployment.job(job_id)["phaseDetail"] or "").startswith("trying again")
