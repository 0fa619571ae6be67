"""Jobs on a TPU VM itself: staged in the bucket, run by the start-up script, followed by what it writes there."""

import contextlib
import io
import shutil
import socket
from pathlib import Path

import pytest
from support.deployment import wait_until
from support.google.tpu_simulator import running_simulator
from support.google.tpu_vm_deployment import container_settings, container_vms, find_runner, nothing_left, served
from support.servers.private_docker_engine import SHELL_IMAGE

from gradient_server.simulator.tpu.vms import SimulatedVms

STOPPED_BY_37 = "gradient-test:stop37"
COUNT = 'for n in $(seq 1 200); do echo "line $n"; sleep 0.01; done'
COUNTED = b"".join(b"line %d\n" % number for number in range(1, 201))


def printed(service, job_id):
    return wait_until(lambda: service.raw_log(job_id), "the job to print something")


def test_a_job_runs_on_its_vm_and_what_it_leaves_comes_home(service, simulator, storage):
    leave = 'cd "$GRADIENT_ARTIFACTS_DIR"; echo kept >model; : >empty'
    command = f'echo "$TPU_NAME in $PWD"; {leave}; exit 3'
    job_id = service.submit(command, machineType="TPU")
    job = service.wait_ended(job_id)
    said = service.raw_log(job_id).decode()
    assert (job["state"], job["exitCode"]) == ("Failed", 3), said
    assert said.startswith("local in ")
    assert (job["tpu"]["name"], job["tpu"]["grpcUrl"]) == (f"gj-{job_id}-1", None)
    assert str(service.home) not in said, "it ran on the VM's own disk"
    assert [file["path"] for file in service.artifacts(job_id)["files"]] == ["empty", "model"]
    assert service.artifact(job_id, "model") == b"kept\n"
    assert nothing_left(simulator, storage)


@pytest.mark.skipif(shutil.which("docker") is None, reason="the client of the engine is not installed")
def test_on_a_vm_with_an_engine_it_is_a_container(docker_server, storage, tmp_path):
    """With a real engine, which need not be allowed to give a container every right, as a TPU VM's is."""
    with (
        container_vms(storage, docker_server, tmp_path) as simulator,
        served(simulator, storage, tmp_path, **container_settings(docker_server)) as service,
        docker_server.client() as client,
    ):
        command = 'echo "$TPU_NAME in $PWD as $(id -u): $WORDS"; echo kept >/artifacts/model; exit 3'
        words = "two words\nand a line"
        job_id = service.submit(command, machineType="TPU", container=SHELL_IMAGE, envVars={"WORDS": words})
        job = service.wait_ended(job_id)
        said = service.raw_log(job_id)
        assert (job["state"], job["exitCode"]) == ("Failed", 3), job["message"]
        assert said == b"local in /paperspace as 0: two words\nand a line\n"
        assert service.artifact(job_id, "model") == b"kept\n"
        asked = (tmp_path / "asked").read_text().split()
        assert {"--privileged", "--net=host", "--env=WORDS"} <= set(asked)
        assert "two" not in asked, "values do not stand on a command line"
        client.remove_container("gradient-job", force=True)

        dockerfile = io.BytesIO(f"FROM {SHELL_IMAGE}\nSTOPSIGNAL SIGRTMIN+3\n".encode())
        list(client.build(fileobj=dockerfile, tag=STOPPED_BY_37))
        command = "trap 'echo x >out; echo y >left; exit 0' 37; echo ready; while :; do sleep 0.1; done"
        job_id = service.submit(command, machineType="TPU", container=STOPPED_BY_37, outputs=["out"])
        wait_until(lambda: (service.job(job_id)["usage"] or {}).get("peakCpuPercent"), "two samples of its usage")
        assert service.job(job_id)["usage"]["peakMemoryBytes"] > 0
        service.request("POST", f"/jobs/{job_id}/stop")
        job = service.wait_ended(job_id)
        assert (job["state"], job["exitCode"]) == ("Cancelled", 0)
        assert service.artifact(job_id, "out") == b"x\n"
        assert "left 2 B" in job["notes"][-1]
        client.remove_container("gradient-job", force=True)

        job = service.wait_ended(service.submit("true", machineType="TPU", container="nobodys/image:none"))
        assert job["reason"] == "image_pull"
        assert nothing_left(simulator, storage)


