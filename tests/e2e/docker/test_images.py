"""Images of jobs, from the client to the registry and back."""

import json
import os
import subprocess
import zipfile

import pytest
from support.deployment import CLI_PROGRAM, Deployment, wait_until
from support.servers.image_registry import Registry
from support.servers.private_docker_engine import SHELL_IMAGE, build_layer

DOCKERFILE = f"FROM {SHELL_IMAGE}\nCOPY data.txt /data.txt\nRUN echo a step of the build; cat /data.txt\n"


@pytest.fixture(scope="module")
def registry(docker_server, tmp_path_factory):
    made = Registry(tmp_path_factory.mktemp("registry") / "r", docker_server.network)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def image(docker_server, registry):
    """An image with a shell that only the registry has."""
    with docker_server.client() as client:
        made = client.create_container(SHELL_IMAGE, ["/none"])["Id"]
        content = b"".join(client.export(made))
        client.remove_container(made)
    return registry.add_image("team/shell:1", [content, build_layer({"data": os.urandom(300_000)})])


def make_settings(docker_server):
    builds = {"GRADIENT_DOCKER__PULL": "missing", "GRADIENT_IMAGES__BUILDS": "true", "GRADIENT_DOCKER__NETWORK": "none"}
    return docker_server.service_settings | builds


@pytest.fixture(scope="module")
def service_settings(docker_server, registry, tmp_path_factory):
    names = tmp_path_factory.mktemp("names") / "images.toml"
    names.write_text(f'[shell]\nimage = "{registry.host}/team/shell:1"\nsummary = "a shell"\n')
    return make_settings(docker_server) | {
        "GRADIENT_IMAGES__FILE": str(names),
        "worker.backends.docker.images.cache.UNUSED_TTL_SECONDS": 0,
        "GRADIENT_IMAGES__MAX_DISK_PERCENT": "100",  # else a nearly full disk has them removed before their use
        "GRADIENT_WORKER__SWEEP_SECONDS": "1",
    }


