"""A backend that is added as docs/code.md says: a class, its entry, and a machine type that names it."""

import threading

import pytest
from support.deployment import wait_until
from support.live_service import make_job_body
from support.toy_backend import TOY

from core.catalogue.backends import BACKENDS
from core.catalogue.machine_types import PACKAGED
from core.notify.wakeup_file import WakeupFile
from core.settings.docker import DockerSettings
from core.settings.worker import EnvironmentSettings, MachineSettings
from worker.context import WorkerContext
from worker.supervisor import Supervisor

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(settings, tmp_path, monkeypatch):
    monkeypatch.setitem(BACKENDS, "toy", TOY)
    types = PACKAGED.read_text()
    cpu = types[types.index("[CPU]") : types.index("\n[", types.index("[CPU]"))]
    file = tmp_path / "machines.toml"
    file.write_text(
        cpu.replace("[CPU]", "[TOY]").replace('backend = "docker"', 'backend = "toy"').replace("aliases", "#")
    )
    return settings.model_copy(
        update={
            "machines": MachineSettings(simulate=False, file=file),
            "docker": DockerSettings(url="unix:///nowhere"),
            "environments": EnvironmentSettings(default=[]),
        }
    )


@pytest.fixture
def worker(settings, database, tmp_path):
    host = WorkerContext.open(settings, database, worker_name="w1", hostname="here")
    supervisor = Supervisor(host, WakeupFile(tmp_path / "wakeup"))
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    yield host
    supervisor.stop()
    thread.join()


@pytest.mark.usefixtures("worker")
def test_its_jobs_run(client):
    asked = make_job_body(command="echo $GRADIENT_MACHINE_TYPE; exit 3", machineType="TOY")
    job_id = client.post("/jobs", json=asked).json()["id"]
    wait_until(lambda: client.get(f"/jobs/{job_id}").json()["state"] == "Failed", "its end")
    job = client.get(f"/jobs/{job_id}").json()
    assert (job["backend"], job["exitCode"]) == ("toy", 3)
    assert [line["message"] for line in client.get(f"/jobs/{job_id}/logs").json()["lines"]] == ["TOY"]


def test_its_capabilities_decide_what_jobs_may_ask_for(client):
    refused = client.post("/jobs", json=make_job_body(machineType="TOY", useDockerfile=True)).json()
    assert "images cannot be built" in str(refused)
    assert "user" in str(client.post("/jobs", json=make_job_body(machineType="TOY", user="1000:1000")).json())
