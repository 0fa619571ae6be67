"""Containers that take all they can: processes, memory, disk, output, files; and that do not want to go."""

import contextlib
import time

import psutil
import pytest
from support.deployment import wait_until
from support.faults.container_jobs_deployment import recorded_in_container as recorded
from support.faults.control_folder_attacks import run_control_folder_attacks
from support.faults.fault_report import FULL_RUN, fault_trial, tries
from support.faults.job_journal import gate_command
from support.live_folder import find
from support.servers.private_docker_engine import BARE_IMAGE

pytestmark = [pytest.mark.faults, pytest.mark.timeout(7200 if FULL_RUN else 300)]

MIB = 1024**2
MORE_MIB = 200
"""Memory that a worker may grow by while it forwards a loud job's output."""
MORE_ON_DISK_MIB = 40
"""Disk that a loud job may take on its host beyond what it prints: stored output is not kept twice."""
GRACE = 2

LOUD = "loss 0.123456 accuracy 0.987654 step 1234 " * 20
LOUD_MIB = tries(64, 1024)
NEIGHBOUR_SECONDS = 30.0
"""Time limit for a short job beside a loud one, on a machine that is busy with other tests."""


def begun(deployment, job_id, sign=b"up"):
    wait_until(lambda: sign in deployment.raw_log(job_id), f"{sign!r} in the log of {job_id}")


@pytest.mark.slow
def test_containers_that_fight_their_control_folder_harm_only_themselves(container_deployment):
    container_deployment.start_api()
    run_control_folder_attacks(
        container_deployment, container_deployment.start_worker(GRADIENT_WORKER__SLOTS="4"), recorded
    )


# Command, options, and how the job is then shown: state, reason, exit code.
BOMBS = {
    "forks": ("say up; while :; do sleep 600 & done", {}, ("Failed", "exit_nonzero", 2)),
    "memory": ("say up; exec tail /dev/zero", {"memoryMb": 64}, ("Failed", "out_of_memory", 137)),
    "deep": (
        f"say up; i=0; while [ $i -lt {tries(300, 5000)} ]; do mkdir d; cd -P d; i=$((i+1)); done; finish 4",
        {},
        ("Failed", "exit_nonzero", 4),
    ),
    "deaf": (
        "trap '' TERM; say up; while :; do sleep 0.2; done",
        {"stopGrace": GRACE},
        ("Cancelled", "stopped_by_user", 137),
    ),
    "missing": ("say up", {"container": "no/such:image"}, ("Error", "image_pull", None)),
    "bare": ("say up", {"container": BARE_IMAGE}, ("Error", "no_shell", None)),
}


@pytest.mark.parametrize("_", range(tries(1, 5)))
def test_bombs_go_off_in_their_containers_and_disturb_nobody(container_deployment, _):
    container_deployment.start_up(GRADIENT_WORKER__SLOTS="8", GRADIENT_DOCKER__PIDS="64")
    with fault_trial("F30", container_deployment) as one:
        neighbour = container_deployment.submit(recorded(f"say up; {gate_command()}; leave model weights; say done", 5))
        begun(container_deployment, neighbour)
        jobs = {
            name: container_deployment.submit(recorded(body), **options) for name, (body, options, _) in BOMBS.items()
        }
        begun(container_deployment, jobs["deaf"])
        container_deployment.request("POST", f"/jobs/{jobs['deaf']}/stop")
        ended = {name: container_deployment.wait_ended(job_id) for name, job_id in jobs.items()}
        one.mark_lifted()
        shown = {name: (job["state"], job["reason"], job["exitCode"]) for name, job in ended.items()}
        assert shown == {name: wanted for name, (_, _, wanted) in BOMBS.items()}
        container_deployment.open_gate()
        assert container_deployment.wait_ended(neighbour)["exitCode"] == 5
    assert "64 MiB" in ended["memory"]["message"]
    assert "no/such:image" in ended["missing"]["message"]
    assert "/bin/sh" in ended["bare"]["message"]


