"""Ports: a job listens, its link leads there, and nobody else gets what it has."""

import contextlib
import random
import socket
from urllib.parse import urlsplit

import httpx
import pytest
from support.deployment import wait_until

SERVES = "echo hello >index.html; exec python3 -m http.server --bind 127.0.0.2 $GRADIENT_PORT_8000"


@pytest.fixture(scope="module")
def range_of_ports():
    """Ports that were free a moment ago, below those that the system gives to whoever asks."""
    for first in random.sample(range(21_000, 29_000, 8), 1000):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + 4):
                probe = stack.enter_context(socket.socket())
                probe.bind(("127.0.0.2", port))
            return first, first + 3
    raise AssertionError("no four free ports in a row")


@pytest.fixture
def service(deployment, range_of_ports):
    first, last = range_of_ports
    deployment.start_up(
        GRADIENT_PORTS__RANGE_START=str(first),
        GRADIENT_PORTS__RANGE_END=str(last),
        GRADIENT_WORKER__ADDRESS="localhost",
        GRADIENT_WORKER__SLOTS="4",
        GRADIENT_WORKER__SWEEP_SECONDS="1",
    )
    return deployment


def fetched(url):
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, timeout=5).content
    return None


def link(service, job_id):
    wait_until(lambda: service.job(job_id)["state"] == "Running", "the job to run")
    [port] = service.job(job_id)["ports"]
    return port["url"]


def test_a_job_is_reached_at_its_link_while_it_runs(service, range_of_ports):
    job_ids = [service.submit(SERVES, ports=["8000"]) for _ in range(2)]
    links = [link(service, job_id) for job_id in job_ids]
    assert {urlsplit(one).hostname for one in links} == {"localhost"}
    numbers = {urlsplit(one).port for one in links}
    assert len(numbers) == 2
    assert all(range_of_ports[0] <= number <= range_of_ports[1] for number in numbers)
    for one in links:
        wait_until(lambda one=one: fetched(one.replace("localhost", "127.0.0.2")) == b"hello\n", "its answer")
    page = service.request("GET", f"/ui/jobs/{job_ids[0]}").text
    assert f'href="{links[0]}"' in page
    for job_id in job_ids:
        service.request("POST", f"/jobs/{job_id}/stop")
        service.wait_ended(job_id)
    assert [service.job(job_id)["ports"] for job_id in job_ids] == [
        [{"internal": 8000, "external": None, "url": None}]
    ] * 2