@pytest.fixture
def cli(service, tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENT_")}

    def run(*arguments, program=CLI_PROGRAM):
        command = [str(program), *arguments]
        env_here = env | service.environment()
        return subprocess.run(command, cwd=tmp_path, env=env_here, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def build(service, tmp_path):
    """Submit a job that builds its image."""

    def submit(dockerfile=DOCKERFILE, **spec):
        archive = tmp_path / "workspace.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr("Dockerfile", dockerfile)
            packed.writestr("data.txt", "data of the workspace\n")
        asked = {"machineType": "CPU", "command": "cat /data.txt; exit 4", "useDockerfile": True} | spec
        with archive.open("rb") as opened:
            answer = service.request(
                "POST",
                "/jobs",
                data={"spec": json.dumps(asked)},
                files={"workspace": ("w.zip", opened, "application/zip")},
            )
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    return submit


def left(server):
    with server.client() as client:
        return client.containers(all=True)


def test_a_pull_is_seen_with_bytes_and_layers_and_the_digest_is_kept(service, registry, image, cli, docker_server):
    reference, digest = image
    registry.configure(bytes_per_second=60_000)
    job_id = service.submit("exit 6", container="shell")

    def pulling():
        job = service.job(job_id)
        return job if job["phase"] == "pulling" and "of 2 layers, 0." in job["phaseDetail"] else None

    seen = wait_until(pulling, "bytes of the pull")
    assert seen["phaseDetail"].startswith(f"{reference}: 0 of 2 layers, ")
    assert (seen["state"], seen["image"], seen["imageDigest"]) == ("Pending", reference, None)
    registry.configure()
    job = service.wait_ended(job_id)
    assert (job["exitCode"], job["container"], job["imageDigest"]) == (6, "shell", digest)
    begun = [one for one in service.events(job_id) if one["phase"] == "pulling"]
    assert len(begun) == 1, "its beginning is an event, not each of its figures"
    shown = cli("jobs", "show", job_id).stdout
    assert reference in shown
    assert digest in shown
    assert digest in service.request("GET", f"/ui/jobs/{job_id}/config").text

    cloned = cli("jobs", "clone", job_id, "--pinImage", "--detach").stdout.strip()
    again = service.wait_ended(cloned)
    assert (again["container"], again["exitCode"], again["imageDigest"]) == (digest, 6, digest)
    assert left(docker_server) == []


def test_a_job_builds_its_image_and_runs_in_it(service, build, docker_server):
    job = service.wait_ended(build())
    assert (job["exitCode"], job["reason"], job["useDockerfile"], job["image"]) == (4, "exit_nonzero", True, None)
    assert job["imageDigest"].startswith("sha256:")
    log = service.raw_log(job["id"]).decode()
    assert "Step 1/3" in log
    assert "a step of the build\ndata of the workspace\n" in log
    assert log.endswith("data of the workspace\n")
    assert left(docker_server) == []


def test_the_log_of_a_build_is_seen_while_it_is_built(service, build, docker_server):
    job_id = build(f"FROM {SHELL_IMAGE}\nRUN echo slow step; sleep 600\n")
    wait_until(lambda: b"\nslow step\n" in service.raw_log(job_id), "the step's output")
    assert (service.job(job_id)["state"], service.job(job_id)["phase"]) == ("Pending", "building")
    service.request("POST", f"/jobs/{job_id}/stop")
    job = service.wait_ended(job_id)
    assert (job["state"], job["reason"]) == ("Cancelled", "stopped_by_user")
    wait_until(lambda: left(docker_server) == [], "the step to be ended")


def test_a_build_alone_is_pushed_and_runs_nothing(service, build, registry, docker_server):
    job = service.wait_ended(build(buildOnly=True, registryTarget=f"{registry.host}/team/made:1", command=""))
    assert (job["state"], job["reason"], job["exitCode"]) == ("Stopped", "built", 0)
    assert job["imageDigest"].startswith(f"{registry.host}/team/made@sha256:")
    assert job["imageDigest"] in job["message"]
    assert registry.has_manifest("team/made:1")
    assert b"a step of the build" in service.raw_log(job["id"])
    assert left(docker_server) == []
    ran = service.wait_ended(service.submit("cat /data.txt", container=job["imageDigest"]))
    assert ran["state"] == "Stopped", (ran["reason"], ran["message"], service.raw_log(ran["id"]))
    assert service.raw_log(ran["id"]) == b"data of the workspace\n"


def test_a_push_signs_in_with_what_is_stored_for_the_registry(service, build, registry):
    registry.configure(require="Basic bWU6cHVzaGVk")  # me:pushed
    wish = {"buildOnly": True, "registryTarget": f"{registry.host}/team/private:1", "command": ""}
    refused = service.wait_ended(build(**wish))
    assert (refused["state"], refused["reason"]) == ("Error", "image_push")
    path = f"/registries/{registry.host}"
    assert service.request("PUT", path, json={"username": "me", "password": "pushed", "push": True}).status_code == 201
    job = service.wait_ended(build(**wish))
    assert (job["state"], job["reason"]) == ("Stopped", "built")
    assert registry.has_manifest("team/private:1")
    registry.configure()
    assert service.request("DELETE", path).status_code == 204


@pytest.mark.faults
def test_a_build_goes_on_under_another_worker(docker_server, tmp_path):
    """The worker dies while it builds: the next one builds anew, and the job runs once."""
    deployment = Deployment(tmp_path / "home", **make_settings(docker_server))
    try:
        deployment.start_api()
        worker = deployment.start_worker()
        archive = tmp_path / "w.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr("Dockerfile", f"FROM {SHELL_IMAGE}\nRUN echo first; sleep 2\nRUN echo second\n")
        spec = {"machineType": "CPU", "command": "echo ran", "useDockerfile": True}
        files = {"workspace": ("w.zip", archive.read_bytes(), "application/zip")}
        job_id = deployment.request("POST", "/jobs", data={"spec": json.dumps(spec)}, files=files).json()["id"]
        wait_until(lambda: b"\nfirst\n" in deployment.raw_log(job_id), "its first step")
        worker.kill()
        deployment.start_worker()
        job = deployment.wait_ended(job_id)
        log = deployment.raw_log(job_id)
    finally:
        deployment.stop()
    assert (job["state"], job["attempt"]) == ("Stopped", 1)
    assert log.count(b"\nran\n") == 1
    assert left(docker_server) == []
