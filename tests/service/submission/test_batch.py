"""Batches of jobs over HTTP: each job is answered as a submission of its own would be."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select
from support.live_service import LiveServer, count_jobs, make_job_body

from core.db.database import Database
from core.db.models.credentials import GitLogin
from core.db.models.jobs import Event, Job, Outbox, Project
from core.errors import SecretUnreadable, StoreUnavailable
from core.security import api_keys
from core.settings import Settings
from core.settings.limits import LimitSettings
from service.http.body_limit import MAX_JSON_BYTES
from service.main import create_app


@pytest.fixture
def settings(settings: Settings, request: pytest.FixtureRequest) -> Settings:
    return settings.model_copy(update={"limits": LimitSettings(**getattr(request, "param", {}))})


def submit(client, jobs):
    answer = client.post("/jobs:batch", json={"jobs": jobs})
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert len(results) == len(jobs)
    return results


def statuses(results):
    return [each["status"] for each in results]


def names_in_queue(database: Database) -> list[str]:
    with database.read() as session:
        return list(session.scalars(select(Job.name).order_by(Job.seq)))


def test_a_thousand_jobs_are_created_in_their_order_with_one_wake(client, database, wake_calls):
    jobs = [make_job_body(name=f"n{number}", project=f"p{number % 3}") for number in range(1000)]
    results = submit(client, jobs)
    assert statuses(results) == [201] * 1000
    assert [each["job"]["name"] for each in results] == names_in_queue(database) == [job["name"] for job in jobs]
    assert wake_calls == ["wake"]
    with database.read() as session:
        for table in (Event, Outbox):
            assert session.scalar(select(func.count(table.job_id.distinct()))) == 1000
        assert session.scalar(select(func.count()).select_from(Project)) == 3
    alone = client.post("/jobs", json=jobs[0]).json()
    assert alone.keys() == results[0]["job"].keys()


def test_too_many_jobs_or_none_are_refused_as_a_whole(client, database):
    for jobs in ([], [make_job_body()] * 1001):
        answer = client.post("/jobs:batch", json={"jobs": jobs})
        assert (answer.status_code, answer.json()["error"]["field"]) == (422, "jobs")
    assert client.post("/jobs:batch", json=[make_job_body()]).status_code == 422
    answer = client.post("/jobs:batch", content=b'{"jobs": [{"registryPassword": "hunter2"')
    assert answer.status_code == 422
    assert "hunter2" not in answer.text
    assert count_jobs(database) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"machineType": "nothing"},
        {"command": ""},
        {"command": None},
        {"machinetype": "CPU"},
        {"workspaceSha256": "0" * 64},
        {"projectId": "prunknown"},
        {"envVars": {"TOKEN": "secret:none"}},
        {"priority": 1000},
        {"registryUsername": "ann"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_bad_job_gets_the_error_of_a_single_submission_and_stops_no_other(client, database, wrong):
    bad = make_job_body(**wrong)
    alone = client.post("/jobs", json=bad)
    results = submit(client, [make_job_body(name="first"), bad, make_job_body(name="last")])
    assert statuses(results) == [201, alone.status_code, 201]
    assert results[1]["job"] is None
    assert {name: value for name, value in results[1]["error"].items() if value is not None} == alone.json()["error"]
    assert names_in_queue(database) == ["first", "last"]


def test_the_same_idempotency_keys_give_the_same_jobs_mixed_with_new_ones(client, database):
    first = submit(client, [make_job_body(name=f"n{number}", idempotencyKey=f"k{number}") for number in range(3)])
    again = submit(
        client,
        [
            make_job_body(name="n2", idempotencyKey="k2"),
            make_job_body(name="other", idempotencyKey="k1"),
            make_job_body(name="new", idempotencyKey="k3"),
            make_job_body(name="new", idempotencyKey="k3"),
            make_job_body(name="newer", idempotencyKey="k3"),
            make_job_body(idempotencyKey="not valid"),
        ],
    )
    assert statuses(again) == [200, 422, 201, 200, 422, 400]
    assert again[0]["job"]["id"] == first[2]["job"]["id"]
    assert again[1]["error"]["name"] == again[4]["error"]["name"] == "IdempotencyMismatch"
    assert again[1]["error"]["field"] == again[5]["error"]["field"] == "idempotencyKey"
    assert again[3]["job"]["id"] == again[2]["job"]["id"]
    assert names_in_queue(database) == ["n0", "n1", "n2", "new"]
    # A single submission with the key of a job of a batch is a repeat, too, and the other way round.
    alone = client.post("/jobs", json=make_job_body(name="n0"), headers={"Idempotency-Key": "k0"})
    assert (alone.status_code, alone.json()["id"]) == (200, first[0]["job"]["id"])


def test_a_batch_refuses_the_header_of_a_single_submission(client, database):
    body = {"jobs": [make_job_body()]}
    answer = client.post("/jobs:batch", json=body, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "Idempotency-Key")
    assert count_jobs(database) == 0


def test_concurrent_batches_with_the_same_keys_create_each_job_once(live_server, database):
    check_concurrent_batches(live_server, database)


def check_concurrent_batches(live_server, database):
    jobs = [make_job_body(name=f"n{number}", idempotencyKey=f"k{number}") for number in range(100)]
    answers = []

    def send():
        with live_server.client() as own:
            answers.append(submit(own, jobs))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert count_jobs(database) == 100
    assert len({tuple(each["job"]["id"] for each in results) for results in answers}) == 1
    assert sorted(status for results in answers for status in statuses(results)) == [200] * 300 + [201] * 100


@pytest.mark.parametrize("settings", [{"submissions_per_minute": 4}], indirect=True)
def test_each_job_counts_as_a_submission_and_the_surplus_is_refused(client, database):
    assert client.post("/jobs", json=make_job_body(name="alone")).status_code == 201
    results = submit(client, [make_job_body(name=f"n{number}") for number in range(6)])
    assert statuses(results) == [201] * 3 + [429] * 3
    for each in results[3:]:
        assert "GRADIENT_LIMITS__SUBMISSIONS_PER_MINUTE" in each["error"]["message"]
        assert 31 <= each["error"]["retryAfter"] <= 45, "three tokens, at four a minute"
    assert client.post("/jobs", json=make_job_body()).status_code == 429
    assert names_in_queue(database) == ["alone", *(f"n{number}" for number in range(3))]


@pytest.mark.parametrize(
    ("settings", "setting"),
    [({"queued_per_key": 5}, "QUEUED_PER_KEY"), ({"queued_per_project": 5}, "QUEUED_PER_PROJECT")],
    indirect=["settings"],
)
def test_queued_jobs_are_limited_and_repeats_are_not_counted(client, database, setting):
    jobs = [make_job_body(name=f"n{number}", idempotencyKey=f"k{number}") for number in range(3)]
    assert statuses(submit(client, jobs)) == [201] * 3
    results = submit(client, [*jobs, *(make_job_body(name=f"m{number}") for number in range(4)), jobs[0]])
    assert statuses(results) == [200] * 3 + [201] * 2 + [429] * 2 + [200]
    for each in results[5:7]:
        assert f"GRADIENT_LIMITS__{setting}" in each["error"]["message"]
        assert each["error"]["retryAfter"] == 30
    assert count_jobs(database) == 5
    assert client.post("/jobs", json=make_job_body()).status_code == 429


@pytest.mark.parametrize("settings", [{"queued_per_key": 1}], indirect=True)
def test_a_refused_job_leaves_no_project(client):
    results = submit(client, [make_job_body(project="first"), make_job_body(project="second")])
    assert statuses(results) == [201, 429]
    assert [each["name"] for each in client.get("/projects").json()["projects"]] == ["first"]


def test_the_size_of_each_job_and_of_the_batch_are_limited(client, database):
    results = submit(client, [make_job_body(command="x" * MAX_JSON_BYTES), make_job_body()])
    assert statuses(results) == [413, 201]
    assert results[0]["error"]["name"] == "TooLarge"
    answer = client.post("/jobs:batch", json={"jobs": [make_job_body(command="x" * 900_000)] * 20})
    assert answer.status_code == 413
    assert count_jobs(database) == 1


def test_a_login_that_cannot_be_stored_refuses_its_job_alone(client, database, monkeypatch):
    jobs = [make_job_body(name=f"n{number}") for number in range(3)]
    jobs[1]["workspace"] = "git+https://ann:hunter2@github.com/a/b.git"
    results = submit(client, jobs)
    assert statuses(results) == [201] * 3
    assert "hunter2" not in json.dumps(results)

    def fail(*_args):
        raise SecretUnreadable("There is no key.")

    monkeypatch.setattr("core.security.credentials.save_git_login", fail)
    assert statuses(submit(client, jobs)) == [201, 503, 201]
    with database.read() as session:
        assert list(session.scalars(select(GitLogin.job_id))) == [results[1]["job"]["id"]]
    assert names_in_queue(database) == ["n0", "n1", "n2", "n0", "n2"]


def test_a_commit_that_fails_creates_nothing(client, database, monkeypatch, wake_calls):
    def fail(*_args):
        raise StoreUnavailable("The database does not answer right now. Try again in a moment.")

    monkeypatch.setattr("sqlalchemy.engine.default.DefaultDialect.do_commit", fail)
    answer = client.post("/jobs:batch", json={"jobs": [make_job_body()] * 3})
    assert (answer.status_code, answer.json()["error"]["name"]) == (503, "StoreUnavailable")
    monkeypatch.undo()
    assert count_jobs(database) == 0
    assert wake_calls == []


@pytest.fixture
def postgres_database(postgres, migrated_postgres) -> Iterator[Database]:
    database = Database(postgres.new_database(migrated_postgres))
    yield database
    database.close()


@pytest.fixture
def postgres_server(settings, postgres_database) -> Iterator[LiveServer]:
    with postgres_database.write() as session:
        secret = api_keys.create(session, "tests")[1]
    server = LiveServer(create_app(settings, database=postgres_database, wake=lambda: None), secret)
    yield server
    server.stop()


def test_on_postgresql_a_value_that_it_refuses_stops_no_other(postgres_server, postgres_database):
    with postgres_server.client() as client:
        results = submit(client, [make_job_body(name="first"), make_job_body(name="a", idempotencyKey="k")] * 2)
        assert statuses(results) == [201, 201, 201, 200]
        jobs = [make_job_body(name="second"), make_job_body(envVars={"A": "a\0b"}), make_job_body(name="third")]
        alone = client.post("/jobs", json=jobs[1])
        results = submit(client, jobs)
    assert statuses(results) == [201, alone.status_code, 201]
    assert 400 <= alone.status_code < 500
    assert names_in_queue(postgres_database) == ["first", "a", "first", "second", "third"]


def test_on_postgresql_concurrent_batches_create_each_job_once(postgres_server, postgres_database):
    check_concurrent_batches(postgres_server, postgres_database)


def test_on_postgresql_concurrent_submissions_share_commits_and_keys(postgres_server, postgres_database):
    def post(number):
        with postgres_server.client() as client:
            return client.post("/jobs", json=make_job_body(), headers={"Idempotency-Key": f"k{number % 10}"}).json()[
                "id"
            ]

    with ThreadPoolExecutor(20) as pool:
        ids = list(pool.map(post, range(40)))
    assert len(set(ids)) == count_jobs(postgres_database) == 10
