"""A process loads only what it is made of: libraries that it does not need would be most of its start."""

import os
import subprocess
import sys

import pytest
from support.deployment import wait_until

pytestmark = pytest.mark.integration

READY = "is ready"


@pytest.fixture
def loaded(tmp_path):
    """A function that starts a process over a database that is there, and says which packages it had loaded."""

    def run(command, *arguments):
        log = tmp_path / f"{command}.log"
        env = os.environ | {"GRADIENT_HOME": str(tmp_path / "home")}
        program = [sys.executable, "-X", "importtime", "-m", "gradient_server.main", command, *arguments]
        with log.open("wb") as output, subprocess.Popen(program, env=env, stdout=output, stderr=output) as process:
            wait_until(lambda: READY in log.read_text() or process.poll() is not None, f"{command} to be ready")
            process.terminate()
        assert READY in log.read_text(), log.read_text()[-2000:]
        lines = [line for line in log.read_text().splitlines() if line.startswith("import time:")]
        return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}

    subprocess.run(
        [sys.executable, "-m", "gradient_server.main", "migrate"],
        env=os.environ | {"GRADIENT_HOME": str(tmp_path / "home")},
        check=True,
        capture_output=True,
    )
    return run


def test_the_api_loads_no_worker_and_what_migrates_only_to_migrate(loaded):
    found = loaded("api", "--port", "0")
    assert {"service", "fastapi"} <= found
    assert not found & {"worker", "docker", "alembic", "celery", "google"}


def test_a_worker_loads_no_api(loaded):
    found = loaded("worker", "--name", "w1")
    assert "worker" in found
    assert not found & {"service", "fastapi", "uvicorn", "jinja2", "alembic", "celery", "google"}
