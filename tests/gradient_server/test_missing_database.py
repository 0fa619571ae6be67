"""Only the service creates a database: every other command says that there is none, where, and what to do."""

import sqlite3
from contextlib import closing

import pytest
from support.deployment import Deployment, wait_until

pytestmark = pytest.mark.integration

COMMANDS = [
    "worker",
    "workers",
    "keys create somebody",
    "alive",
    "doctor",
    "prune --dry-run",
    "signing rotate",
    *(
        pytest.param(one, marks=pytest.mark.slow)
        for one in (
            *("workers --json", "workers token w1", "drain", "keys list", "sessions list", "users list", "audit"),
            *("prune", "secrets rotate", "reconcile"),
        )
    ),
]
CREATION_SECONDS = "gradient_server.startup_wait.CREATION_SECONDS"


@pytest.fixture
def deploy(tmp_path):
    made = []

    def deploy(**settings):
        made.append(Deployment(tmp_path / "home", **{CREATION_SECONDS: 0}, **settings))
        return made[-1]

    yield deploy
    for one in made:
        one.stop()


def refused(deployment, command, file):
    process = deployment.start(*command.split())
    assert process.wait() == 1
    said = " ".join(process.read_log().split())
    assert f"There is no database at {file}. " in said
    for remedy in ("`gradient-server up`", "GRADIENT_HOME", "GRADIENT_DATABASE__URL", "`gradient-server join URL"):
        assert remedy in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_a_wrong_home_says_so_and_makes_nothing(deploy, tmp_path, command):
    refused(deploy(), command, tmp_path / "home" / "gradient.db")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("command", ["worker", "keys list"])
def test_the_file_that_a_setting_names_is_not_created_either(deploy, tmp_path, command):
    file = tmp_path / "else where" / "jobs.db"
    refused(deploy(GRADIENT_DATABASE__URL=f"sqlite:///{tmp_path}/else%20where/jobs.db"), command, file)
    assert not file.parent.exists()


@pytest.mark.parametrize("command", ["worker", "workers", "keys list"])
def test_a_file_without_tables_is_no_database(deploy, tmp_path, command):
    (tmp_path / "home").mkdir()
    with closing(sqlite3.connect(tmp_path / "home" / "gradient.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    refused(deploy(), command, tmp_path / "home" / "gradient.db")


def test_a_worker_that_is_started_a_moment_before_the_service_waits_for_it(deploy):
    deployment = deploy()
    worker = deployment.start_worker(**{CREATION_SECONDS: 60})
    wait_until(lambda: "Waiting: the service has not created" in worker.read_log(), "it to say why it waits")
    deployment.start_api()
    assert deployment.wait_ended(deployment.submit("true"))["exitCode"] == 0
    assert "Available now: starting." in worker.read_log()
