"""Jobs on a real Slurm cluster, through the API: submitted, followed, stopped, and their outputs collected."""

import threading
import time
from contextlib import suppress
from datetime import datetime

import httpx
import pytest
from support.deployment import wait_until
from support.live_service import make_job_body
from support.servers.image_registry import Registry
from support.servers.private_docker_engine import build_layer, list_busybox_commands, read_busybox
from support.slurm_cluster import CLUSTER_TYPE

from core.notify.wakeup_file import WakeupFile
from core.settings.slurm import SlurmSettings
from core.settings.worker import EnvironmentSettings, MachineSettings
from worker.attempt.scratch import Scratch
from worker.context import WorkerContext
from worker.supervisor import Supervisor

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAIR = (
    CLUSTER_TYPE.replace("[cluster]", "[pair]")
    .replace('kind = "cpu"', 'kind = "gpu"')
    .replace("count = 1", "count = 2")
)
PAIR = PAIR.replace('partition = "main",', 'partition = "main", gres = "gpu:a100:2",')
OTHER = CLUSTER_TYPE.replace("[cluster]", "[nowhere]").replace("main", "nowhere")


@pytest.fixture
def settings(settings, tmp_path, slurm):  # noqa: ARG001 - where they lead
    file = tmp_path / "machines.toml"
    file.write_text(CLUSTER_TYPE + PAIR + OTHER)
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

    def submit(self, command, machineType="cluster", **options):  # noqa: N803 - as in requests
        body = make_job_body(command=command, machineType=machineType, **options)
        answer = self._client.post("/jobs", json=body)
        assert answer.status_code in {200, 201, 202}, answer.text
        return answer.json()["id"]

    def get(self, job_id):
        return self._client.get(f"/jobs/{job_id}").json()

    def reach(self, job_id, *states):
        wait_until(lambda: self.get(job_id)["state"] in states, f"it to be {states}")
        return self.get(job_id)

    def log(self, job_id):
        return [line["message"] for line in self._client.get(f"/jobs/{job_id}/logs").json()["lines"]]

    def stop(self, job_id):
        self._client.post(f"/jobs/{job_id}/stop")


@pytest.fixture
def jobs(client, worker):  # noqa: ARG001 - it runs them
    return Jobs(client)


def test_log_exit_code_and_artifacts_come_back(jobs, client):
    command = 'echo "$SLURM_JOB_ID $GREETING"; echo kept >$GRADIENT_ARTIFACTS_DIR/a.txt; exit 3'
    job_id = jobs.submit(command, envVars={"GREETING": "it's $HOME"})
    job = jobs.reach(job_id, "Failed")
    assert (job["backend"], job["exitCode"], job["simulated"]) == ("slurm", 3, False)
    assert job["slurm"]["partition"] == "main"
    (line,) = jobs.log(job_id)
    number, _, greeting = line.partition(" ")
    assert number.isdecimal()
    assert greeting == "it's $HOME"
    assert client.get(f"/jobs/{job_id}/artifacts/file/a.txt").text == "kept\n"


def test_a_job_has_its_own_options_of_sbatch_but_for_what_it_costs(jobs, client, slurm):
    job_id = jobs.submit("sleep 60", slurmOptions=["--nice=77"])
    jobs.reach(job_id, "Running")
    assert "Nice=77" in slurm.run("scontrol", "--oneliner", "show", "job")
    jobs.stop(job_id)
    for options in (["--gres=gpu:8"], ["--exclusive"], ["--mem=0"], ["--job-name=x"], ["-A", "lab"], ["--uid=0"]):
        refused = client.post("/jobs", json=make_job_body(machineType="cluster", slurmOptions=options))
        assert (refused.status_code, refused.json()["error"]["field"]) == (400, "slurmOptions")


@pytest.fixture
def closed(slurm):
    """A cluster that starts no jobs, until the function is called."""
    slurm.run("scontrol", "update", "partition=main", "state=down")
    opens = lambda: slurm.run("scontrol", "update", "partition=main", "state=up")  # noqa: E731
    yield opens
    opens()


def test_a_waiting_job_shows_slurms_reason_and_is_adopted(jobs, worker, closed, client):
    job_id = jobs.submit("echo ran; sleep 600")
    wait_until(lambda: "artition" in (jobs.get(job_id)["phaseDetail"] or ""), "Slurm's reason")
    assert client.get(f"/jobs/{job_id}/why").json()["message"] == jobs.get(job_id)["phaseDetail"]
    worker.stop()
    worker.start()
    closed()
    jobs.reach(job_id, "Running")
    wait_until(lambda: jobs.log(job_id) == ["ran"], "its output")
    worker.stop()
    worker.start()
    jobs.stop(job_id)
    assert jobs.reach(job_id, "Cancelled")["reason"] == "stopped_by_user"
    assert jobs.log(job_id)[0] == "ran"


