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


def test_a_parameter_that_the_value_of_a_member_has_is_not_changed_in_its_clone(client):
    body = make_job_body(command="train $GRADIENT_ARRAY_VALUE", space={"lr": "0.1"}, metric="loss:min", method="grid")
    path = f"/jobs/{client.post('/sweeps', json=body).json()['trials'][0]['jobId']}/clone"
    refused = client.post(path, json={"params": {"lr": 0.2}})
    assert refused.status_code == 400
    assert "The program would not get lr" in refused.json()["error"]["message"]
    assert client.post(path, json={"params": {"lr": 0.1, "seed": 7}}).status_code == 201
    command = "train --lr 0.2"
    assert client.post(path, json={"params": {"lr": 0.2}, "command": command}).json()["command"] == command
