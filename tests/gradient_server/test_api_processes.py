"""The API in two processes, from outside: they share the port, their limits and what exists once, and end together."""

import select
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.deployment import EMPTY_SSL_CONTEXT, TIMEOUT_SECONDS, Deployment, Process, wait_until
from support.event_files import write_scalars

from gradient_server.main import main

pytestmark = pytest.mark.integration


@pytest.fixture
def make_deployment(tmp_path):
    made = []

    def make(**settings):
        made.append(Deployment(tmp_path / "home", GRADIENT_API__PROCESSES="2", **settings))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def deployment(make_deployment):
    return make_deployment()


def ask(deployment, path, method="GET", **options):
    """One request over a connection of its own, which either process may take."""
    address = deployment.cli_json
    headers = {"x-api-key": address["apiKey"], "accept": options.pop("accept", "*/*")}
    with httpx.Client(timeout=TIMEOUT_SECONDS, verify=EMPTY_SSL_CONTEXT, trust_env=False) as client:
        return client.request(method, address["url"] + path, headers=headers, **options)


def samples(deployment):
    """The samples that either process shows of both; waits until both are there."""

    def of_both():
        try:
            text = ask(deployment, "/metrics").text
        except httpx.TransportError:  # the process that took the connection was killed
            return None
        found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        there = {sample.labels["process"] for sample in found if sample.name == "gradient_build_info"}
        return found if there == {"0", "1"} else None

    return wait_until(of_both, "metrics of both processes")


def requests_by_process(deployment, route):
    """Numbers of requests for a route, by the number of the process."""
    return {
        sample.labels["process"]: sample.value
        for sample in samples(deployment)
        if sample.name == "gradient_http_requests_total" and sample.labels["route"] == route
    }


def ask_both(deployment, path, route, **options):
    """Send a request until both processes have answered it; returns the answers."""
    answers = []

    def both():
        answers.append(ask(deployment, path, **options))
        return len(requests_by_process(deployment, route)) == 2

    wait_until(both, "requests to reach both processes")
    return answers


def children(process: Process):
    return psutil.Process(process.pid).children()


def wait_for_two(process: Process, *, without: int = 0):
    def two():
        found = children(process)
        return found if len(found) == 2 and without not in {one.pid for one in found} else None

    return wait_until(two, "two processes")


def test_both_answer_and_each_request_is_counted_once_whoever_is_asked(deployment):
    deployment.start_api()
    answers = ask_both(deployment, "/projects", "/projects")
    assert {answer.status_code for answer in answers} == {200}
    for _ in range(10):
        assert sum(requests_by_process(deployment, "/projects").values()) == len(answers)


def test_a_limit_of_a_key_holds_for_both_together(make_deployment):
    deployment = make_deployment(GRADIENT_LIMITS__REQUESTS_PER_MINUTE="40")
    wait_for_two(deployment.start_api())
    began = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: ask(deployment, "/projects"), range(120)))
    refilled = 40 * (time.monotonic() - began) / 60
    codes = [answer.status_code for answer in answers]
    assert set(codes) == {200, 429}
    assert 20 <= codes.count(200) <= 40 + refilled + 1
    [refused] = {answer.json()["error"]["message"].partition(" Try")[0] for answer in answers if not answer.is_success}
    shared = "(GRADIENT_LIMITS__REQUESTS_PER_MINUTE, shared by 2 processes)"
    assert refused == f"Limit reached: 20 requests per minute for one key {shared}."


def test_a_limit_of_connections_holds_for_both_together(make_deployment):
    deployment = make_deployment(GRADIENT_API__MAX_CONNECTIONS_PER_CLIENT="20")
    wait_for_two(deployment.start_api())
    url = urlsplit(deployment.cli_json["url"])
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_connection((url.hostname, url.port))) for _ in range(80)]

        closed = select.poll()  # unlike select(), also of descriptors above 1,023
        for connection in sockets:
            closed.register(connection, select.POLLIN)

        def open_ones():
            return {connection.fileno() for connection in sockets} - {descriptor for descriptor, _ in closed.poll(0)}

        wait_until(lambda: len(open_ones()) <= 20, "the others to be closed")
        assert len(open_ones()) >= 10


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_the_limit_of_queued_jobs_is_exact(make_deployment, request, database):
    settings = {"GRADIENT_LIMITS__QUEUED_PER_KEY": "25"}
    if database == "postgresql":
        settings["GRADIENT_DATABASE__URL"] = request.getfixturevalue("postgres").new_database()
    deployment = make_deployment(**settings)
    deployment.migrate()
    wait_for_two(deployment.start_api())
    submit = partial(ask, deployment, "/jobs", "POST", json={"machineType": "CPU", "command": "true"})
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda _: submit().status_code, range(60)))
    assert answers.count(201) == 25
    assert answers.count(429) == 35


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_that_dies_is_replaced(deployment, number):
    api = deployment.start_api()
    processes = wait_for_two(api)
    victim = sorted(processes, key=lambda one: one.pid)[number]
    victim.kill()
    wait_for_two(api, without=victim.pid)
    wait_until(lambda: "is started again" in api.read_log(), "an error in the log")
    assert f"process {victim.pid} ended" in api.read_log()
    assert {answer.status_code for answer in ask_both(deployment, "/projects", "/projects")} == {200}
    assert api.read_log().count("is ready") == 1


