"""Images over HTTP: short names resolved, builds refused where there is nothing to build on, clones pinned."""

import html

import pytest
from sqlalchemy import update
from support.live_service import LiveServer

from core.db.models.jobs import Job
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


def test_short_names_are_listed(client):
    listed = {one["name"]: one for one in client.get("/images").json()["images"]}
    assert listed["trainer"]["image"] == "gradient/trainer:0.1.0"
    assert listed["trainer"]["gpuImage"] == "gradient/trainer:0.1.0-gpu"
    assert "paperspace/tensorflow-python" in listed["tensorflow"]["aliases"]
    assert {name for name, one in listed.items() if one["standIn"]} == {
        *("trainer", "trainer-gpu", "tensorflow", "tensorflow-gpu")
    }


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


def test_a_clone_can_be_pinned_to_the_image_that_ran(docker_client, database):
    client = docker_client
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


@pytest.mark.parametrize("container", ["pytorch/pytorch:latest", "python", f"tensorflow/tensorflow@{DIGEST}"])
def test_without_containers_an_image_that_nothing_stands_for_is_refused(client, docker_client, container):
    wanted = a_job(container=container)
    for query in ("?dryRun=true", ""):
        message = refused(client.post(f"/jobs{query}", json=wanted), "container")
        assert container in message
        for way_out in (
            "Leave container out",
            "gradient-server up --backend docker",
            "trainer, trainer-gpu, tensorflow",
        ):
            assert way_out in message
    assert client.get("/jobs").json()["jobs"] == []
    assert docker_client.post("/jobs", json=wanted).status_code == 201


@pytest.mark.parametrize(
    ("container", "image"),
    [
        ("trainer", "gradient/trainer:0.1.0"),
        ("gradient/trainer:0.0.9", "gradient/trainer:0.0.9"),
        ("docker.io/tensorflow/tensorflow:2.4.0", "tensorflow/tensorflow:2.4.0"),
        ("paperspace/tensorflow-python", "tensorflow/tensorflow:2.21.0"),
    ],
)
def test_without_containers_the_default_packages_stand_for_some_images(client, container, image):
    wanted = a_job(container=container)
    plan = client.post("/jobs?dryRun=true", json=wanted).json()
    job = client.post("/jobs", json=wanted).json()
    [note] = job["notes"]
    assert (
        f"Instead of the image {container}, the job gets this server's default packages with tensorflow-cpu 2." in note
    )
    assert note in plan["notes"]
    shown = client.get(f"/jobs/{job['id']}").json()
    for one in (plan["job"], job, shown):
        assert (one["container"], one["image"]) == (container, image)
    assert shown["notes"] == [note]
    assert note in html.unescape(client.get(f"/ui/jobs/{job['id']}").text)
    assert client.post(f"/jobs/{job['id']}/clone").json()["notes"] == [note]
    message = refused(client.post("/jobs", json=wanted | {"python": "3.12"}), "python")
    assert "Leave out either python or container" in message


def test_a_clone_of_a_job_that_ran_without_its_container_runs_without_it(client, docker_client):
    """Its container came from an original client; of a job that ran in it, it is refused."""
    ours = docker_client.post("/jobs", json=a_job(container="org/image:tag")).json()
    refused(client.post(f"/jobs/{ours['id']}/clone"), "container")
    answer = client.post(
        "/jobs/createJob", json={"machineType": "CPU", "command": "true", "container": "org/image:tag"}
    )
    theirs = client.get(f"/jobs/{answer.json()['id']}").json()
    assert (theirs["container"], theirs["image"]) == ("org/image:tag", None)
    [note] = theirs["notes"]
    assert "org/image:tag is not used" in note
    assert client.post(f"/jobs/{theirs['id']}/clone").json()["notes"] == [note]
