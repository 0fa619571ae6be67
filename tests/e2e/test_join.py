"""A host that joins a service with one command, and is removed."""

import json
import signal
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis as redis_client
from sqlalchemy import make_url
from support.deployment import Deployment, Process, wait_until
from support.tcp_proxy import TcpProxy

from core.notify.celery_app import Publisher
from core.notify.messages import WakeMessage, worker_queue

pytestmark = [pytest.mark.e2e]


@pytest.fixture
def admin(postgres):
    """A connection of the database's administrator; the service's own user is an ordinary one, who may make roles."""
    with psycopg.connect(postgres.new_database(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def service(tmp_path, admin):
    host, name = admin.info.host, admin.info.dbname
    admin.execute(f"CREATE ROLE service_{name} LOGIN CREATEROLE")
    admin.execute(f"ALTER DATABASE {name} OWNER TO service_{name}")
    urls = [f"postgresql://{user}_{name}:password@/{name}?host={host}" for user in ("service", "worker")]
    deployment = Deployment(tmp_path / "home", GRADIENT_DATABASE__URL=urls[0], GRADIENT_DATABASE__WORKER_URL=urls[1])
    deployment.migrate()
    deployment.migrate()  # as at each start of the API's unit
    yield deployment
    deployment.stop()


@pytest.fixture
def run(tmp_path):
    """Run a command, and return its exit code and all that it printed."""

    def run(environment, *arguments):
        log = tmp_path / "printed"
        log.unlink(missing_ok=True)
        process = Process(list(arguments), environment, log)
        return process.wait(), process.read_log()

    return run


@pytest.fixture
def invite(service, run):
    def invite():
        ours = service.environment(GRADIENT_API__PUBLIC_URL=service.cli_json["url"])
        program, *arguments = run(ours, "workers", "invite")[1].split()
        assert program == "gradient-server"
        return arguments

    return invite


@pytest.fixture
def join(service, run, invite, tmp_path):
    """Join a service with an invitation; return what that printed, and the environment of the worker."""

    def join(name, invitation=None, *options, **settings):
        home = tmp_path / name
        own = {key: value for key, value in service.environment().items() if not key.startswith("GRADIENT_")}
        own |= {"GRADIENT_HOME": str(home), **settings}
        code, said = run(own, *(invitation or invite()), "--name", name, *options)
        assert f"This host is worker {name} of {service.cli_json['url']}." in said
        assert "\n0 problems" in said, "the doctor's findings"
        assert code == 0
        assert (home / "worker-token").stat().st_mode & 0o777 == 0o600
        lines = dict(line.split("=", 1) for line in (home / "env").read_text().splitlines())
        return said, own | {key: value.strip("'") for key, value in lines.items()} | {"GRADIENT_WORKER__HOST": name}

    return join


def start(service, joined, **settings):
    own = {key: value for key, value in joined.items() if key.startswith("GRADIENT_")}
    return service.start("worker", "--name", "gpu-box", **own, **settings)


def count_connections(admin):
    own = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND usename LIKE 'gradient-%'"
    return len(admin.execute(own).fetchall())


def test_a_host_joins_with_the_command_of_an_invitation_and_is_removed(service, run, invite, join, admin, tmp_path):
    service.start_api()
    ours, invitation = service.environment(), invite()
    _, joined = join("gpu-box", invitation)
    own = {key: value for key, value in joined.items() if not key.startswith("GRADIENT_")}
    worker = start(service, joined)
    job_id = service.submit('echo said; echo kept >"$GRADIENT_ARTIFACTS_DIR/kept"')
    assert service.wait_ended(job_id)["state"] == "Stopped"
    assert (service.raw_log(job_id), service.artifact(job_id, "kept")) == (b"said\n", b"kept\n")

    def refused(*arguments):
        code, said = run(own | {"GRADIENT_HOME": str(tmp_path / "other")}, *arguments)
        assert code == 1
        assert not (tmp_path / "other" / "worker-token").exists()
        return said

    assert "unknown, already used or older than an hour" in refused(*invitation, "--name", "other")
    second = invite()
    assert "A worker named 'gpu-box' already exists" in refused(*second, "--name", "gpu-box")
    assert "cannot be the name of a worker" in refused(*second, "--name", "../x")
    assert "Use https" in run(own, "join", "http://jobs.lab", "--token", "x")[1]

    assert "Worker 'gpu-box' is running" in run(ours, "workers", "remove", "gpu-box")[1]
    worker.signal(signal.SIGSTOP)
    admin.execute("UPDATE workers SET seen_at = seen_at - interval '2 minutes'")
    assert count_connections(admin) > 0
    assert run(ours, "workers", "remove", "gpu-box") == (0, "Worker gpu-box was removed.\n")
    wait_until(lambda: count_connections(admin) == 0, "what the frozen worker has open to end")
    assert admin.execute("SELECT 1 FROM pg_roles WHERE rolname LIKE 'gradient-gpu-box-%'").fetchall() == []
    worker.signal(signal.SIGCONT)
    assert worker.wait() == 1
    assert json.loads(run(ours, "workers", "--json")[1]) == []
    assert service.request("GET", "/workers").json()["workers"] == []
    assert "revoked" in run(joined, "worker", "--name", "gpu-box")[1]
    assert "`workers revoke` does not remove" not in join("gpu-box")[0]


TRAIN = """
test "$TOKEN" = s3cr3t-value && echo '{"loss": 0.5}' >>"$GRADIENT_METRICS_FILE" && echo trained &&
echo model >"$GRADIENT_ARTIFACTS_DIR/model.txt" && exit $((GRADIENT_ATTEMPT < 2))
"""


def test_a_worker_that_has_joined_runs_every_kind_of_job_and_never_takes_the_lock_of_claims(service, join, admin):
    database = TcpProxy(Path(admin.info.host) / ".s.PGSQL.5432")
    service.start_api(GRADIENT_WORKER__SWEEP_SECONDS="0.5")
    _, joined = join("gpu-box")
    url = make_url(joined["GRADIENT_DATABASE__URL"]).set(host="127.0.0.1", port=database.port, query={})
    joined["GRADIENT_DATABASE__URL"] = url.render_as_string(hide_password=False)
    settings = {"GRADIENT_WORKER__SWEEP_SECONDS": "0.5", "GRADIENT_WORKER__SLOTS": "4"}
    worker = start(service, joined, **settings)
    service.request("PUT", "/secrets/TOKEN", json={"value": "s3cr3t-value"})
    trained = service.submit(TRAIN, envVars={"TOKEN": "secret:TOKEN"}, maxAttempts=2, ports=["8080"])
    array_id = service.job(service.submit("echo $GRADIENT_ARRAY_INDEX", array="0-9", arrayReuse="on"))["arrayId"]
    nodes = service.submit("echo $RANK", nodes=2)
    after = service.submit("cat in/model.txt", after=[array_id, nodes], inputs=[f"{trained}:in"])
    never = service.submit("exit 0", after=[service.submit("exit 1")])
    stopped = service.submit("echo said; sleep 600")
    job = service.wait_ended(after)
    assert (job["state"], service.raw_log(after)) == ("Stopped", b"model\n")
    assert (service.job(trained)["attempt"], service.job(trained)["artifactsState"]) == (2, "complete")
    assert "loss" in {one["name"] for one in service.request("GET", f"/jobs/{trained}/metrics").json()["series"]}
    assert service.wait_ended(never)["reason"] == "dependency_failed"
    wait_until(lambda: service.raw_log(stopped) == b"said\n", "it to run")
    service.request("POST", f"/jobs/{stopped}/stop")
    assert service.wait_ended(stopped)["state"] == "Cancelled"
    worker.kill()
    kept = service.submit("echo kept")
    start(service, joined, **settings)
    assert service.wait_ended(kept)["state"] == "Stopped"
    log = worker.read_log()
    assert [text for text in ("permission denied", "row-level security", "Traceback") if text in log] == []
    assert b"UPDATE jobs" in database.received
    assert b"pg_advisory" not in database.received
    database.cut()


def test_a_join_that_fails_leaves_the_token_of_the_worker_and_one_that_never_started_is_removed(
    service, run, invite, join, tmp_path
):
    service.start_api()
    _, joined = join("gpu-box")
    token = (tmp_path / "gpu-box" / "worker-token").read_text()
    assert "A worker named 'gpu-box' already exists" in run(joined, *invite(), "--name", "gpu-box")[1]
    assert (tmp_path / "gpu-box" / "worker-token").read_text() == token
    assert not (tmp_path / "gpu-box" / "invitation").exists()
    assert run(service.environment(), "workers", "remove", "gpu-box") == (0, "Worker gpu-box was removed.\n")
    refused = service.start("worker", "--name", "never-up", GRADIENT_WORKER__SERVICE_URL="http://127.0.0.1:9/x?y")
    assert refused.wait() == 2
    said = run(service.environment(), "workers", "remove", "never-up")[1]
    assert "takes no jobs, but sent a heartbeat in the last 60 seconds" in said
    assert "No worker is named 'gpu-box'" in run(service.environment(), "workers", "remove", "gpu-box")[1]
    join("gpu-box")


@pytest.mark.slow
def test_the_worker_of_a_login_node_joins_and_hands_jobs_over_to_its_cluster(service, join, slurm, tmp_path):
    machines = {"GRADIENT_MACHINES__FILE": str(tmp_path / "machines.toml")}
    assert service.start("machines", "add", "--slurm", "--gpu", "A100", **machines).wait() == 0
    service.start_api(**machines)
    _, joined = join("gpu-box", None, "--slurm", **machines)
    start(service, joined)
    command = 'echo "$SLURM_JOB_NAME in $SLURM_JOB_PARTITION"; echo kept >"$GRADIENT_ARTIFACTS_DIR/kept"; exit 3'
    job_id = service.submit(command, machineType="main-cpu4")
    job = service.wait_ended(job_id)
    assert (job["backend"], job["host"], job["exitCode"]) == ("slurm", "gpu-box", 3)
    assert service.raw_log(job_id).decode() == f"{job_id}-1 in main\n"
    assert service.artifact(job_id, "kept") == b"kept\n"
    assert slurm.run("squeue", "-h", "-t", "R,PD") == ""


def test_a_worker_that_is_revoked_reaches_neither_database_nor_broker(service, redis, run, join, admin):
    broker = {"GRADIENT_QUEUE__BROKER_URL": redis.url}
    service.start_api(**broker)
    _, joined = join("gpu-box")
    worker = start(service, joined, GRADIENT_LOG_LEVEL="debug")
    database_url, broker_url = joined["GRADIENT_DATABASE__URL"], joined["GRADIENT_QUEUE__BROKER_URL"]
    login = urlsplit(database_url).username
    assert login.startswith("gradient-gpu-box-")
    assert (urlsplit(broker_url).username, urlsplit(broker_url).path) == (login, "/0")

    publisher = Publisher(redis.url)

    def heard(marker):
        with suppress(OSError):
            publisher.publish_wake([WakeMessage(worker_queue("gpu-box"), marker, None)])
        return marker in worker.read_log()

    wait_until(lambda: heard("jfirst"), "a message through the broker")
    assert service.wait_ended(service.submit("exit 0"))["state"] == "Stopped"
    with redis.client() as client, redis_client.Redis.from_url(broker_url) as own:
        assert client.acl_log() == [], "commands that Celery needs and the user may not use"
        client.set("other", "1")
        for refused in (
            *(["GET", "other"], ["FLUSHALL"], ["KEYS", "*"], ["CONFIG", "GET", "*"], ["ACL", "LIST"]),
            *(["EVAL", "return 1", "0"], ["SCRIPT", "LOAD", "return 1"], ["EVALSHA", "0" * 40, "0"]),
            *(["EVAL_RO", "return 1", "0"], ["FUNCTION", "LIST"], ["FCALL", "f", "0"], ["SCRIPT", "KILL"]),
        ):
            with pytest.raises(redis_client.exceptions.ResponseError, match="permission"):
                own.execute_command(*refused)
    redis.kill()
    redis.wipe()
    redis.start()
    wait_until(lambda: heard("jagain"), "its user to be there again, which Redis has lost")
    with psycopg.connect(database_url, autocommit=True) as own:
        own.execute("SELECT lo_create(0)")  # what it owns does not keep its role
        code, said = run(service.environment(**broker), "workers", "revoke", "gpu-box")
        assert (code, "it can no longer reach the service" in said) == (0, True)
        with pytest.raises(psycopg.OperationalError):
            own.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(database_url)
    with redis.client() as client:
        assert [one for one in client.client_list() if one["user"] == login] == []
        assert login not in client.acl_users()
    assert admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [login]).fetchall() == []
    assert worker.wait() == 1
    assert "revoked" in worker.read_log()
    [shown] = service.request("GET", "/workers").json()["workers"]
    said = "Its token was revoked. It takes no jobs until it has a new token."
    assert (shown["state"], shown["refusal"]) == ("refusing", said), "the host cannot say it itself any more"


def test_where_the_service_may_make_no_logins_a_host_shares_one_and_is_told(service, redis, run, join, admin):
    admin.execute(f"ALTER ROLE service_{admin.info.dbname} NOCREATEROLE")
    with redis.client() as client:
        client.acl_setuser("service", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all", "-@admin"])
    url = f"redis://service:pw@127.0.0.1:{redis.port}/0"
    service.start_api(GRADIENT_QUEUE__BROKER_URL=url)
    said, joined = join("gpu-box")
    assert "The worker shares its database role with all workers" in said
    assert "The worker shares its broker user with all workers" in said
    assert joined["GRADIENT_QUEUE__BROKER_URL"] == url
    assert joined["GRADIENT_DATABASE__URL"] == service.environment()["GRADIENT_DATABASE__WORKER_URL"]
    assert run(service.environment(), "workers", "revoke", "gpu-box")[0] == 0
