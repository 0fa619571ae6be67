"""Jobs on a real Slurm cluster, through the API: submitted, followed, stopped, and their outputs collected."""

import os
import threading

import pytest
from support.deployment import wait_until
from support.live_service import make_job_body

from core.notify.wakeup_file import WakeupFile
from core.settings.slurm import SlurmSettings
from core.settings.worker import EnvironmentSettings, MachineSettings
from worker.context import WorkerContext
from worker.supervisor import Supervisor

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TYPES = """
[cluster]
backend = "slurm"
kind = "cpu"
accelerator = "4 CPUs"
count = 1
replicas = 1
memory_gb = 4
memory_bandwidth_gb_per_s = 20
tflops = { fp32 = 0.1 }
price_per_hour = 0
price_source = "not set"
spec_source = "sinfo"
slurm = { partition = "main", cpus = 1, time_limit = 3600 }
"""


@pytest.fixture
def settings(settings, tmp_path):
    file = tmp_path / "machines.toml"
    file.write_text(TYPES)
    return settings.model_copy(
        update={
            "machines": MachineSettings(file=file),
            "slurm": SlurmSettings(enabled=True),
            "environments": EnvironmentSettings(default=[]),
        }
    )


class Worker:
    """A worker of the login node, which can be replaced by another one."""

    def __init__(self, settings, database, folder):
        self._made = lambda: Supervisor(
            WorkerContext.open(settings, database, worker_name="w1", hostname="here"), WakeupFile(folder / "wakeup")
        )

    def start(self):
        self._supervisor = self._made()
        self._thread = threading.Thread(target=self._supervisor.run)
        self._thread.start()

    def stop(self):
        self._supervisor.stop()
        self._thread.join()


@pytest.fixture
def worker(settings, database, tmp_path):
    worker = Worker(settings, database, tmp_path)
    worker.start()
    yield worker
    worker.stop()


class Jobs:
    def __init__(self, client):
        self._client = client

    def submit(self, command, **options):
        answer = self._client.post("/jobs", json=make_job_body(command=command, machineType="cluster", **options))
        assert answer.status_code in {200, 201, 202}, answer.text
        return answer.json()["id"]

    def get(self, job_id):
        return self._client.get(f"/jobs/{job_id}").json()

    def reach(self, job_id, *states):
        wait_until(lambda: self.get(job_id)["state"] in states, f"{states}: {self.get(job_id)}")
        return self.get(job_id)

    def log(self, job_id):
        return [line["message"] for line in self._client.get(f"/jobs/{job_id}/logs").json()["lines"]]

    def stop(self, job_id):
        self._client.post(f"/jobs/{job_id}/stop")


@pytest.fixture
def jobs(client, worker):
    return Jobs(client)


def test_log_exit_code_and_artifacts_come_back(jobs, client):
    job_id = jobs.submit(
        'echo "$SLURM_JOB_ID $GREETING"; echo kept >$GRADIENT_ARTIFACTS_DIR/a.txt; exit 3',
        envVars={"GREETING": "it's $HOME"},
    )
    job = jobs.reach(job_id, "Failed")
    assert (job["backend"], job["exitCode"], job["simulated"]) == ("slurm", 3, False)
    (line,) = jobs.log(job_id)
    number, _, greeting = line.partition(" ")
    assert number.isdecimal()
    assert greeting == "it's $HOME"
    assert client.get(f"/jobs/{job_id}/artifacts/file/a.txt").text == "kept\n", os.environ.get("SLURM_CONF")
