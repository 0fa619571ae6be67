"""The service behind a pooler that gives each transaction another connection."""

import json
from pathlib import Path

import pytest
from support.deployment import Deployment, wait_until
from support.servers.pgbouncer import PgBouncer

pytestmark = pytest.mark.integration


@pytest.fixture
def pgbouncer(postgres):
    """Makes poolers of transactions in front of PostgreSQL, with these lines of configuration."""
    made = []

    def make(*options):
        made.append(PgBouncer(Path(postgres.socket).parent, *options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def pooled(tmp_path, postgres, pgbouncer):
    """A function that makes a deployment behind PgBouncer with these lines of configuration."""
    made = []

    def make(*options, **settings):
        url = pgbouncer(*options).url(postgres.new_database())
        made.append(Deployment(tmp_path / "home", GRADIENT_DATABASE__URL=url, **settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.mark.parametrize(
    "options",
    [(), pytest.param(("ignore_startup_parameters = options",), marks=pytest.mark.slow)],
    ids=["strict", "lenient"],
)
def test_jobs_run_behind_a_pooler_of_transactions(pooled, options):
    deployment = pooled(*options, GRADIENT_DATABASE__TRANSACTION_POOLER="true")
    deployment.migrate()
    server = deployment.start_up(GRADIENT_WORKER__SLOTS="8")
    ids = [deployment.submit(f"echo {number}") for number in range(40)]
    for number, job_id in enumerate(ids):
        assert deployment.wait_ended(job_id)["state"] == "Stopped"
        assert deployment.raw_log(job_id) == f"{number}\n".encode()
    assert "PreparedStatement" not in server.read_log()
    assert "Traceback" not in server.read_log()
    checked = deployment.start("doctor", "--json")
    wait_until(lambda: not checked.alive(), "the doctor")
    database = [one for one in json.loads(checked.read_log())["findings"] if one["check"] in {"database", "migrations"}]
    assert database
    assert all(one["status"] != "problem" for one in database), database


@pytest.mark.parametrize("command", ["migrate", "up", "api", "worker", "doctor"])
def test_a_pooler_that_is_not_named_is_explained_in_a_sentence(pooled, command):
    process = pooled().start(command)
    assert process.wait() == 1
    said = " ".join(process.read_log().split())
    assert "unsupported startup parameter: options" in said
    assert "set GRADIENT_DATABASE__TRANSACTION_POOLER=true" in said
    assert "Traceback" not in said
