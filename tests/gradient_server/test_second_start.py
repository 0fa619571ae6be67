"""Starts in a folder that has a server, starts that fail, and Ctrl-C: none leaves anything behind."""

import json
import os
import signal
import subprocess

import pytest
from support.deployment import PLAIN_JOBS, SERVER_PROGRAM, TIMEOUT_SECONDS, Deployment, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def deployment(tmp_path):
    made = Deployment(tmp_path / "home")
    yield made
    made.stop()


def contents(home):
    return {one.name: one.read_bytes() for one in home.iterdir() if one.name in {"cli.json", "backend", "server.lock"}}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["up"], ["up"]),
        *(
            pytest.param(first, second, marks=pytest.mark.slow)
            for first, second in (
                (["up"], ["api"]),
                (["up"], ["up", "--tpu-simulator"]),
                (["up", "--processes", "2"], ["up"]),
            )
        ),
    ],
    ids=" ".join,
)
def test_a_second_server_changes_nothing_and_says_where_the_first_is(deployment, first, second):
    running = deployment.start(*first, "--port", "0")
    deployment.wait_ready(running)
    before = contents(deployment.home)
    refused = deployment.start(*second, "--port", "0")
    assert refused.wait() == 1
    url = json.loads(before["cli.json"])["url"]
    assert f"A server is already running in {deployment.home}, at {url}. Nothing was changed" in refused.read_log()
    assert len(refused.read_log().splitlines()) == 1
    assert contents(deployment.home) == before
    assert deployment.request("GET", "/jobs").status_code == 200
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    deployment.start_up()


@pytest.mark.parametrize("why", ["name", "machine types"])
def test_a_start_that_fails_leaves_the_clients_address(deployment, why):
    deployment.start_up().kill()
    before = contents(deployment.home)
    if why == "name":
        worker = deployment.start_worker("w1")
        wait_until(lambda: "is ready" in worker.read_log(), "the worker")
        failed = deployment.start("up", "--port", "0", "--name", "w1")
    else:
        failed = deployment.start("up", "--port", "0", GRADIENT_WORKER__MACHINE_TYPES='["nonsense"]')
    assert failed.wait() == 1
    assert contents(deployment.home) == before


@pytest.mark.parametrize(
    ("command", "moment"),
    [
        (["up"], "early"),
        (["up"], "ready"),
        *(
            pytest.param(command, moment, marks=pytest.mark.slow)
            for command in (["up", "--processes", "2"], ["api"])
            for moment in ("early", "ready")
        ),
    ],
)
def test_ctrl_c_ends_without_a_traceback(tmp_path, command, moment):
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENT_")} | PLAIN_JOBS
    log = tmp_path / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [str(SERVER_PROGRAM), *command, "--port", "0"],
            env=env | {"GRADIENT_HOME": str(tmp_path / "home")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as server,
    ):
        sign = "is ready" if moment == "ready" else ""
        wait_until(
            lambda: sign in log.read_text() and (sign or (tmp_path / "home" / "server.lock").exists()), "the start"
        )
        os.killpg(server.pid, signal.SIGINT)
        assert server.wait(TIMEOUT_SECONDS) in ({0} if moment == "ready" else {0, 130})
    assert "Traceback" not in log.read_text(), log.read_text()
