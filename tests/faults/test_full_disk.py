"""A job that fills the disk of the whole service: it ends, others go on, and everything can be listed and deleted."""

import shutil
import signal

import pytest
from support.deployment import wait_until
from support.faults.fault_report import FULL_RUN
from support.servers.postgres import PostgresServer
from support.servers.private_docker_engine import SHELL_IMAGE, running_engine

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL_RUN else 300)]

MIB = 1024**2
DISK = 1150 * MIB
"""A little more than the reserve."""
LEFT = 64 * MIB
"""Still free of the reserve, however fast a job writes."""
# Files in shared storage stay when the job ends, so they are written as fast as a disk is, not as fast as memory.
WRITES = {
    "artifact": 'head -c 1100M /dev/urandom >"$GRADIENT_ARTIFACTS_DIR/big"',
    "workspace": 'head -c 1100M /dev/zero >"$GRADIENT_WORKSPACE_DIR/big"',
    "small files": 'i=0; while :; do i=$((i+1)); head -c 4M /dev/zero >"$GRADIENT_WORKSPACE_DIR/$i" || break; done',
    "storage": 'i=0; while head -c 4M /dev/zero >"$GRADIENT_STORAGE_DIR/$i"; do i=$((i+1)); sleep 0.03; done',
    "log": "head -c 1100M /dev/zero | tr '\\0' 'x' | fold -w 100",
    "at once": 'fallocate -l 1050M "$GRADIENT_WORKSPACE_DIR/big"',
    "unlinked": 'exec 3>"$GRADIENT_WORKSPACE_DIR/big"; rm "$GRADIENT_WORKSPACE_DIR/big"; head -c 1100M /dev/zero >&3',
}
CONTAINER_WRITES = {
    "its own files": "i=0; while head -c 4000000 /dev/zero >/tmp/$i; do i=$((i+1)); sleep 0.03; done",
    "storage": 'i=0; while head -c 4000000 /dev/zero >"$GRADIENT_STORAGE_DIR/$i"; do i=$((i+1)); sleep 0.03; done',
}
TICKS = "while :; do echo tick; sleep 0.2; done"


@pytest.fixture
def make_postgres(tmp_path):
    servers = []

    def make(disk):
        servers.append(PostgresServer(tmp_path, disk))
        servers[-1].start()
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


def free(deployment):
    return shutil.disk_usage(deployment.home).free


def lines(deployment, job_id):
    return deployment.raw_log(job_id).count(b"tick")


def check_others_go_on(deployment, job_id):
    before = lines(deployment, job_id)
    assert deployment.job(job_id)["state"] == "Running"
    wait_until(lambda: lines(deployment, job_id) > before + 2, "the other job to go on")


def check_no_storm(deployment, fillings=1):
    said = "".join(log.read_text() for log in deployment.logs)
    assert "Traceback" not in said, said
    assert len(said.splitlines()) < 200 * fillings, said


@pytest.mark.parametrize(
    ("database", "ways"),
    [
        ("sqlite", {"artifact", "log", "storage"}),
        # worker/attempt/test_disk.py has a workspace, and a file without a name.
        pytest.param("sqlite", {"workspace", "small files", "at once", "unlinked"}, marks=pytest.mark.slow),
        pytest.param("postgresql", {"artifact", "log"}, marks=pytest.mark.slow),
    ],
)
def test_the_job_that_fills_the_disk_ends_before_the_reserve_is_used(
    make_deployment, small_disk, make_postgres, tmp_path, database, ways
):
    disk = small_disk(tmp_path / "home0", DISK)
    settings = {}
    if database == "postgresql":  # its data are on the same disk
        settings["GRADIENT_DATABASE__URL"] = make_postgres(disk).new_database()
    deployment = make_deployment(GRADIENT_DISK__MIN_FREE_MB="1024", **settings)
    assert deployment.home == disk.folder
    if settings:
        deployment.migrate()
    deployment.start_up()
    used = disk.used_bytes()
    other = deployment.submit(TICKS)
    wait_until(lambda: lines(deployment, other), "the other job to run")
    for where in sorted(ways):
        fill(deployment, where, other)
        wait_until(lambda: disk.used_bytes() < used + 64 * MIB, "the disk to be freed")
    assert deployment.request("POST", f"/jobs/{other}/stop").status_code < 300
    assert deployment.wait_ended(other)["state"] == "Cancelled"
    check_no_storm(deployment, len(ways))