@pytest.mark.faults
def test_a_worker_that_dies_loses_and_doubles_no_line(service, simulator, storage):
    job_id = service.submit(COUNT, machineType="TPU")
    printed(service, job_id)
    service.processes[-1].kill()
    service.start_up()
    job = service.wait_ended(job_id)
    assert (job["state"], job["attempt"]) == ("Stopped", 1), job["message"]
    assert service.raw_log(job_id) == COUNTED
    assert nothing_left(simulator, storage)


@pytest.mark.faults
@pytest.mark.parametrize("taken", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_runner_that_dies_is_restarted_and_its_job_runs_on(service, simulator, storage, taken):
    job_id = service.submit(COUNT, machineType="TPU")
    printed(service, job_id)
    runner = find_runner(job_id)
    port = int(Path(runner.cwd(), "metadata-port").read_text())
    runner.kill()
    with contextlib.ExitStack() as other:
        if taken:
            runner.wait()
            other.enter_context(socket.create_server(("127.0.0.1", port)))
        job = service.wait_ended(job_id)
    assert (job["state"], job["attempt"]) == ("Stopped", 1), job["message"]
    assert service.raw_log(job_id) == COUNTED
    assert nothing_left(simulator, storage)


READ_OTHERS = """
import json, os, urllib.error, urllib.request
storage, bucket = os.environ["STORAGE_EMULATOR_HOST"], os.environ["TPU_MODEL_DIR"].split("/")[2]
account = "/computeMetadata/v1/instance/service-accounts/default/token"

def ask(token, name, method="GET"):
    where = f"upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
    where = f"storage/v1/b/{bucket}/o/{name}?alt=media" if method == "GET" else where
    body = None if method == "GET" else b"{}"
    request = urllib.request.Request(f"{storage}/{where}", body, {"Authorization": f"Bearer {token}"}, method=method)
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code

for host in (os.environ["GCE_METADATA_HOST"], os.environ["VM_METADATA"]):
    request = urllib.request.Request(f"http://{host}{account}", headers={"Metadata-Flavor": "Google"})
    token = json.load(urllib.request.urlopen(request))["access_token"]
    own = f"jobs%2F{os.environ['GRADIENT_JOB_ID']}%2Fmodel%2Fmine"
    other = "jobs%2Fother%2Fvm%2F1%2Fjob.json"
    print(ask(token, other), ask(token, other, "POST"), ask(token, own, "POST"), flush=True)
"""
ACCOUNT = "tpu@p.iam.gserviceaccount.com"


def test_a_job_on_a_vm_is_let_into_its_own_part_of_the_bucket_alone(storage, tmp_path):
    """Another job's `job.json` holds that job's secrets; the VM's account and the job's own tokens are tried."""
    operator = storage.tokens.caller(None)
    machines = SimulatedVms(
        storage.environment(), lambda: storage.tokens.impersonate(operator, ACCOUNT, 3600.0)["accessToken"]
    )
    with (
        running_simulator(machines=machines) as simulator,
        served(simulator, storage, tmp_path, GRADIENT_TPU__SERVICE_ACCOUNT=ACCOUNT) as service,
    ):
        first = service.wait_ended(service.submit("true", machineType="TPU"))
        assert first["state"] == "Stopped", first["message"]
        bucket = storage.buckets.all()[0].name
        storage.buckets.put(bucket, "jobs/other/vm/1/job.json", b'{"env": {"PASSWORD": "canary"}}', {}, {})
        environment = {"VM_METADATA": machines.environment["GCE_METADATA_HOST"], "PROGRAM": READ_OTHERS}
        job_id = service.submit('python3 -c "$PROGRAM"', machineType="TPU", envVars=environment)
        service.wait_ended(job_id)
        assert service.raw_log(job_id).decode().splitlines() == ["403 403 200", "403 403 403"]
    machines.stop()
    storage.buckets.drop(bucket)
