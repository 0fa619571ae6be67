"""A whole session of npm's client whose job runs in a container."""

import pytest
from deployment import Deployment
from dockerserver import SHELL


@pytest.fixture(scope="module")
def service(docker_server, tmp_path_factory):
    deployment = Deployment(
        tmp_path_factory.mktemp("containers") / "home",
        GRADIENT_MACHINES__SIMULATE="false",
        GRADIENT_DOCKER__URL=docker_server.url,
        GRADIENT_DOCKER__PULL="never",
        GRADIENT_DOCKER__FENCE="off",
        GRADIENT_STATSD__PORT="0",
    )
    deployment.start_up()
    yield deployment
    deployment.stop()


def test_a_folder_goes_into_a_container_and_its_outputs_come_back(paperspace, service):
    said = paperspace(
        *("jobs", "create", "--machineType", "CPU", "--container", SHELL),
        *("--command", 'echo in "$PWD"; ./run.sh; echo weights >/artifacts/model.bin; exit 3'),
    )
    assert said.out.splitlines()[-4:] == [
        "in /paperspace",
        "the workspace",
        "Job Failed, exitCode 3",
        "Error: The command ended with exit code 3. The end of its log says more.",
    ]
    job = service.job(said.job_id)
    assert (job["backend"], job["simulated"]) == ("docker", False)
    listed = paperspace("jobs", "artifactsList", "--jobId", said.job_id, "--size", "--json").json
    assert listed == [{"file": "model.bin", "size": 8}]
    assert paperspace("jobs", "destroy", "--jobId", said.job_id).code == 0