def test_a_job_that_ran_while_its_worker_was_away_has_run_as_long_as_it_has(jobs, worker, closed, slurm):
    job_id = jobs.submit("sleep 4", machineType="pair")
    wait_until(lambda: slurm.run("squeue", "-h"), "Slurm to have it")
    worker.stop()
    closed()
    wait_until(lambda: not slurm.run("squeue", "-h"), "it to end")
    worker.start()
    assert jobs.reach(job_id, "Stopped")["gpuHours"] == pytest.approx(2 * 4 / 3600, rel=0.3)


def test_a_stopped_job_saves_within_its_grace_period(jobs):
    job_id = jobs.submit("trap 'sleep 1; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done")
    wait_until(lambda: jobs.log(job_id) == ["up"], "its output")
    jobs.stop(job_id)
    jobs.reach(job_id, "Cancelled")
    assert jobs.log(job_id)[-1] == "saved"


@pytest.mark.usefixtures("closed")
def test_a_job_that_waits_can_be_stopped(jobs, slurm):
    job_id = jobs.submit("true")
    wait_until(lambda: slurm.run("squeue", "-h"), "Slurm to have it")
    jobs.stop(job_id)
    jobs.reach(job_id, "Cancelled")
    assert slurm.run("squeue", "-h") == ""


def cancel(slurm, job_id, _):
    slurm.run("scancel", job_id)


def fail_node(slurm, _, node):
    slurm.fail_node(node)


def limit(slurm, job_id, _):
    slurm.run("scontrol", "update", f"jobid={job_id}", "timelimit=1")


@pytest.mark.parametrize(
    ("act", "reason"), [(cancel, "slurm_cancelled"), (limit, "time_limit"), (fail_node, "slurm_node_failed")]
)
def test_what_slurm_and_others_do_to_a_job_is_named(jobs, slurm, act, reason):
    job_id = jobs.submit("echo kept >$GRADIENT_ARTIFACTS_DIR/a.txt; echo up; sleep 600", stopGrace=5)
    wait_until(lambda: jobs.log(job_id) == ["up"], "its output")
    slurm_id, node = slurm.run("squeue", "-h", "-o", "%A %N").split()
    act(slurm, slurm_id, node)
    try:
        job = jobs.reach(job_id, "Cancelled", "Failed", "Error")
    finally:
        if act is fail_node:
            slurm.start_daemon(node)
    assert (job["reason"], job["artifactsState"]) == (reason, "complete")


def test_gpus_of_the_cluster_are_counted_in_hours(jobs):
    job = jobs.reach(jobs.submit("sleep 2", machineType="pair"), "Stopped")
    assert job["cost"] == 0
    assert job["gpuHours"] == pytest.approx(2 * job["durationSeconds"] / 3600, abs=1e-6)


def test_a_request_that_slurm_refuses_says_why(jobs):
    job_id = jobs.submit("true", machineType="nowhere")
    job = jobs.reach(job_id, "Error")
    assert job["reason"] == "slurm_refused"
    assert "nvalid partition" in job["message"]


@pytest.mark.parametrize("container", ["", "apptainer"])
def test_nodes_are_one_job_with_one_log_and_the_end_of_each(jobs, client, image, slurm, container):
    command = 'echo "rank $RANK of $WORLD_SIZE"; echo $RANK >"$GRADIENT_ARTIFACTS_DIR/rank"; exit $((RANK * 3))'
    job_id = jobs.submit(command, machineType="pair", nodes=2, **({"container": image[0]} if container else {}))
    job = jobs.reach(job_id, "Failed", "Error")
    assert (job["reason"], job["exitCode"], job["nodes"], job["arrayId"]) == ("slurm_rank_failed", 3, 2, None)
    assert "rank 1 of 2 nodes (n2) failed first, with exit code 3" in job["message"]
    ranks = [(node["rank"], node["host"], node["state"], node["exitCode"]) for node in job["slurm"]["nodes"]]
    assert (ranks[0][:2], ranks[1]) == ((0, "n1"), (1, "n2", "Failed", 3))
    assert sorted(jobs.log(job_id)) == ["[0] rank 0 of 2", "[1] rank 1 of 2"]
    files = [client.get(f"/jobs/{job_id}/artifacts/file/{path}").text for path in ("rank", "hosts/1/rank")]
    assert files == ["0\n", "1\n"]
    assert job["gpuHours"] == pytest.approx(4 * job["durationSeconds"] / 3600, abs=1e-6)
    page = client.get(f"/ui/jobs/{job_id}").text
    assert f"job <code>{job['slurm']['jobId']}</code> in main" in page
    assert page.count("Its lines in the log") == 2
    assert slurm.run("scontrol", "show", "job", "-o", job["slurm"]["jobId"]).count("NumNodes=2") == 1


SERVE = "exec python3 -m http.server $GRADIENT_PORT_8000"
IN_CONTAINER = "exec httpd -f -p $GRADIENT_PORT_8000"


