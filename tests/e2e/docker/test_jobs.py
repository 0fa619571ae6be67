"""Jobs in containers, from the client to the engine and back."""

import pytest
from support.deployment import Deployment, wait_until
from support.servers.private_docker_engine import SHELL_IMAGE

MAIN = """
echo training in "$PWD" as "$(id -u)"
cat data.txt
echo '{"step": 1, "loss": 0.5}' >>"$GRADIENT_METRICS_FILE"
echo weights >"$GRADIENT_ARTIFACTS_DIR/model.bin"
echo shared >"$GRADIENT_STORAGE_DIR/seen"
exit 3
"""


def deployed(server, home):
    """A service whose machine types are real, not started yet."""
    return Deployment(home, **server.service_settings, GRADIENT_WORKER__SWEEP_SECONDS="1")


@pytest.fixture(scope="module")
def service(docker_server, tmp_path_factory):
    deployment = deployed(docker_server, tmp_path_factory.mktemp("service") / "home")
    deployment.start_up()
    yield deployment
    deployment.stop()


def left(server):
    with server.client() as client:
        return client.containers(all=True)


def test_a_workspace_goes_into_a_container_and_its_outputs_come_back(service, docker_server, tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "main.sh").write_text(MAIN)
    (folder / "data.txt").write_text("data of the workspace\n")
    create = ["jobs", "create", "--machineType", "CPU", "--container", SHELL_IMAGE, "--command", "sh main.sh"]
    done = service.cli(*create, folder=folder, code=3)
    user = service.storage.stat().st_uid
    assert f"training in /paperspace as {user}\ndata of the workspace\n" in done.stdout
    assert user > 0, "not root, though the worker is"
    [job] = service.request("GET", "/jobs").json()["jobs"]
    assert (job["state"], job["exitCode"], job["reason"]) == ("Failed", 3, "exit_nonzero")
    assert (job["backend"], job["simulated"]) == ("docker", False)
    assert service.artifact(job["id"], "model.bin") == b"weights\n"
    series = service.request("GET", f"/jobs/{job['id']}/metrics").json()["series"]
    assert [one["last"] for one in series if one["name"] == "loss"] == [0.5]
    assert (service.storage / "seen").read_text() == "shared\n"
    wait_until(lambda: service.scratch() == [], "its folders to go")
    assert left(docker_server) == []


def test_two_jobs_have_a_port_each_for_their_processes_to_meet(service):
    listens = 'echo "$MASTER_ADDR:$MASTER_PORT"; nc -l -p "$MASTER_PORT" & while kill -0 $!; do sleep 0.1; done'
    jobs = [service.submit(listens, container=SHELL_IMAGE) for _ in range(2)]
    for job_id in jobs:
        wait_until(lambda job_id=job_id: service.raw_log(job_id) == b"127.0.0.1:29500\n", "it to listen")
    for job_id in jobs:
        assert service.job(job_id)["state"] == "Running"
        service.request("POST", f"/jobs/{job_id}/stop?now=true")
        service.wait_ended(job_id)


@pytest.mark.parametrize(
    ("container", "reason", "says"),
    [("no/such:image", "image_pull", "no/such:image"), ("gradient-test:bare", "no_shell", "/bin/sh")],
)
def test_an_image_that_will_not_do_is_explained(service, docker_server, container, reason, says):
    job = service.wait_ended(service.submit("true", container=container))
    assert (job["exitCode"], job["reason"]) == (None, reason)
    assert says in job["message"]
    assert left(docker_server) == []


def test_a_host_without_a_gpu_takes_no_job_that_needs_one(service):
    body = {"machineType": "P4000", "command": "true", "container": SHELL_IMAGE}
    refused = service.request("POST", "/jobs", json=body)
    assert (refused.status_code, "would never start" in refused.text) == (400, True)
    waiting = service.submit("true", container=SHELL_IMAGE, machineType="P4000", waitAnyway=True)
    ended = service.wait_ended(service.submit("true", container=SHELL_IMAGE))
    assert ended["state"] == "Stopped"
    assert service.job(waiting)["state"] == "Pending", "the one after it was served"
    service.request("DELETE", f"/jobs/{waiting}")


def test_a_container_that_nobody_knows_of_any_more_is_swept(service, docker_server):
    job_id = service.submit("true", container=SHELL_IMAGE)
    service.wait_ended(job_id)
    labels = {"gradient.home": str(service.home), "gradient.job": job_id, "gradient.attempt": "1"}
    with docker_server.client() as client:
        config = client.create_host_config(network_mode="none")
        client.create_container(
            SHELL_IMAGE, ["sleep", "600"], host_config=config, labels=labels, name=f"gradient-{job_id}-1"
        )
    wait_until(lambda: left(docker_server) == [], "the sweep")
