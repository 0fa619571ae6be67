"""Images of registries that ask who comes, and ports of containers, over a real engine."""

import hashlib
import secrets
import subprocess
import sys

import pytest
from sqlalchemy import func, select
from support.deployment import wait_until
from support.live_folder import find_files_with
from support.servers import private_registry
from support.servers.private_docker_engine import SHELL_IMAGE
from support.servers.private_registry import IMAGE_NAME, IMAGE_TAG

from core.db.database import Database
from core.db.models.credentials import JobRegistryPassword

BASIC, TOKEN = 5601, 5602


@pytest.fixture(scope="module")
def password():
    return f"canary-{secrets.token_hex(16)}"


@pytest.fixture(scope="module")
def registry(docker_server, password, tmp_path_factory):
    """Two of them, beside the engine: by password and by token."""
    layer = tmp_path_factory.mktemp("registry") / "layer.tar"
    with docker_server.client() as client:
        container = client.create_container(SHELL_IMAGE, ["true"])["Id"]
        layer.write_bytes(b"".join(client.export(container)))
        client.remove_container(container)
    program = [*docker_server.network, sys.executable, private_registry.__file__, "127.0.0.1"]
    started = [
        subprocess.Popen([*program, str(port), f"alice:{password}", scheme, str(layer)], stderr=subprocess.DEVNULL)
        for port, scheme in ((BASIC, "basic"), (TOKEN, "token"))
    ]
    for port in (BASIC, TOKEN):
        look = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
        wait_until(
            lambda look=look: (
                subprocess.run(
                    [*docker_server.network, sys.executable, "-c", look], capture_output=True, check=False
                ).returncode
                == 0
            ),
            "the registry",
        )
    yield
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def service_settings(docker_server):
    return docker_server.service_settings | {
        "GRADIENT_DOCKER__PULL": "missing",
        "GRADIENT_WORKER__SWEEP_SECONDS": "1",
    }


@pytest.fixture(autouse=True)
def without_the_image(docker_server):
    yield
    with docker_server.client() as client:
        for port in (BASIC, TOKEN):
            if client.images(name=image(port)):
                client.remove_image(image(port))


def stored_logins(service):
    database = Database(service.database_url, read_only=True)
    with database.read() as session:
        count = session.scalar(select(func.count()).select_from(JobRegistryPassword))
    database.close()
    return count


def image(port):
    return f"127.0.0.1:{port}/{IMAGE_NAME}:{IMAGE_TAG}"


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("port", [pytest.param(BASIC, marks=pytest.mark.slow), TOKEN])
def test_a_private_image_is_pulled_with_what_is_stored_for_its_registry(service, password, port):
    set_to = f"/registries/127.0.0.1:{port}"
    refused = service.wait_ended(service.submit("true", container=image(port)))
    assert (refused["state"], refused["reason"]) == ("Error", "image_pull")
    assert f"gradient-cli registries set 127.0.0.1:{port}" in refused["message"]
    service.request("PUT", set_to, json={"username": "alice", "password": "a-wrong-word"})
    refused = service.wait_ended(service.submit("true", container=image(port)))
    assert refused["reason"] == "image_pull"
    assert f"127.0.0.1:{port} did not accept the login of 'alice'" in refused["message"]
    assert "a-wrong-word" not in refused["message"]
    service.request("PUT", set_to, json={"username": "alice", "password": password})
    pulled = service.wait_ended(service.submit("echo from inside", container=image(port)))
    assert (pulled["exitCode"], service.raw_log(pulled["id"])) == (0, b"from inside\n")
    answers = [service.request("GET", path).text for path in ("/registries", "/jobs", f"/jobs/{pulled['id']}/events")]
    assert [answer for answer in answers if password in answer] == []
    assert find_files_with(service.home.parent, password) == []
    assert service.request("DELETE", set_to).status_code == 204


@pytest.mark.usefixtures("registry")
def test_a_job_may_bring_its_own_password_which_goes_with_it(service, password):
    own = {"registryUsername": "alice", "registryPassword": password}
    job = service.wait_ended(service.submit("echo mine", container=image(BASIC), **own))
    assert (job["exitCode"], job["registryUsername"]) == (0, "alice")
    assert "registryPassword" not in job
    assert stored_logins(service) == 0
    cloned = service.request("POST", f"/jobs/{job['id']}/clone")
    assert (cloned.status_code, cloned.json()["error"]["field"]) == (400, "registryPassword")
    assert find_files_with(service.home.parent, password) == []


def test_a_containers_port_is_reached_at_its_link_and_is_free_again(service, docker_server):
    serve = "mkdir www; echo hello >www/index.html; exec httpd -f -p $GRADIENT_PORT_8000 -h www"
    for _ in range(2):
        job_id = service.submit(serve, container=SHELL_IMAGE, ports=["24680:8000"], stopGrace=0)
        wait_until(lambda job_id=job_id: service.job(job_id)["state"] == "Running", "the job to run")
        [port] = service.job(job_id)["ports"]
        assert port == {"internal": 8000, "external": 24680, "url": "http://127.0.0.2:24680"}
        fetch = [*docker_server.network, "curl", "--silent", "--max-time", "5", port["url"]]
        wait_until(
            lambda fetch=fetch: subprocess.run(fetch, capture_output=True, check=False).stdout == b"hello\n",
            "its page",
        )
        for name in ("127.0.0.1", "localhost"):  # the dashboard's: a browser would send its session along
            ask = [*docker_server.network, "curl", "--silent", "--max-time", "5", f"http://{name}:24680"]
            assert subprocess.run(ask, capture_output=True, check=False).returncode == 7, "nobody listens there"
        service.request("POST", f"/jobs/{job_id}/stop")
        assert service.wait_ended(job_id)["reason"] == "stopped_by_user"


def test_a_containers_secret_is_in_no_log_of_the_engine(service, docker_server, password):
    service.request("PUT", "/secrets/token", json={"value": password})
    job_id = service.submit('printf %s "$TOKEN" | sha256sum', container=SHELL_IMAGE, envVars={"TOKEN": "secret:token"})
    assert service.wait_ended(job_id)["exitCode"] == 0
    assert service.raw_log(job_id).split()[0].decode() == hashlib.sha256(password.encode()).hexdigest()
    wait_until(lambda: service.scratch() == [], "its folders to go")
    assert password not in (docker_server.folder / "log").read_text()
    assert find_files_with(docker_server.folder / "data" / "containers", password) == [], "gone with the container"
    assert find_files_with(service.home.parent, password) == []
