"""Disk use of a container's own files, and the memory limit of a job that names none."""

import pytest
from support.backend_harness import BackendHarness
from support.job_insertion import insert_job
from support.servers.private_docker_engine import build_layer, list_busybox_commands, read_busybox

from core.catalogue.machine_types import Catalogue
from core.db.database import Database
from core.jobs import projects, queries
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.spec.job_spec import JobSpec
from core.jobs.submission import NewJob
from core.settings import DiskSettings, Settings
from core.settings.worker import MachineSettings, WorkerSettings
from worker.attempt import disk_quota
from worker.attempt.control import AttemptControl
from worker.attempt.pipeline import run_attempt
from worker.context import WorkerContext

MIB = 1024**2
FILL = "dd if=/dev/urandom of=/tmp/fill bs=1M count=8 2>/dev/null; echo full; sleep 600"


def placed(docker_server, tmp_path, **settings):
    return BackendHarness("docker", tmp_path, docker=docker_server.settings(), **settings)


@pytest.fixture
def volume_image(docker_server):
    """An image with a volume at /data, with a file of its own."""
    name = "gradient-test:volume"
    with docker_server.client() as client:
        files = {"bin/busybox": read_busybox(), "tmp/": None, "data/": None, "data/own": b"own"}
        layer = build_layer(files, links=list_busybox_commands())
        changes = ["ENV PATH=/bin", "VOLUME /data"]
        client.import_image_from_data(layer, repository="gradient-test", tag="volume", changes=changes)
        yield name
        client.remove_image(name, force=True)


@pytest.mark.parametrize("folder", ["/tmp", "/data"], ids=["own", "volume"])
def test_a_job_that_fills_its_containers_own_disk_is_ended(
    docker_server, tmp_path, sqlite_database: Database, volume_image, folder, monkeypatch
):
    """For an engine whose disk has no quotas, as that of the tests."""
    monkeypatch.setattr(disk_quota, "CHECK_SECONDS", 0.1)
    settings = Settings(
        home=tmp_path / "home",
        docker=docker_server.settings(),
        machines=MachineSettings(simulate=False),
        disk=DiskSettings(job_mb=6),
    )
    host = WorkerContext.open(settings, sqlite_database, worker_name="w1", hostname="here")

    def submit(session):
        project, _ = projects.get_or_create(session, "default")
        fill = FILL.replace("/tmp", folder)
        spec = JobSpec(machine_type="CPU", command=fill, container=volume_image, stop_grace=5)
        machine = Catalogue.load().get("CPU")
        new_job = NewJob(spec=spec, machine=machine, backend="docker", project_id=project.id, submitted_by="t")
        insert_job(session, new_job)

    host.write(submit)
    job = host.write(lambda session: claims.claim(session, WorkerOffer("w1", "here", ("docker",))))
    run_attempt(host, job, AttemptControl())
    with host.database.read() as session:
        row = queries.get_row(session, job.id)
    assert (row.reason, "of 6 MiB" in (row.reason_detail or "")) == ("disk_quota", True)


def test_a_job_that_names_no_memory_has_its_share_of_the_host(docker_server, tmp_path):
    place = placed(docker_server, tmp_path, worker=WorkerSettings(slots=4))
    handle = place.launch(place.spec("sleep 600"))
    with docker_server.client() as client:
        has = client.inspect_container(handle["container"])["HostConfig"]["Memory"]
        assert has == int(client.info()["MemTotal"] * 0.9) // 4 == handle["memory_bytes"]
    place.clear()
