"""The query language of lists of jobs, their orders, and their pages in both directions."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update
from support.live_service import make_job_body

from core.db.models.jobs import Job


@pytest.fixture
def jobs(client, train, database):
    """Four jobs by name: two that ended well with an accuracy, one that failed, one that waits."""
    named = {}
    for name, accuracies, reason in (
        ("good", [0.5, 0.95], "completed"),
        ("poor", [0.9, 0.3], "completed"),
        ("broken", [], "exit_nonzero"),
    ):
        body = make_job_body(name=name, project="nlp", tags=[name, "swept"], command=f"python {name}.py --lr 0.1")
        client.post("/jobs", json=body).raise_for_status()
        named[name] = train(1 + 10 * len(accuracies), accuracies, reason)
    named["waits"] = client.post("/jobs", json=make_job_body(name="waits", machineType="GPU+")).json()["id"]
    with database.write() as session:
        old = datetime.now(UTC) - timedelta(days=3)
        session.execute(update(Job).where(Job.id == named["good"]).values(created_at=old))
    return named


def names(client, **params):
    answer = client.get("/jobs", params=params)
    assert answer.status_code == 200, answer.text
    return [job["name"] for job in answer.json()["jobs"]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["waits", "broken", "poor", "good"]),
        ("state:failed", ["broken"]),
        ("state:Failed,pending", ["waits", "broken"]),
        ("-state:succeeded", ["waits", "broken"]),
        ("-reason:completed", ["waits", "broken"]),
        ("state:error", []),
        ("project:nlp -tag:good", ["broken", "poor"]),
        ("tag:good,poor", ["poor", "good"]),
        ("machine:gpu+", ["waits"]),
        ("name:OO", ["poor", "good"]),
        ("reason:exit_nonzero", ["broken"]),
        ("accuracy>0.9", ["good"]),
        ("metric.accuracy<=0.3", ["poor"]),
        ("accuracy>0.2 lr=0.1", ["poor", "good"]),
        ("loss>0", []),
        ("created<2d", ["waits", "broken", "poor"]),
        ("created>2d", ["good"]),
        ("created>2000-01-01 created<2100-01-01", ["waits", "broken", "poor", "good"]),
        ("finished<1h", ["broken", "poor", "good"]),
        ("-created<2d", ["good"]),
        ("-accuracy>0.9", ["waits", "broken", "poor"]),
        ("-metric.accuracy<=0.3 -lr=0.1", ["waits"]),
        ("-duration>=0s", ["waits"]),
        ("-good", ["waits", "broken", "poor"]),
        ('-"good.py --lr" state:succeeded', ["poor"]),
        ('"-good"', []),
        ("duration>=0s cost>=0 state:succeeded", ["poor", "good"]),
        ("GOOD.py", ["good"]),
        ('"--lr 0.1" poor', ["poor"]),
        ("project:none", []),
    ],
)
def test_a_query_finds_jobs(client, jobs, query, found):
    assert names(client, q=query) == found
    assert client.get("/jobs", params={"q": f"id:{jobs['poor']} {query}"}).status_code == 200


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 0.1", "train-1"),
        ("bash -c 'cd sub && ./long-run.sh; python then.py'", "long-run-1"),
        ("torchrun --nproc 2 src/fit.v2.py", "fit.v2-1"),
        ("cat main.py.bak .py", "job 1"),
        ("echo x", "job 1"),
    ],
)
def test_a_job_without_a_name_is_shown_and_found_by_its_script(client, command, name):
    client.post("/jobs", json={"machineType": "CPU", "command": command}).raise_for_status()
    client.post("/jobs", json={"machineType": "CPU", "command": command, "name": "other"}).raise_for_status()
    assert names(client) == ["other", name]
    if name != "job 1":
        assert names(client, q=f"name:{name.removesuffix('-1')}") == [name]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "tag:a stat:failed",
            "Fields: state, is, project, machine, tag, name, command, id, array, schedule, sweep, comparison, reason,",
        ),
        ("tag:a state:dead", "'dead' is not a state"),
        ("tag:a -state:failed,Stopped", "Succeeded or cancelled? Write state:succeeded or state:cancelled."),
        ("tag:a is:slow", "'slow' is not a mark of jobs. Write is:diverged."),
        ("tag:a machine:none", "There is no machine type 'none'"),
        ("tag:a accuracy>high", "'high' is not a number"),
        ("tag:a accuracy>nan", "'nan' is not a number"),
        ("tag:a created<soon", "'soon' is not an age such as 30m"),
        ("tag:a created>0001-01-01T00:00+14:00", "is not an age"),
        ("tag:a created<999999w", "'999999w' is not an age"),
        ("tag:a name:", "A value is missing after 'name:'"),
        ("tag:a accuracy==1", "'==' is not a comparison. There are <, <=, >, >=, =; `-` before a term negates it."),
        ("tag:a accuracy!=1", "'!=' is not a comparison"),
        ("tag:a accuracy=>1", "'=>' is not a comparison"),
        ("tag:a <1", "A name is missing before '<'"),
        ("tag:a created=2d", "Ages need < or >."),
        ('tag:a "open', "A quotation mark is not closed"),
    ],
)
def test_a_wrong_term_is_named_with_its_place(client, query, message):
    answer = client.get("/jobs", params={"q": query})
    error = answer.json()["error"]
    assert (answer.status_code, error["field"]) == (400, "q")
    assert message in error["message"]
    assert "at character 7 of the query" in error["message"]


def test_a_date_is_a_whole_day_and_a_time_is_a_moment(client, database):
    for name, created in (
        ("eve", "2026-01-30T23:59:59.999999"),
        ("first", "2026-01-31T00:00:00"),
        ("last", "2026-01-31T23:59:59.999999"),
        ("next", "2026-02-01T00:00:00"),
    ):
        job = client.post("/jobs", json=make_job_body(name=name)).json()["id"]
        with database.write() as session:
            at = datetime.fromisoformat(created).replace(tzinfo=UTC)
            session.execute(update(Job).where(Job.id == job).values(created_at=at))
    for query, found in (
        ("created<2026-01-31", {"eve"}),
        ("created<=2026-01-31", {"eve", "first", "last"}),
        ("created=2026-01-31", {"first", "last"}),
        ("created:2026-01-31", {"first", "last"}),
        ("-created=2026-01-31", {"eve", "next"}),
        ("created>=2026-01-31", {"first", "last", "next"}),
        ("created>2026-01-31", {"next"}),
        ("created>2026-01-31T00:00", {"last", "next"}),
        ("created=2026-01-31T00:00", {"first"}),
    ):
        assert set(names(client, q=query)) == found, query


@pytest.mark.parametrize(
    ("value", "spelled"),
    [(math.nan, ("NaN", "nan")), (math.inf, ("Infinity", "inf")), (-math.inf, ("-Infinity", "-inf"))],
)
def test_a_last_value_that_is_not_finite_is_found_by_its_name(client, train, value, spelled):
    for name, last in (("finite", 1.0), ("diverged", value)):
        client.post("/jobs", json=make_job_body(name=name)).raise_for_status()
        train(1, [last])
    for word in spelled:
        assert names(client, q=f"accuracy={word}") == ["diverged"]
        assert names(client, q=f"metric.accuracy={word}") == ["diverged"]
        assert names(client, q=f"params.accuracy={word}") == []


@pytest.mark.parametrize(("name", "text"), [("ÄRGER", "ärger"), ("ärger", "ÄRGER"), ("ΣΊΣΥΦΟΣ", "σίσυφος")])
def test_text_is_found_in_capital_and_small_letters_of_any_alphabet(client, name, text):
    client.post("/jobs", json=make_job_body(name=name)).raise_for_status()
    assert names(client, q=text) == [name]
    assert names(client, q=f"name:{text}") == [name]
    assert names(client, query=text) == [name]


def test_a_query_has_a_limit(client):
    assert "at most 20 terms" in client.get("/jobs", params={"q": "a " * 21}).json()["error"]["message"]
    assert client.get("/jobs", params={"q": "a" * 501}).status_code == 422


@pytest.mark.parametrize(
    ("sort", "found"),
    [
        ("-created", ["waits", "broken", "poor", "good"]),
        ("created", ["good", "poor", "broken", "waits"]),
        ("name", ["broken", "good", "poor", "waits"]),
        ("-name", ["waits", "poor", "good", "broken"]),
        ("-accuracy", ["good", "poor", "waits", "broken"]),
        ("metric.accuracy", ["poor", "good", "waits", "broken"]),
        ("machine", ["broken", "poor", "good", "waits"]),
        ("-project", ["broken", "poor", "good", "waits"]),
    ],
)
def test_a_list_is_sorted_and_read_in_both_directions(client, jobs, sort, found):
    assert jobs
    assert names(client, sort=sort) == found
    pages, after = [], None
    while True:
        page = client.get("/jobs", params={"sort": sort, "limit": 1, **({"after": after} if after else {})}).json()
        pages.append(page)
        after = page["next"]
        if after is None:
            break
    assert [job["name"] for page in pages for job in page["jobs"]] == found
    assert pages[0]["previous"] is None
    back = [pages[-1]]
    while (before := back[-1]["previous"]) is not None:
        back.append(client.get("/jobs", params={"sort": sort, "limit": 1, "before": before}).json())
    assert [page["jobs"][0]["name"] for page in back] == found[::-1]


def test_the_oldest_of_all_comes_first_though_other_orders_are_of_the_newest(client, jobs, monkeypatch):
    monkeypatch.setattr("core.jobs.queries.SORTED_JOBS", 2)
    assert names(client, sort="created") == list(jobs)
    assert names(client, sort="name") == ["broken", "waits"]


@pytest.mark.parametrize(("sort", "message"), [("-durations", "Did you mean duration?"), ("xyzzy", "created, name,")])
def test_a_list_is_not_sorted_by_what_no_job_has(client, jobs, sort, message):
    assert jobs
    error = client.get("/jobs", params={"sort": sort}).json()["error"]
    assert (error["status"], error["field"]) == (400, "sort")
    assert message in error["message"]
    assert client.get("/jobs", params={"sort": "metric.xyzzy"}).status_code == 200


def test_durations_and_costs_can_be_sorted_by(client, jobs):
    for sort in ("duration", "-cost", "finished", "state"):
        assert sorted(names(client, sort=sort)) == sorted(jobs)
    assert client.get("/jobs", params={"sort": "-"}).json()["error"]["field"] == "sort"
    assert client.get("/jobs", params={"before": "x"}).json()["error"]["field"] == "before"
    assert client.get("/jobs", params={"sort": "name", "after": "99999"}).json()["error"]["field"] == "after"
