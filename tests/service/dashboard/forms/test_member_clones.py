"""Clones of the members of arrays and sweeps, by the form and by the API."""

import html

import pytest
from support.live_service import make_job_body


@pytest.mark.parametrize(
    ("command", "value", "standalone"),
    [
        ("train $GRADIENT_ARRAY_VALUE -v", "--lr=0.1 --w=2", "train --lr=0.1 --w=2 -v"),
        ("train ${GRADIENT_ARRAY_VALUE}", "x_1", "train x_1"),
        ("train", "a", "export GRADIENT_ARRAY_INDEX=0 GRADIENT_ARRAY_VALUE=a\ntrain"),
        (
            "train $GRADIENT_ARRAY_VALUE",
            "$b",
            "export GRADIENT_ARRAY_INDEX=0 GRADIENT_ARRAY_VALUE='$b'\ntrain $GRADIENT_ARRAY_VALUE",
        ),
        (
            "train $GRADIENT_ARRAY_VALUE $GRADIENT_ARRAY_INDEX",
            "a",
            "export GRADIENT_ARRAY_INDEX=0 GRADIENT_ARRAY_VALUE=a\ntrain a $GRADIENT_ARRAY_INDEX",
        ),
    ],
)
def test_the_clone_of_a_member_has_its_value_in_the_command(signed_in_browser, client, command, value, standalone):
    """The form makes jobs of no array, which get none."""
    array = client.post("/jobs", json=make_job_body(command=command, array=f"{value}\nb")).json()["arrayId"]
    member = next(job for job in client.get("/jobs", params={"array": array}).json()["jobs"] if job["arrayIndex"] == 0)
    page = signed_in_browser.get(f"/ui/jobs/new?from={member['id']}")
    assert standalone in html.unescape(page.text)


@pytest.mark.parametrize("kind", ["job", "schedule"])
def test_the_clone_of_a_member_is_named_without_its_index(signed_in_browser, client, kind):
    array = client.post("/jobs", json=make_job_body(name="lr-search", array="0.1,0.2")).json()["arrayId"]
    member = client.get("/jobs", params={"array": array}).json()["jobs"][0]
    assert member["name"].startswith("lr-search[")
    page = signed_in_browser.get(f"/ui/jobs/new?kind={kind}&from={member['id']}").text
    assert 'name="name" value="lr-search"' in page
    assert '<a href="#name">' not in page, "nobody changed it"


def test_what_a_clone_changes_is_listed_first(signed_in_browser, client):
    job_id = client.post("/jobs", json=make_job_body(memoryMb=400)).json()["id"]
    page = signed_in_browser.get(f"/ui/jobs/new?from={job_id}&memoryMb=800&command=python+b.py").text
    changes = page[page.index('id="changes"') : page.index("</ul>", page.index('id="changes"'))]
    assert '<a href="#memoryMb">Memory (MiB)</a> 400 → <b>800</b>' in changes
    assert '<a href="#command">' in changes
    assert changes.count("<li>") == 2
    assert page.index('id="changes"') < page.index("data-job-form")


def test_a_schedule_offers_usual_times_and_names_its_default_zone(signed_in_browser):
    page = signed_in_browser.get("/ui/jobs/new?kind=schedule").text
    assert 'data-fill="cron" value="0 3 * * *"' in page
    assert "such as Europe/Berlin; default: UTC." in page


def test_a_parameter_that_the_value_of_a_member_has_is_not_changed_in_its_clone(client):
    body = make_job_body(command="train $GRADIENT_ARRAY_VALUE", space={"lr": "0.1"}, metric="loss:min", method="grid")
    path = f"/jobs/{client.post('/sweeps', json=body).json()['trials'][0]['jobId']}/clone"
    refused = client.post(path, json={"params": {"lr": 0.2}})
    assert refused.status_code == 400
    assert "The program would not get lr" in refused.json()["error"]["message"]
    assert client.post(path, json={"params": {"lr": 0.1, "seed": 7}}).status_code == 201
    command = "train --lr 0.2"
    assert client.post(path, json={"params": {"lr": 0.2}, "command": command}).json()["command"] == command
