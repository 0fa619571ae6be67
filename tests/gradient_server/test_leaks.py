"""`gradient-server leaks`: what a simulated Google bills, and who owns it."""

import json

import pytest
from sqlalchemy import update
from support.google.tpu_simulator import running_simulator, tpu_settings

from core.db.models.jobs import Job
from core.errors import GradientError
from core.jobs import lifecycle
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.settings import Settings
from core.settings.cloud import BucketSettings
from gradient_server.commands import leaks
from gradient_server.main import build_parser
from worker.database_resource_inventory import DatabaseResourceInventory

ZONE = "us-central1-b"


@pytest.fixture
def simulator():
    with running_simulator() as running:
        yield running


@pytest.fixture
def run(database, simulator, gcs, tmp_path, capsys, monkeypatch):
    """Runs the command; returns its exit code and output."""
    bucket = gcs.new_bucket()
    options = {"gcs": gcs.settings, "bucket": BucketSettings(name=bucket), "tpu": tpu_settings(simulator)}
    settings = Settings(home=tmp_path / "home", **options)
    monkeypatch.setattr(leaks, "open_database", lambda _: database)
    monkeypatch.setattr(database, "close", lambda: None)

    def run(*arguments):
        code = leaks.run(build_parser().parse_args(["leaks", *arguments]), settings)
        return code, capsys.readouterr().out

    run.bucket = bucket
    return run


@pytest.fixture
def claimed(database, submit):
    """A job that a worker runs."""
    submit(machine="TPU")
    with database.write() as session:
        return claims.claim(session, WorkerOffer("w1", "here", ("process",)))


def create(simulator, name, installation, job_id, attempt=1, zone=ZONE):
    labels = {"gradient-jobs": installation, "gradient-job": job_id, "gradient-attempt": str(attempt)}
    simulator.cloud.create_node(f"projects/simulated/locations/{zone}", name, {"labels": labels})


def test_what_no_living_job_owns_is_told_and_deleted_on_demand(
    database, simulator, gcs, run, claimed, submit, monkeypatch
):
    assert run() == (0, "0 billed, 0 of them owned by no living job of this installation.\n")
    ours = DatabaseResourceInventory(database, "here").installation()
    create(simulator, "gj-lives", ours, claimed.id)
    create(simulator, "gj-old", ours, claimed.id, attempt=0)
    create(simulator, "gj-lost", ours, "jnobody", zone="us-west4-a")
    create(simulator, "gj-theirs", "gtheirs", "jtheirs")
    ended = submit()
    with database.write() as session:
        session.execute(update(Job).where(Job.id == ended.id).values(state="failed"))
    for job_id in (claimed.id, ended.id, "jtheirs"):
        gcs.put_object(run.bucket, f"jobs/{job_id}/model/weights")
    code, listed = run("--json")
    found = {row["id"].rpartition("/")[2]: (row["owner"], row["leak"]) for row in json.loads(listed)["resources"]}
    old = f"job {claimed.id}, which no longer needs it", True
    assert code == 1
    assert found == {
        "gj-lives": (f"job {claimed.id}", False),
        "gj-old": old,
        "gj-lost": ("no job", True),
        "gj-theirs": ("installation gtheirs", False),
        claimed.id: (f"job {claimed.id}", False),
        ended.id: (f"job {ended.id}, which no longer needs it", True),
        "jtheirs": ("another installation", False),
    }
    assert run()[1].splitlines()[-1] == "7 billed, 3 of them owned by no living job of this installation."
    with pytest.raises(GradientError, match="owned by installation gtheirs"):
        run("--delete", f"{ZONE}/gj-theirs", "--yes")
    with pytest.raises(GradientError, match=f"owned by job {claimed.id}"):
        run("--delete", f"{ZONE}/gj-lives", "--yes")
    with pytest.raises(GradientError, match="no resource 'gj-old'"):
        run("--delete", "gj-old", "--yes")
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert run("--delete", f"{ZONE}/gj-old") == (1, "Nothing was deleted.\n")
    monkeypatch.setattr("builtins.input", lambda _: "y")
    for leak in (f"{ZONE}/gj-old", "us-west4-a/gj-lost", f"gs://{run.bucket}/jobs/{ended.id}"):
        assert run("--delete", leak) == (0, f"{leak} is being deleted.\n")
    assert run()[0] == 0
    assert {name.split("/")[1] for name in gcs.read_objects(run.bucket)} == {claimed.id, "jtheirs"}
    with database.write() as session:
        lifecycle.fail_lost(session, claimed, "worker_lost")
    assert "1 of them owned by no living job" in run()[1]


def test_a_cloud_that_does_not_answer_is_no_cloud_without_leaks(run, simulator):
    simulator.stop()
    code, said = run()
    assert (code, said.count("error: us-")) == (1, 2)


def test_without_a_cloud_nothing_is_billed(tmp_path):
    with pytest.raises(GradientError, match="GRADIENT_TPU__PROJECT"):
        leaks.run(build_parser().parse_args(["leaks"]), Settings(home=tmp_path))
