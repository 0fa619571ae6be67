"""With GRADIENT_LOG_FORMAT=json each line that a process of the service prints is a JSON object."""

import json
import signal
import subprocess
import sys

import pytest
from support.deployment import SERVER_PROGRAM, Deployment, wait_until

pytestmark = pytest.mark.integration

LOGGED = {"GRADIENT_LOG_FORMAT": "json", "GRADIENT_LOG_LEVEL": "debug"}
PROGRAM = """
import sys, threading, warnings
from core.monitoring.logging import configure

configure("json", "info")
warnings.warn("old\\nand bad", DeprecationWarning)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
{}["missing"]
"""


def parse(text):
    return [json.loads(line) for line in text.splitlines()]


def check(process, *words):
    text = process.read_log()
    events = [line["event"] for line in parse(text)]
    for word in words:
        assert any(word in event for event in events), text


def test_every_line_of_a_service_with_a_broker_is_json(tmp_path, postgres, redis):
    deployment = Deployment(
        tmp_path / "home",
        GRADIENT_DATABASE__URL=postgres.new_database(),
        GRADIENT_QUEUE__BROKER_URL=redis.url,
        **LOGGED,
    )
    try:
        deployment.migrate()
        api = deployment.start_api()
        worker = deployment.start_worker()
        assert deployment.wait_ended(deployment.submit("echo said"))["state"] == "Stopped"
        redis.kill()
        wait_until(lambda: "broker_unreachable" in worker.read_log(), "the worker to miss its broker")
        redis.start()
        second = deployment.start("worker", "--name", "w1")
        assert second.wait() == 1
        for process in (api, worker):
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
        check(api, "Gradient Jobs is ready")
        check(worker, "is ready")
        check(second, "error: A worker named 'w1'")
    finally:
        deployment.stop()


@pytest.mark.parametrize("settings", [{"GRADIENT_API__PORT": "none"}, {"GRADIENT_HOME": "/proc/none"}], ids=str)
def test_an_error_of_a_start_is_json(tmp_path, settings):
    done = subprocess.run(
        [str(SERVER_PROGRAM), "up"],
        env={"GRADIENT_HOME": str(tmp_path)} | LOGGED | settings,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode
    assert [line["level"] for line in parse(done.stdout + done.stderr)] == ["error"]


def test_warnings_and_uncaught_errors_are_json():
    done = subprocess.run([sys.executable, "-W", "always", "-c", PROGRAM], check=False, capture_output=True, text=True)
    lines = parse(done.stderr)
    assert done.returncode == 1
    assert "old\nand bad" in lines[0]["event"]
    assert ["ZeroDivisionError" in lines[1]["exception"], "KeyError" in lines[2]["exception"]] == [True, True]
