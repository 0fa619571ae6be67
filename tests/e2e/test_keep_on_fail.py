"""Failed jobs that are kept for a while, so that their users can look."""

import pytest
from support.deployment import Deployment, wait_until
from support.servers.private_docker_engine import SHELL_IMAGE

FAIL = 'echo kept >note.txt; echo weights >"$GRADIENT_ARTIFACTS_DIR/model"; echo began; exit 3'
SANDBOX, PLAIN, CONTAINER = "sandbox", "plain", "docker"


@pytest.fixture(scope="module", params=[SANDBOX, PLAIN, CONTAINER])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def service(kind, request, tmp_path_factory):
    if kind == CONTAINER:
        settings = request.getfixturevalue("docker_server").service_settings
    else:
        settings = {"GRADIENT_PROCESS__SANDBOX": "require" if kind == SANDBOX else "off"}
    if kind == SANDBOX:
        request.getfixturevalue("bubblewrap")
    deployment = Deployment(tmp_path_factory.mktemp("service") / "home", **settings)
    deployment.start_api()
    deployment.start_worker()
    yield deployment
    deployment.stop()


@pytest.fixture
def kept(service, kind):
    def start(command=FAIL, **spec):
        container = {"container": SHELL_IMAGE} if kind == CONTAINER else {}
        job_id = service.submit(command, **container, **{"keepOnFail": 600, **spec})
        wait_until(lambda: service.job(job_id)["state"] == "Kept", "the job to be kept")
        return job_id

    return start


def failed(service, job_id):
    job = service.wait_ended(job_id)
    assert (job["state"], job["reason"], job["exitCode"]) == ("Failed", "exit_nonzero", 3)
    wait_until(lambda: service.scratch() == [], "its folders to go")
    return job


def enter(service, job_id, command, code=0):
    return service.cli("jobs", "exec", job_id, "--", "sh", "-c", command, code=code)


def test_a_failed_job_is_entered_and_released(service, kind, tmp_path):
    container = ["--container", SHELL_IMAGE] if kind == CONTAINER else []
    create = ["jobs", "create", "--machineType", "CPU", "--workspace", "none", "--keepOnFail", "10m", *container]
    done = service.cli(*create, "-e", "TOKEN=abc", "--command", FAIL, folder=tmp_path, code=3)
    [job] = service.request("GET", "/jobs?state=Kept").json()["jobs"]
    job_id = job["id"]
    assert "Kept for you to look: The command ended with exit code 3" in done.stderr
    assert done.stderr.count("ended with exit code 3") == 1
    assert f"gradient-cli jobs release {job_id}" in done.stderr
    assert service.artifact(job_id, "model") == b"weights\n", "stored before the wait"
    looked = enter(service, job_id, 'cat note.txt; echo "$TOKEN"')
    assert looked.stdout.split() == ["kept", "abc"]
    before = service.job(job_id)
    assert (before["phase"], before["finishedAt"], before["keptUntil"] is not None) == ("kept", None, True)
    wait_until(lambda: service.job(job_id)["durationSeconds"] > before["durationSeconds"], "its time to go on")
    wait_until(lambda: service.job(job_id)["cost"] > before["cost"], "its cost to grow")
    assert f"released {job_id}" in service.cli("jobs", "release", job_id).stderr
    assert failed(service, job_id)["durationSeconds"] > before["durationSeconds"]
    assert "JobNotKept" in service.cli("jobs", "release", job_id, "--json", code=4).stdout
    assert "Only a running job" in enter(service, job_id, "true", code=4).stderr


@pytest.mark.parametrize("end", ["stop", "delete", "drain", "time", "limit"])
def test_what_ends_the_time(service, kept, end):
    job_id = kept(**{"time": {"keepOnFail": 2}, "limit": {"timeLimit": 3}}.get(end, {}))
    if end == "drain":
        worker = service.job(job_id)["worker"]
        service.cli("workers", "drain", worker)
    elif end == "delete":
        service.request("DELETE", f"/jobs/{job_id}")
    elif end == "stop":
        service.request("POST", f"/jobs/{job_id}/stop")
    if end == "delete":
        wait_until(lambda: service.scratch() == [], "its folders to go")
        return
    failed(service, job_id)
    if end == "drain":
        service.cli("workers", "resume", worker)


def test_a_kept_job_survives_its_worker(service, kept):
    job_id = kept()
    service.processes[-1].kill()
    service.start_worker()
    assert wait_until(lambda: "kept" in enter(service, job_id, "cat note.txt", code=None).stdout, "a new worker")
    service.request("POST", f"/jobs/{job_id}/release")
    failed(service, job_id)


def test_only_failures_for_good_are_kept(service, kind):
    container = {"container": SHELL_IMAGE} if kind == CONTAINER else {}
    succeeded = service.submit("true", keepOnFail=600, **container)
    assert service.wait_ended(succeeded)["state"] == "Stopped"
    stopped = service.submit("echo up; sleep 600", keepOnFail=600, stopGrace=1, **container)
    wait_until(lambda: service.raw_log(stopped), "its first line")
    service.request("POST", f"/jobs/{stopped}/stop")
    assert service.wait_ended(stopped)["state"] == "Cancelled"
