"""PyPI's `paperspace` 0.2.0: every command that speaks to the service. It exits with 0 whatever the API says."""

import pytest


@pytest.fixture
def ended(paperspace_python, service):
    said = paperspace_python(
        *("jobs", "create", "--name", "n", "--machineType", "TPU", "--container", "c"),
        *("--command", "python main.py", "--workspace", "."),
    )
    assert "Job created - ID: " in said.out, said
    assert service.wait_ended(said.job_id)["exitCode"] == 0
    return said.job_id


def test_a_job_is_created_and_its_log_followed(paperspace_python, ended, service):
    job = service.job(ended)
    assert (job["command"], job["project"]) == ("python main.py", "paperspace-python")
    said = paperspace_python("jobs", "logs", "--jobId", ended, "--follow", "true")
    assert (said.code, "hello from the workspace" in said.out) == (0, True), said


def test_variables_are_passed(paperspace_python, service):
    said = paperspace_python(
        *("jobs", "create", "--name", "v", "--machineType", "CPU", "--container", "c", "--workspace", "none"),
        *("--command", "echo got $COLOUR", "--jobEnv", '{"COLOUR": "blue", "COUNT": 3}'),
    )
    assert service.wait_ended(said.job_id)["envVars"] == {"COLOUR": "blue", "COUNT": "3"}
    assert service.raw_log(said.job_id) == b"got blue\n"


@pytest.mark.slow  # test_gradient.py does
def test_artifacts_are_listed_and_destroyed(paperspace_python, ended):
    listed = paperspace_python("jobs", "artifacts", "list", ended, "--size", "--links").out
    assert ("out.txt" in listed, "sub/a b & ü.txt" in listed) == (True, True)
    assert "SessionToken" in paperspace_python("jobs", "artifacts", "get", ended).out
    paperspace_python("jobs", "artifacts", "destroy", ended, "--files", "out.txt")
    assert "out.txt" not in paperspace_python("jobs", "artifacts", "list", ended).out


@pytest.mark.slow  # test_npm.py does
def test_jobs_are_stopped_and_deleted(paperspace_python, ended):
    assert "Job stopped" in paperspace_python("jobs", "stop", "--jobId", ended).out
    assert "Job deleted" in paperspace_python("jobs", "delete", "--jobId", ended).out
    for verb in ("stop", "delete", "logs"):
        said = paperspace_python("jobs", verb, "--jobId", ended)
        assert (said.code, "No such job" in said.out + said.err) == (0, True), said


def test_what_cannot_be_is_refused(paperspace_python):
    create = ("jobs", "create", "--name", "n", "--container", "c", "--command", "true", "--workspace", "none")
    said = paperspace_python(*create, "--machineType", "Bogus")
    assert "Invalid machine type" in said.out + said.err
    said = paperspace_python(*create, "--machineType", "CPU", "--nodeAttrs", '{"zone": 1}')
    assert "`nodeAttrs` is not supported" in said.out + said.err
    said = paperspace_python("jobs", "list", PAPERSPACE_API_KEY="bad")
    assert "Invalid API token" in said.out + said.err