@pytest.mark.parametrize(("command", "number"), [("start_api", signal.SIGINT), ("start_up", signal.SIGTERM)])
def test_a_signal_ends_all(deployment, command, number):
    service = getattr(deployment, command)()
    processes = wait_for_two(service)
    ask_both(deployment, "/projects", "/projects")
    service.signal(number)
    assert service.wait() == 0
    assert not any(one.is_running() for one in processes)
    assert "is started again" not in service.read_log()
    assert "Traceback" not in service.read_log()


def test_followed_logs_hinder_no_end(deployment):
    service = deployment.start_up()
    job_id = deployment.submit("echo begun; sleep 300")
    path = f"/jobs/{job_id}/logs"
    with ThreadPoolExecutor(12) as threads:
        followed = [threads.submit(ask, deployment, path, accept="text/event-stream") for _ in range(12)]
        wait_until(lambda: sum(streams(deployment)) == 12, "all to follow")
        service.signal(signal.SIGTERM)
        assert service.wait() == 0
    assert {type(one.exception(timeout=0)) for one in followed} <= {type(None), httpx.RemoteProtocolError}


def streams(deployment):
    return [sample.value for sample in samples(deployment) if sample.name == "gradient_log_streams"]


def test_none_outlives_a_supervisor_that_is_killed(deployment):
    service = deployment.start_up()
    processes = wait_for_two(service)
    port = deployment.cli_json["url"].rpartition(":")[2]
    service.kill()
    wait_until(lambda: not any(one.is_running() for one in processes), "the end of its processes")
    again = deployment.start("up", "--port", port, "--processes", "2")
    deployment.wait_ready(again)
    wait_for_two(again)


def test_up_has_one_worker_and_runs_jobs_whichever_process_takes_them(deployment):
    deployment.start_up()
    job = {"machineType": "CPU", "command": "echo done"}
    answers = ask_both(deployment, "/jobs", "/jobs", method="POST", json=job)
    for answer in answers:
        assert deployment.wait_ended(answer.json()["id"])["state"] == "Stopped"
        assert deployment.raw_log(answer.json()["id"]) == b"done\n"
    assert len(deployment.request("GET", "/workers").json()["workers"]) == 1
    # Counted from events, in the first process: the same from both.
    shown = {line for _ in range(10) for line in ask(deployment, "/metrics").text.splitlines() if "jobs_ended_" in line}
    assert not any("process=" in line for line in shown)


def test_tensorboard_opens_whichever_process_is_asked(deployment, tmp_path):
    deployment.start_up()
    file = write_scalars(tmp_path / "events", "loss", [0.5])
    job_id = deployment.submit(f"cp {file} $GRADIENT_ARTIFACTS_DIR/")
    assert deployment.wait_ended(job_id)["state"] == "Stopped"
    answers = ask_both(deployment, "/tensorboards", "/tensorboards", method="POST", json={"ids": [job_id]})
    links = [answer.json()["url"] for answer in answers]
    assert len({link.partition("?")[0] for link in links}) == 1, "one TensorBoard for all"
    with httpx.Client(timeout=120, verify=EMPTY_SSL_CONTEXT, trust_env=False) as visitor:
        for link in links:
            assert visitor.get(link).status_code == 200
        [run] = visitor.get(links[0].partition("?")[0] + "data/runs").raise_for_status().json()
    assert job_id in run


def test_a_service_that_cannot_start_says_so_once_and_ends(deployment):
    service = deployment.start("api", "--port", "0", GRADIENT_MACHINES__DEFAULT="NONE")
    assert service.wait() == 1
    assert service.read_log().count("error: GRADIENT_MACHINES__DEFAULT") == 1
    assert "is ready" not in service.read_log()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["api", "--processes", "0"], "'0' is not a number of processes from 1 to 64"),
        (["up", "--processes", "many"], "'many' is not a number of processes from 1 to 64"),
        (["up", "--processes", "2", "--tpu-simulator"], "--tpu-simulator needs the API in one process"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.setenv("GRADIENT_HOME", str(tmp_path / "home"))
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "home" / "gradient.db").exists()


def test_a_followed_log_reaches_its_readers_through_both(deployment):
    deployment.start_up()
    job_id = deployment.submit("for i in 1 2 3; do echo line $i; sleep 0.3; done")
    path, route = f"/jobs/{job_id}/logs", "/jobs/{job_id}/logs"
    for answer in ask_both(deployment, path, route, accept="text/event-stream"):
        assert [answer.text.count(f"line {number}") for number in (1, 2, 3)] == [1, 1, 1]