@pytest.mark.parametrize("container", ["", "apptainer"])
def test_ports_of_two_jobs_of_one_node_lead_to_each(jobs, image, container):
    links = {}
    for name in ("one", "two"):
        image_of_job = {"container": image[0]} if container else {}
        command = f"mkdir {name}; cd {name}; echo {name} >name; {IN_CONTAINER if container else SERVE}"
        job_id = jobs.submit(command, ports=["8000"], **image_of_job)
        jobs.reach(job_id, "Running")
        links[name] = jobs.get(job_id)["ports"][0]["url"]

    def read(url):
        with suppress(httpx.TransportError):
            return httpx.get(f"{url}/name", timeout=30).text

    for name, url in links.items():
        wait_until(lambda url=url: read(url), "the server to answer")
        assert read(url) == f"{name}\n"


def test_slurms_own_limit_is_warned_of_and_makes_no_success(jobs, slurm):
    traps = "trap 'echo warned' USR1; trap 'echo saved; exit 0' INT"
    command = f'bash -c "{traps}; echo up; while :; do sleep 0.1; done" | cat; echo never'
    job_id = jobs.submit(f"set -o pipefail; {command}", stopGrace=30, stopSignal="INT", warnBefore="2s:USR1")
    wait_until(lambda: jobs.log(job_id) == ["up"], "its output")
    limit(slurm, slurm.run("squeue", "-h", "-o", "%A").strip(), None)
    job = jobs.reach(job_id, "Failed")
    assert (job["reason"], job["exitCode"]) == ("time_limit", 0)
    assert [line for line in jobs.log(job_id) if line in {"warned", "saved", "never"}] == ["warned", "saved"]


@pytest.fixture
def image(tmp_path):
    registry = Registry(tmp_path / "registry", [])
    layer = build_layer({"bin/busybox": read_busybox(), "tmp/": None, "etc/": None}, links=list_busybox_commands())
    yield registry.add_image("team/shell:1", [layer], Env=["PATH=/bin", "FROM=the image"])
    registry.stop()


@pytest.fixture
def apptainer():
    """The worker finds it."""


@pytest.mark.usefixtures("apptainer")
def test_a_job_runs_in_its_container(jobs, client, image):
    reference, digest = image
    command = 'pwd; echo "$FROM" >"$GRADIENT_ARTIFACTS_DIR/a.txt"; echo $GRADIENT_STORAGE_DIR; exit 3'
    job_id = jobs.submit(command, container=reference)
    job = jobs.reach(job_id, "Failed")
    assert (job["exitCode"], job["imageDigest"]) == (3, digest)
    assert jobs.log(job_id) == ["/paperspace", "/storage"]
    assert client.get(f"/jobs/{job_id}/artifacts/file/a.txt").text == "the image\n"


def test_a_grace_period_as_long_as_the_clusters_limit_ends_no_job_at_once(jobs):
    job_id = jobs.submit("sleep 40; echo done", stopGrace=3600)
    assert jobs.reach(job_id, "Stopped", "Error", "Failed", "Cancelled")["exitCode"] == 0
    assert jobs.log(job_id) == ["done"]


def test_an_array_is_one_submission_and_its_members_wait_without_threads(jobs, worker, closed, slurm, client):
    body = make_job_body(command="echo $GRADIENT_ARRAY_INDEX", machineType="cluster", array="0-4%2")
    array_id = client.post("/jobs", json=body).json()["arrayId"]
    wait_until(lambda: slurm.run("squeue", "-h", "-r").count("\n") == 4, "Slurm to have all members")
    assert "[0-4%2]" in slurm.run("squeue", "-h", "-o", "%i")
    ids = [job["id"] for job in client.get("/jobs", params={"array": array_id}).json()["jobs"]][::-1]
    wait_until(lambda: all("artition" in (jobs.get(job)["phaseDetail"] or "") for job in ids), "Slurm's reason")
    wait_until(
        lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("job-j")], "no thread to wait"
    )
    jobs.stop(ids[1])
    jobs.reach(ids[1], "Cancelled")
    worker.stop()
    worker.start()
    closed()
    for index in (0, 2, 3, 4):
        assert jobs.reach(ids[index], "Stopped")["attempt"] == 1
        assert jobs.log(ids[index]) == [str(index)]


def test_members_that_were_prepared_one_by_one_began_when_they_did(jobs, client, worker, settings, monkeypatch):
    """The start of a short command is recorded with its end."""
    make = Scratch.make

    def make_slowly(scratch, store):
        time.sleep(1)
        make(scratch, store)

    monkeypatch.setattr(Scratch, "make", make_slowly)
    worker.stop()
    settings.worker.slots = 1
    worker.start()
    body = make_job_body(command="date +%s.%N", machineType="cluster", array="0-3")
    array_id = client.post("/jobs", json=body).json()["arrayId"]
    for job in client.get("/jobs", params={"array": array_id}).json()["jobs"]:
        started = datetime.fromisoformat(jobs.reach(job["id"], "Stopped")["startedAt"]).timestamp()
        assert started == pytest.approx(float(jobs.log(job["id"])[0]), abs=0.9)