def test_a_loud_container_is_stored_byte_by_byte_and_keeps_no_disk(container_deployment):
    """A gigabyte as fast as it can print it, where it is tried in full."""
    container_deployment.start_api()
    worker = container_deployment.start_worker(GRADIENT_WORKER__SLOTS="2", GRADIENT_LOGS__MAX_BYTES=str(2048 * MIB))
    wait_until(lambda: "is ready" in worker.read_log(), "the worker")
    output = f"yes '{LOUD}' | head -c {LOUD_MIB * MIB}"
    told = '{ read -r sum _; printf "%s %s" "$sum" ' + f'{LOUD_MIB * MIB} >"$truth.digest"; }}'
    before, peak, held = psutil.Process(worker.pid).memory_info().rss, 0, 0
    with fault_trial("F24", container_deployment, seconds=600) as one:
        job_id = container_deployment.submit(recorded(f"{output} | sha256sum | {told}; {output}", 2))
        while container_deployment.job(job_id)["finishedAt"] is None:
            peak = max(peak, psutil.Process(worker.pid).memory_info().rss - before)
            held = max(
                held,
                on_disk(container_deployment.home / "logs", "raw")
                + on_disk(container_deployment.home / "attempts", "log"),
            )
            began = time.monotonic()
            container_deployment.wait_ended(container_deployment.submit(recorded("say quiet")), 120)
            assert time.monotonic() - began < NEIGHBOUR_SECONDS, "a neighbour is served meanwhile"
        one.mark_lifted()
        assert container_deployment.job(job_id)["exitCode"] == 2
    assert peak < MORE_MIB * MIB
    assert held < (LOUD_MIB + MORE_ON_DISK_MIB) * MIB


def on_disk(folder, name):
    """Bytes that files take, their holes left out."""
    blocks = 0
    for path in find(folder, name):
        with contextlib.suppress(FileNotFoundError):  # its attempt has just been cleared away
            blocks += path.stat().st_blocks
    return blocks * 512


def test_a_disk_that_a_job_fills_is_emptied_again_and_told(
    make_engine, make_container_deployment, tmp_path, small_disk
):
    """The engine's own disk, and then that of the jobs' folders; a neighbour prints on through the first."""
    small_disk(tmp_path / "contained0" / "attempts", 4 * MIB)
    deployment = make_container_deployment(make_engine(data_bytes=24 * MIB))
    deployment.start_up(GRADIENT_WORKER__SLOTS="3")
    with fault_trial("F18", deployment, seconds=300) as one:
        neighbour = deployment.submit(recorded(f"say up; {gate_command('full')}; say still; leave model weights", 5))
        begun(deployment, neighbour)
        filler = deployment.submit(
            recorded(f"dd if=/dev/zero of=/tmp/fill bs=64k 2>/dev/null; say full; {gate_command()}", 6)
        )
        begun(deployment, filler, b"full")
        doomed = deployment.submit(recorded())
        told = wait_until(lambda: full_disk(deployment, doomed), "the full disk to be told")
        assert "no space left" in told["message"].lower()
        deployment.open_gate("full")
        assert deployment.wait_ended(neighbour)["exitCode"] == 5
        deployment.open_gate()
        assert deployment.wait_ended(filler)["exitCode"] == 6
        assert deployment.wait_ended(doomed, 120)["state"] == "Stopped", "once there is room it runs"
        inside = "dd if=/dev/zero of=fill bs=64k 2>/dev/null; finish 7"
        job = deployment.wait_ended(deployment.submit(recorded(inside)))
        assert (job["exitCode"], job["reason"]) == (7, "exit_nonzero"), "its end is told though no byte fits"
        one.mark_lifted()
        assert deployment.wait_ended(deployment.submit(recorded()))["state"] == "Stopped"


def full_disk(deployment, job_id):
    return next((event for event in deployment.events(job_id) if event["reason"] == "disk_full"), None)
