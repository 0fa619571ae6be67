"""The difference of two jobs, as a page and by the API: options, files, and nothing that is hidden."""

import pytest
from support.live_service import make_form, make_job_body, make_zip

SECRET = "not-to-be-seen"


def submit(client, files, **fields):
    answer = client.post("/jobs", files=make_form(make_job_body(**fields), make_zip(files)))
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


@pytest.fixture
def jobs(client):
    hostile = "</pre><script>alert(1)</script>"
    first = submit(
        client,
        {"train.py": b"rate = 1\n", "old.txt": b"x"},
        envVars={"RATE": "1", "API_KEY": SECRET, "ONLY": "a"},
        command="python train.py",
    )
    second = submit(
        client,
        {"train.py": f"rate = {hostile}\n".encode(), "new.txt": b"yy"},
        envVars={"RATE": hostile, "API_KEY": SECRET + "!"},
        command="python train.py",
    )
    return first, second


def test_the_api_has_options_and_files_and_no_secret(client, jobs):
    first, second = jobs
    answer = client.get(f"/jobs/{first}/diff", params={"other": second})
    found = answer.json()
    assert found["differences"]["envVars.ONLY"] == {"first": "a", "second": None}
    assert found["hidden"] == ["envVars.API_KEY"]
    assert "command" not in found["differences"]
    assert SECRET not in answer.text
    files = found["workspace"]
    assert [one["path"] for one in files["added"] + files["removed"] + files["changed"]] == [
        "new.txt",
        "old.txt",
        "train.py",
    ]
    assert files["changed"][0]["diff"].startswith("--- a/train.py\n+++ b/train.py\n@@")
    assert client.get(f"/jobs/{first}/diff", params={"other": first}).json()["differences"] == {}
    assert client.get(f"/jobs/{first}/diff", params={"other": "jnothing"}).status_code == 404


def test_the_page_shows_the_same(signed_in_browser, jobs):
    first, second = jobs
    page = signed_in_browser.get(f"/ui/jobs/{first}/diff?other={second}").text
    assert "<code>envVars.ONLY</code>" in page
    assert "<del>-rate = 1</del>\n<ins>+rate = &lt;/pre&gt;&lt;script&gt;" in page
    assert "1 added, 1 removed, 1 changed, 0 the same." in page
    assert "Hidden in both jobs and not compared: <code>envVars.API_KEY</code>." in page
    assert SECRET not in page
    assert "<script>alert" not in page
    assert f'href="/ui/jobs/{second}/diff?other={first}">Swap' in page
    assert "Enter the id of the job" in signed_in_browser.get(f"/ui/jobs/{first}/diff").text


def test_two_selected_jobs_lead_to_their_difference(signed_in_browser, jobs):
    first, second = jobs
    form = {"action": "diff", "ids": [second, first]}
    answer = signed_in_browser.post("/ui/jobs/actions", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/jobs/{first}/diff?other={second}")
    alone = signed_in_browser.post("/ui/jobs/actions", data={"action": "diff", "ids": [first]})
    assert (alone.status_code, "select two" in alone.text) == (400, True)


def test_files_from_git_are_said_to_be_left_out(client, signed_in_browser):
    body = make_job_body(workspace="https://git.example/team/model.git#main", command="python train.py")
    first, second = (client.post("/jobs", json=body).json()["id"] for _ in range(2))
    found = client.get(f"/jobs/{first}/diff", params={"other": second}).json()
    assert list(found["differences"]) == ["name"]
    assert "git diff" in found["workspace"]["leftOut"]
    page = signed_in_browser.get(f"/ui/jobs/{first}/diff?other={second}").text
    assert "Each job&#39;s events name its commit" in page
    assert "Neither job has uploaded files" not in page
