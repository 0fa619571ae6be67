"""A host that joins a service with one command, and is removed."""

import json

import psycopg
import pytest
from support.deployment import Deployment, Process

pytestmark = [pytest.mark.e2e]


@pytest.fixture
def service(tmp_path, postgres):
    url = postgres.new_database()
    of_workers = url.replace("postgresql://gradient@", "postgresql://gradient_worker:password@")
    deployment = Deployment(tmp_path / "home", GRADIENT_DATABASE__URL=url, GRADIENT_DATABASE__WORKER_URL=of_workers)
    deployment.migrate()
    deployment.start_api()
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


def test_a_host_joins_with_the_command_of_an_invitation_and_is_removed(service, run, tmp_path):
    ours = service.environment(GRADIENT_API__PUBLIC_URL=service.cli_json["url"])
    home = tmp_path / "host"
    own = {name: value for name, value in ours.items() if not name.startswith("GRADIENT_")}
    own["GRADIENT_HOME"] = str(home)

    def invite():
        program, *arguments = run(ours, "workers", "invite")[1].split()
        assert program == "gradient-server"
        return arguments

    invitation = invite()
    code, said = run(own, *invitation, "--name", "gpu-box")
    assert f"This host is worker gpu-box of {service.cli_json['url']}." in said
    assert "\n0 problems" in said, "the doctor's findings"
    assert code == 0
    assert (home / "worker-token").stat().st_mode & 0o777 == 0o600

    settings = dict(line.split("=", 1) for line in (home / "env").read_text().splitlines())
    settings = {name: value.strip("'") for name, value in settings.items()}
    assert settings["GRADIENT_DATABASE__URL"] == ours["GRADIENT_DATABASE__WORKER_URL"]
    worker = service.start("worker", "--name", "gpu-box", **settings, GRADIENT_WORKER__HOST="gpu-box")
    job_id = service.submit('echo said; echo kept >"$GRADIENT_ARTIFACTS_DIR/kept"')
    assert service.wait_ended(job_id)["state"] == "Stopped"
    assert (service.raw_log(job_id), service.artifact(job_id, "kept")) == (b"said\n", b"kept\n")

    def refused(*arguments):
        code, said = run(own | {"GRADIENT_HOME": str(tmp_path / "other")}, *arguments)
        assert code == 1
        assert not (tmp_path / "other" / "worker-token").exists()
        return said

    assert "unknown, used or older than an hour" in refused(*invitation, "--name", "other")
    second = invite()
    assert "There is a worker 'gpu-box' already" in refused(*second, "--name", "gpu-box")
    assert "cannot be the name of a worker" in refused(*second, "--name", "../x")
    assert "use https" in run(own, "join", "http://jobs.lab", "--token", "x")[1]

    assert "Worker 'gpu-box' runs" in run(ours, "workers", "remove", "gpu-box")[1]
    worker.kill()
    with psycopg.connect(ours["GRADIENT_DATABASE__URL"], autocommit=True) as database:
        database.execute("UPDATE workers SET seen_at = seen_at - interval '2 minutes'")
    assert run(ours, "workers", "remove", "gpu-box") == (0, "Worker gpu-box is removed.\n")
    assert json.loads(run(ours, "workers", "--json")[1]) == []
    assert service.request("GET", "/workers").json()["workers"] == []
    assert "revoked" in run(own | settings, "worker", "--name", "gpu-box")[1]
