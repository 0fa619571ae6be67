"""Saved views, remembered columns, completion, and actions on all jobs that a query finds, without scripts."""

import re

import pytest
from support.live_service import make_job_body


@pytest.fixture
def made(client):
    """60 jobs, more than a page of the list, that wait."""
    bodies = [
        make_job_body(name=f"run {at}", tags=["sweep", f"of-{at % 2}"], params={"lr": at / 100, "opt": "adam"})
        for at in range(60)
    ]
    return [client.post("/jobs", json=body).json()["id"] for body in bodies]


def titles(page):
    return re.findall(r'<th scope="col"[^>]*aria-sort[^>]*>(?:<a[^>]*>)?([^<]*)', page)


@pytest.mark.usefixtures("made")
def test_columns_are_remembered_for_the_user(signed_in_browser):
    form = {"q": "tag:sweep", "sort": "name", "cols": ["cost", "params.lr", "duration attempt"]}
    answer = signed_in_browser.post("/ui/jobs/columns", data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs?q=tag%3Asweep&sort=name")
    assert titles(signed_in_browser.get("/ui/jobs").text) == ["Job", "State", "Cost", "lr", "Duration", "Attempt"]
    assert titles(signed_in_browser.get("/ui/jobs?cols=machine").text) == ["Job", "State", "Machine"]


def test_views_are_kept_by_name_and_deleted(signed_in_browser):
    address = "/ui/jobs?q=tag%3Asweep&group=opt&charts=1"
    kept = signed_in_browser.post("/ui/views", data={"name": "my sweep", "address": address}, follow_redirects=False)
    assert kept.headers["location"] == address
    link = '<a href="/ui/jobs?q=tag%3Asweep&amp;group=opt&amp;charts=1">my sweep</a>'
    assert link in signed_in_browser.get("/ui/jobs").text
    assert link in signed_in_browser.get("/ui/jobs?q=tag:sweep&charts=1").text
    gone = {"name": "my sweep", "address": "/ui/jobs", "action": "delete"}
    assert signed_in_browser.post("/ui/views", data=gone, follow_redirects=False).status_code == 303
    assert link not in signed_in_browser.get("/ui/jobs").text


@pytest.mark.parametrize(
    ("name", "address", "problem"),
    [
        ("", "/ui/jobs", "Give the view a name"),
        ("x" * 101, "/ui/jobs", "at most 100 printable"),
        ("a", "https://elsewhere.example/ui/jobs", "A view must be an address of"),
        ("a", "//elsewhere.example/ui/jobs", "A view must be an address of"),
        ("a", "/ui/settings/keys", "A view must be an address of"),
        ("a", "/ui/jobs?q=" + "x" * 5000, "A view must be an address of"),
    ],
)
def test_a_view_is_of_the_lists_alone(signed_in_browser, name, address, problem):
    answer = signed_in_browser.post("/ui/views", data={"name": name, "address": address}, follow_redirects=False)
    assert (answer.status_code, problem in answer.text) == (400, True)


def test_views_are_bounded(signed_in_browser):
    for number in range(100):
        signed_in_browser.post("/ui/views", data={"name": f"v{number}", "address": "/ui/jobs"})
    more = signed_in_browser.post("/ui/views", data={"name": "another", "address": "/ui/jobs"})
    assert (more.status_code, "Delete one first" in more.text) == (400, True)
    again = signed_in_browser.post("/ui/views", data={"name": "v7", "address": "/ui/jobs?q=x"}, follow_redirects=False)
    assert again.status_code == 303


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("sta", ["state:"]),
        ("-ta", ["-tag:"]),
        ("state:fa", ["state:failed"]),
        ("state:failed,ca", ["state:failed,cancelled"]),
        ("tag:of", ["tag:of-0", "tag:of-1"]),
        ("lr", ["lr<", "lr>", "lr<=", "lr>=", "lr="]),
        ("params.o", ["params.opt="]),
        ("opt=", ["opt=adam"]),
        ("opt=adam", []),
        ("created:yes", ["created:yesterday"]),
        ("machine:cp", ["machine:CPU"]),
        ("nothing-like-it", []),
    ],
)
def test_terms_are_completed(signed_in_browser, text, terms):
    found = signed_in_browser.get("/ui/jobs/complete", params={"text": text}).json()
    assert found[: len(terms)] == terms
    assert terms or not found


def test_an_action_is_for_all_jobs_that_the_query_finds(signed_in_browser, client, made):
    assert 'data-every="60"' in signed_in_browser.get("/ui/jobs?q=tag:sweep").text
    form = {"ids": made[:1], "every": "yes", "q": "tag:of-1", "back": "/ui/jobs", "tag": "old"}
    tagged = signed_in_browser.post("/ui/jobs/actions", data=form | {"action": "tag"}, follow_redirects=False)
    assert tagged.headers["location"] == "/ui/jobs?did=tag.30.0"
    compared = signed_in_browser.post("/ui/jobs/actions", data=form | {"action": "compare"}, follow_redirects=False)
    assert compared.headers["location"] == "/ui/jobs?q=tag%3Aof-1&charts=1"
    found = client.get("/jobs", params={"tag": "old", "limit": 200}).json()["jobs"]
    assert {job["id"] for job in found} == set(made[1::2])


@pytest.mark.parametrize(
    ("query", "jobs"),
    [("created:today", 1), ("created>=today", 1), ("created:yesterday", 0), ("created<yesterday", 0), ("cost>$5", 0)],
)
def test_days_and_dollars_are_understood(client, query, jobs):
    client.post("/jobs", json=make_job_body())
    assert len(client.get("/jobs", params={"q": query}).json()["jobs"]) == jobs


def test_a_word_that_is_no_day_is_refused(client):
    answer = client.get("/jobs", params={"q": "created:soon"})
    assert (answer.status_code, "today or yesterday" in answer.text) == (400, True)
