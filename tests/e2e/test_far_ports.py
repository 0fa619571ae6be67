"""Links to ports of jobs on a worker that the service cannot connect to."""

import socket
from urllib.parse import urlsplit

import pytest
from support.deployment import Deployment, wait_until
from support.far_worker import ECHO, FarWorker

pytestmark = [pytest.mark.e2e]


@pytest.fixture
def deployment(tmp_path):
    deployment = Deployment(tmp_path / "home", GRADIENT_PORTS__BIND="127.0.0.57")
    deployment.start_api()
    yield deployment
    deployment.stop()


@pytest.fixture
def far(deployment, tmp_path):
    return FarWorker(deployment, tmp_path / "far", deployment.cli_json["url"])


def test_a_link_to_a_port_leads_through_the_one_connection_of_its_worker(deployment, far):
    worker = far.start()
    on_its_port = ECHO.replace("'127.0.0.1', 0", "'127.0.0.1', $GRADIENT_PORT_9000")
    job_id = deployment.submit(f'python3 -c "{on_its_port}"', ports=["9000"])

    def link():
        return urlsplit(deployment.job(job_id)["ports"][0]["url"] or "")

    found = wait_until(lambda: link().hostname and link(), "its link")
    assert found.hostname == "127.0.0.57"

    def echoed(size):
        try:
            with socket.create_connection((found.hostname, found.port), 30) as connection:
                connection.sendall(b"x" * size + b"\n")
                connection.shutdown(socket.SHUT_WR)
                with connection.makefile("rb") as said:
                    return said.read() == b"x" * size + b"\n"
        except OSError:
            return False

    wait_until(lambda: echoed(1), "its server to answer")
    assert echoed(500_000)
    worker.kill()
    far.start()
    wait_until(lambda: echoed(1), "the link to lead to the next worker")
    deployment.request("POST", f"/jobs/{job_id}/stop")
    deployment.wait_ended(job_id)
    wait_until(lambda: not echoed(1), "the link to close")