def fill(deployment, where, other):
    """Have a job fill the disk, and delete it."""
    filler = deployment.submit(f"trap '' TERM; {WRITES[where]}; sleep 600")
    ended = deployment.wait_ended(filler)
    assert (ended["state"], ended["reason"]) == ("Failed", "disk_full"), where
    assert f"{deployment.home}" in ended["message"]
    assert "this job had written more there than any other" in ended["message"]
    assert free(deployment) > LEFT, where
    check_others_go_on(deployment, other)
    assert {other, filler} <= {one["id"] for one in deployment.request("GET", "/jobs").json()["jobs"]}
    waiting = deployment.submit("true")
    if where == "artifact":  # what is nobody's output is gone with the attempt
        for options in ([], ["--environments"]):
            assert deployment.start("prune", *options).wait() == 0
        assert deployment.job(waiting)["state"] == "Pending"
    assert deployment.request("DELETE", f"/jobs/{filler}").status_code < 300
    if where == "storage":
        for one in deployment.storage.iterdir():
            one.unlink()
    assert deployment.wait_ended(waiting)["state"] == "Stopped"


@pytest.mark.slow  # worker/backends/docker/test_disk.py fills a container's disk
@pytest.mark.parametrize("where", ["its own files", "storage"])
@pytest.mark.usefixtures("docker_server")
def test_the_container_that_fills_the_disk_ends_before_the_reserve_is_used(make_deployment, small_disk, where):
    deployment = make_deployment(
        GRADIENT_DISK__MIN_FREE_MB="1024",
        GRADIENT_MACHINES__SIMULATE="false",
        GRADIENT_DOCKER__PULL="never",
        GRADIENT_DOCKER__FIREWALL="off",
        GRADIENT_DOCKER__DEFAULT_IMAGE=SHELL_IMAGE,
    )
    small_disk(deployment.home, DISK)
    with running_engine(data=deployment.home / "engine") as engine:
        deployment.start_up(GRADIENT_DOCKER__URL=engine.url)
        other = deployment.submit(TICKS)
        wait_until(lambda: lines(deployment, other), "the other job to run")
        filler = deployment.submit(f"trap '' TERM; {CONTAINER_WRITES[where]}; sleep 600")
        ended = deployment.wait_ended(filler)
        assert (ended["state"], ended["reason"]) == ("Failed", "disk_full")
        assert "this job had written more there than any other" in ended["message"]
        assert free(deployment) > LEFT
        check_others_go_on(deployment, other)
        assert deployment.request("DELETE", f"/jobs/{filler}").status_code < 300
        for one in deployment.storage.glob("[0-9]*"):
            one.unlink()
        assert deployment.wait_ended(deployment.submit("true"))["state"] == "Stopped"
        assert deployment.request("POST", f"/jobs/{other}/stop").status_code < 300
        assert deployment.wait_ended(other)["state"] == "Cancelled"
        check_no_storm(deployment)
        deployment.stop()


def test_a_full_disk_without_a_reserve_still_lets_jobs_be_listed_stopped_and_deleted(make_deployment, small_disk):
    deployment = make_deployment(GRADIENT_DISK__MIN_FREE_MB="0")
    disk = small_disk(deployment.home, 64 * MIB)
    deployment.start_up()
    other = deployment.submit(TICKS)
    filler = deployment.submit('head -c 100M /dev/urandom >"$GRADIENT_ARTIFACTS_DIR/big"; sleep 600')
    wait_until(lambda: free(deployment) == 0, "the disk to be full")
    wait_until(lambda: deployment.job(filler)["state"] == "Running", "it to be recorded")
    disk.fill()
    listed = deployment.request("GET", "/jobs").json()["jobs"]
    assert {one["id"] for one in listed} == {other, filler}
    for options in ([], ["--dry-run"], ["--environments"]):
        assert deployment.start("prune", *options).wait() == 0
    for job_id in (other, filler):
        assert deployment.request("POST", f"/jobs/{job_id}/stop?now=true").status_code < 300
    for job_id in (other, filler):
        assert deployment.wait_ended(job_id)["state"] == "Cancelled"
    for job_id in (other, filler):
        assert deployment.request("DELETE", f"/jobs/{job_id}").status_code < 300
    wait_until(lambda: free(deployment) > 32 * MIB, "the disk to be freed")
    check_no_storm(deployment)


def test_a_service_that_stopped_on_a_full_disk_is_pruned_and_started_again(make_deployment, small_disk):
    deployment = make_deployment(GRADIENT_DISK__MIN_FREE_MB="0")
    disk = small_disk(deployment.home, 64 * MIB)
    service = deployment.start_up()
    job_id = deployment.submit('head -c 30M /dev/urandom >"$GRADIENT_ARTIFACTS_DIR/big"')
    assert deployment.wait_ended(job_id)["state"] == "Stopped"
    disk.fill()
    assert deployment.start("prune").wait() == 0  # leaves what is needed without a service
    service.signal(signal.SIGTERM)
    service.wait()
    disk.fill()
    pruned = deployment.start("prune")
    assert pruned.wait() == 0, pruned.read_log()
    deployment.start_up()
    assert deployment.request("DELETE", f"/jobs/{job_id}").status_code < 300
    wait_until(lambda: free(deployment) > 24 * MIB, "the disk to be freed")
    check_no_storm(deployment)
