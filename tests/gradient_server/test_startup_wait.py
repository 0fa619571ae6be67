"""Processes that are started while their database or their disk is away."""

import signal

import psycopg
import pytest
from support.deployment import Deployment, wait_until
from support.servers.postgres import PostgresServer

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path):
    """A PostgreSQL server to be stopped, apart from the one that other tests use."""
    made = PostgresServer(tmp_path)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def deploy(tmp_path):
    made = []

    def deploy(**settings):
        made.append(Deployment(tmp_path / "home", **settings))
        return made[-1]

    yield deploy
    for one in made:
        one.stop()


def waits(process, why):
    wait_until(lambda: why in process.read_log() or not process.alive(), "it to say why it waits")
    assert process.alive(), process.read_log()
    assert "Waiting: " in process.read_log()
    assert "Traceback" not in process.read_log()


def test_processes_wait_for_a_postgresql_server_that_is_down(server, deploy):
    deployment = deploy(GRADIENT_DATABASE__URL=server.new_database())
    deployment.migrate()
    server.crash()
    api, worker = deployment.start("api", "--port", "0"), deployment.start_worker()
    other = deployment.start_worker("w2")
    for process in (api, worker, other):
        waits(process, "the database does not answer")
    other.signal(signal.SIGTERM)
    assert other.wait() in {0, 143, -signal.SIGTERM}
    server.resume()
    deployment.wait_ready(api)
    assert deployment.wait_ended(deployment.submit("true"))["exitCode"] == 0
    assert [process.read_log().count("Waiting: ") for process in (api, worker)] == [1, 1]


READ_ONLY = "ALTER DATABASE {} SET default_transaction_read_only = {}"


def test_every_step_of_a_start_waits_for_a_database_that_takes_no_changes(server, deploy):
    url = server.new_database()
    deployment = deploy(GRADIENT_DATABASE__URL=url)
    deployment.migrate()
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(READ_ONLY.format(name, "on"))
        process = deployment.start("up", "--port", "0")
        waits(process, "read-only transaction")
        connection.execute("SET transaction_read_only = off")
        connection.execute(READ_ONLY.format(name, "off"))
    deployment.wait_ready(process)
    assert deployment.request("GET", "/jobs").status_code == 200


def test_what_waiting_does_not_mend_is_an_error_at_once(server, deploy):
    url = server.new_database()
    missing = deploy(GRADIENT_DATABASE__URL=url.replace("?", "-none?")).start("api", "--port", "0")
    unmigrated = deploy(GRADIENT_DATABASE__URL=url).start("api", "--port", "0")
    for process, sentence in ((missing, "does not exist"), (unmigrated, "Run `gradient-server migrate`")):
        assert process.wait() == 1
        assert sentence in process.read_log()
        assert "Traceback" not in process.read_log()


def test_a_process_waits_for_a_disk_that_is_full(small_disk, deploy, tmp_path):
    disk = small_disk(tmp_path / "home", 32 * 1024**2)
    disk.fill()
    deployment = deploy()
    process = deployment.start("up", "--port", "0")
    waits(process, "No space left")
    disk.free()
    deployment.wait_ready(process)
