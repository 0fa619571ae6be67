"""Sessions of the original clients whose jobs run in containers."""

import re

import pytest
from support.deployment import Deployment
from support.servers.private_docker_engine import SHELL_IMAGE


@pytest.fixture(scope="module")
def service(docker_server, tmp_path_factory):
    deployment = Deployment(
        tmp_path_factory.mktemp("containers") / "home",
        GRADIENT_MACHINES__SIMULATE="false",
        GRADIENT_DOCKER__URL=docker_server.url,
        GRADIENT_DOCKER__PULL="never",
        GRADIENT_DOCKER__FIREWALL="off",
        GRADIENT_STATSD__PORT="0",
    )
    deployment.start_up()
    yield deployment
    deployment.stop()


@pytest.mark.slow  # e2e/docker/test_jobs.py and test_npm.py together
def test_a_folder_goes_into_a_container_and_its_outputs_come_back(paperspace, service):
    said = paperspace(
        *("jobs", "create", "--machineType", "CPU", "--container", SHELL_IMAGE),
        *("--command", 'echo in "$PWD"; ./run.sh; echo weights >/artifacts/model.bin; exit 3'),
    )
    assert said.out.splitlines()[-4:] == [
        "in /paperspace",
        "the workspace",
        "Job Failed, exitCode 3",
        "Error: The command ended with exit code 3. See the end of its log.",
    ]
    job = service.job(said.job_id)
    assert (job["backend"], job["simulated"]) == ("docker", False)
    listed = paperspace("jobs", "artifactsList", "--jobId", said.job_id, "--size", "--json").json
    assert listed == [{"file": "model.bin", "size": 8}]
    assert paperspace("jobs", "destroy", "--jobId", said.job_id).code == 0


@pytest.mark.slow  # test_gradient.py has them with processes
def test_the_python_clients_jobs_run_in_containers(gradient, paperspace_python, service):
    project = re.search(r"pr[a-z0-9]{13}", gradient("projects", "create", "--name", "boxes").out)[0]
    command = 'echo in "$PWD"; sh run.sh; echo weights >/artifacts/model.bin'
    asked = ("--machineType", "CPU", "--container", SHELL_IMAGE, "--command", command, "--projectId", project)
    for client, named in ((gradient, ["--id"]), (paperspace_python, [])):
        said = client("jobs", "create", *asked, "--name", "boxed", "--workspace", ".")
        job = service.wait_ended(said.job_id)
        assert (job["state"], job["backend"]) == ("Stopped", "docker"), said
        assert service.raw_log(said.job_id) == b"in /paperspace\nthe workspace\n"
        assert "model.bin" in client("jobs", "artifacts", "list", *named, said.job_id).out
