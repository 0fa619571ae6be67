"""Images over HTTP: short names resolved, builds refused where there is nothing to build on, clones pinned."""

import pytest
from sqlalchemy import update
from support.live_service import LiveServer

from core.db.models.jobs import Job
from core.jobs.scheduling import image_affinity, workers
from core.jobs.scheduling.claims import WorkerOffer
from core.settings.docker import ImageSettings
from core.settings.worker import MachineSettings
from service.main import create_app

DIGEST = "sha256:" + "0a" * 32


def a_job(**fields):
    return {"machineType": "CPU", "command": "true"} | fields


def refused(answer, field):
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["field"] == field
    return error["message"]


def test_short_names_are_listed_with_the_hosts_that_have_them(client, database):
    listed = {one["name"]: one for one in client.get("/images").json()["images"]}
    assert listed["trainer"]["image"] == "gradient/trainer:0.1.0"
    assert listed["trainer"]["gpuImage"] == "gradient/trainer:0.1.0-gpu"
    assert "paperspace/tensorflow-python" in listed["tensorflow"]["aliases"]
    assert listed["trainer"]["hosts"] == 0
    with database.write() as session:
        workers.register(session, WorkerOffer("w", "h", ("docker",)), boot_id="b", slots=1)
        image_affinity.replace_host_images(session, "h", ["gradient/trainer:0.1.0", "gradient/trainer:0.1.0-gpu"])
        image_affinity.replace_host_images(session, "gone", ["gradient/trainer:0.1.0"])
    listed = {one["name"]: one["hosts"] for one in client.get("/images").json()["images"]}
    assert (listed["trainer"], listed["tensorflow"]) == (1, 0), "a host without a living worker does not count"


def test_a_short_name_is_resolved_in_the_dry_run_and_in_the_job(client):
    wanted = a_job(container="trainer", machineType="V100", imagePullPolicy="Always")
    plan = client.post("/jobs?dryRun=true", json=wanted).json()["job"]
    job = client.post("/jobs", json=wanted).json()
    for found in (plan, job, client.get(f"/jobs/{job['id']}").json()):
        assert found["container"] == "trainer"
        assert found["image"] == "gradient/trainer:0.1.0-gpu"
        assert found["imagePullPolicy"] == "Always"
    assert job["imageDigest"] is None


@pytest.mark.parametrize(
    ("said", "field"), [({"imagePullPolicy": "Sometimes"}, "imagePullPolicy"), ({"buildOnly": True}, "buildOnly")]
)
def test_what_cannot_be_is_refused(client, said, field):
    refused(client.post("/jobs", json=a_job(**said)), field)


def test_simulated_machines_build_nothing(client):
    message = refused(
        client.post("/jobs", json=a_job(useDockerfile=True, workspace="https://x/y.git")), "useDockerfile"
    )
    assert "simulated" in message
    assert client.get("/jobs").json()["jobs"] == []


@pytest.mark.parametrize("builds", [False, True])
def test_a_dockerfiles_steps_run_only_where_an_administrator_opened_it(settings, database, api_key, builds):
    """They are root of their containers, with capabilities that no job has."""
    opened = {"machines": MachineSettings(simulate=False)} | ({"images": ImageSettings(builds=True)} if builds else {})
    live = LiveServer(create_app(settings.model_copy(update=opened), database=database, wake=lambda: None), api_key)
    try:
        with live.client() as client:
            for query in ("?dryRun=true", ""):
                answer = client.post(f"/jobs{query}", json=a_job(useDockerfile=True, workspace="https://x/y.git"))
                if builds:
                    assert answer.status_code in {200, 201}, answer.text
                else:
                    message = refused(answer, "useDockerfile")
                    assert "administrator" in message
                    assert "GRADIENT_IMAGES__BUILDS=true" in message
    finally:
        live.stop()


def test_a_clone_can_be_pinned_to_the_image_that_ran(client, database):
    job = client.post("/jobs", json=a_job(container="trainer")).json()
    message = refused(client.post(f"/jobs/{job['id']}/clone?pinImage=true"), "pinImage")
    assert "without pinImage" in message
    exact = f"gradient/trainer@{DIGEST}"
    with database.write() as session:
        session.execute(update(Job).values(image_digest=exact))
    pinned = client.post(f"/jobs/{job['id']}/clone?pinImage=true").json()
    assert (pinned["container"], pinned["image"], pinned["imageDigest"]) == (exact, exact, None)
    loose = client.post(f"/jobs/{job['id']}/clone").json()
    assert (loose["container"], loose["image"]) == ("trainer", "gradient/trainer:0.1.0")
