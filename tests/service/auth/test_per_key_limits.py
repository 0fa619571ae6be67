"""Limits of one key: each is reached over HTTP, with the message of its answer, while others are still served."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.deployment import EMPTY_SSL_CONTEXT
from support.live_service import (
    LiveServer,
    count_jobs,
    make_form,
    make_job_body,
    make_zip,
    record_requests,
    wait_until,
)

from core.errors import ArtifactNotFound
from core.jobs import queries
from core.security import api_keys
from core.settings import Settings
from core.settings.limits import LimitSettings
from core.storage.workspaces import WorkspaceStore
from service.auth.per_key_limits import Limits


@pytest.fixture
def settings(settings: Settings, request: pytest.FixtureRequest) -> Settings:
    return settings.model_copy(update={"limits": LimitSettings(**getattr(request, "param", {}))})


@pytest.fixture(autouse=True)
def _short_wait(stores, settings):
    stores.limits = Limits(settings.limits, wait_seconds=0.2)


@pytest.fixture
def other(live_server: LiveServer, database) -> Iterator[httpx.Client]:
    """A client with another key."""
    with database.write() as session:
        secret = api_keys.create(session, "other")[1]
    with httpx.Client(
        base_url=live_server.url, headers={"x-api-key": secret}, verify=EMPTY_SSL_CONTEXT, timeout=30
    ) as client:
        yield client


def limited(answer: httpx.Response, setting: str, limit: int) -> str:
    """The message of an answer that must be a refusal by this limit."""
    error = answer.json()["error"]
    assert (answer.status_code, error["status"], error["name"]) == (429, 429, "LimitReached")
    assert f"GRADIENT_LIMITS__{setting}" in error["message"]
    assert f"{limit:,} " in error["message"]
    wait = int(answer.headers["retry-after"])
    assert 1 <= wait <= 60
    assert f"Try again in {wait} second" in error["message"]
    return error["message"]


@pytest.mark.parametrize("settings", [{"requests_per_minute": 6}], indirect=True)
def test_a_key_that_sends_too_many_requests_is_refused_and_another_is_not(client, other):
    answers = [client.get("/machine-types") for _ in range(7)]
    assert [answer.status_code for answer in answers[:6]] == [200] * 6
    assert "requests per minute for one key" in limited(answers[6], "REQUESTS_PER_MINUTE", 6)
    assert client.get("/health").status_code == 200
    assert other.get("/machine-types").status_code == 200


@pytest.mark.parametrize("settings", [{"submissions_per_minute": 3}], indirect=True)
def test_a_key_that_submits_too_fast_is_refused_and_another_is_not(client, other, database):
    job = client.post("/jobs", json=make_job_body()).json()
    assert client.post("/jobs", json=make_job_body(), params={"dryRun": "true"}).status_code == 200
    assert client.post(f"/jobs/{job['id']}/clone").status_code == 201
    over = [
        client.post("/jobs", json=make_job_body()),
        client.post("/jobs", files=make_form(make_job_body(), make_zip())),
        client.post(f"/jobs/{job['id']}/clone"),
        client.post("/jobs/createJob", json={"command": "true", "machineType": "CPU"}),
    ]
    for answer in over:
        assert "submissions per minute for one key" in limited(answer, "SUBMISSIONS_PER_MINUTE", 3)
    assert count_jobs(database) == 2
    assert other.post("/jobs", json=make_job_body()).status_code == 201


@pytest.mark.parametrize("settings", [{"queued_per_key": 5}], indirect=True)
def test_a_key_that_fills_the_queue_is_refused_and_another_is_not(client, other, worker, database):
    again = {"Idempotency-Key": "first"}
    first = client.post("/jobs", json=make_job_body(), headers=again)
    assert [client.post("/jobs", json=make_job_body()).status_code for _ in range(4)] == [201] * 4
    assert "queued jobs of one key" in limited(client.post("/jobs", json=make_job_body()), "QUEUED_PER_KEY", 5)
    limited(client.post(f"/jobs/{first.json()['id']}/clone"), "QUEUED_PER_KEY", 5)
    repeated = client.post("/jobs", json=make_job_body(), headers=again)
    assert (repeated.status_code, repeated.json()["id"]) == (200, first.json()["id"]), "a repeat makes no job"
    assert other.post("/jobs", json=make_job_body()).status_code == 201
    assert count_jobs(database) == 6
    worker.register()
    worker.start()
    assert client.post("/jobs", json=make_job_body()).status_code == 201, "one of them is no longer queued"


@pytest.mark.parametrize("settings", [{"queued_per_project": 3}], indirect=True)
def test_a_project_that_fills_the_queue_is_refused_and_another_is_not(client, other):
    crowded = make_job_body(project="crowded")
    assert [client.post("/jobs", json=crowded).status_code for _ in range(3)] == [201] * 3
    for one in (client, other):
        message = limited(one.post("/jobs", json=crowded), "QUEUED_PER_PROJECT", 3)
        assert "queued jobs of one project" in message
    assert client.post("/jobs", json=make_job_body(project="empty")).status_code == 201


@pytest.mark.parametrize("settings", [{"queued_per_key": 20}], indirect=True)
def test_submissions_at_once_do_not_get_past_the_limit_of_the_queue(client, database):
    def submit(_: int) -> int:
        return client.post("/jobs", json=make_job_body()).status_code

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(submit, range(32)))
    assert sorted(statuses) == [201] * 20 + [429] * 12
    assert count_jobs(database) == 20


@pytest.mark.parametrize("settings", [{"streams": 3}], indirect=True)
def test_one_key_that_follows_many_logs_does_not_shut_out_another(client, other, stores):
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    path, accept = f"/jobs/{job_id}/logs", {"Accept": "text/event-stream"}
    leave = threading.Event()
    answers: list[httpx.Response] = []

    def follow() -> None:
        with client.stream("GET", path, headers=accept) as answer:
            if answer.status_code != 200:
                answer.read()
            answers.append(answer)
            leave.wait(60)

    threads = [threading.Thread(target=follow) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(answers) == 12)
        refused = [answer for answer in answers if answer.status_code != 200]
        assert len(refused) == 9
        for answer in refused:
            assert "logs followed at once by one key" in limited(answer, "STREAMS", 3)
        assert client.get(path).status_code == 200, "pages of the log are still read"
        with other.stream("GET", path, headers=accept) as theirs:
            assert theirs.status_code == 200
    finally:
        leave.set()
        for thread in threads:
            thread.join(60)
    wait_until(lambda: stores.streams.active == 0)
    with client.stream("GET", path, headers=accept) as mine:
        assert mine.status_code == 200


@pytest.mark.parametrize("settings", [{"uploads": 1}], indirect=True)
def test_archives_that_take_long_to_check_hold_up_nobody_else(client, other, monkeypatch):
    began, go_on = threading.Semaphore(0), threading.Event()
    add = WorkspaceStore.add

    def slow(*args, **kwargs):
        began.release()
        assert go_on.wait(60)
        return add(*args, **kwargs)

    monkeypatch.setattr(WorkspaceStore, "add", slow)

    def submit(number: int) -> httpx.Response:
        return client.post("/jobs", files=make_form(make_job_body(name=f"n{number}"), make_zip()), timeout=60)

    with ThreadPoolExecutor(50) as pool:
        mine = [pool.submit(submit, number) for number in range(48)]
        assert began.acquire(timeout=30)
        wait_until(lambda: sum(one.done() for one in mine) == 47)
        assert client.get("/jobs").status_code == 200
        theirs = pool.submit(other.post, "/jobs", files=make_form(make_job_body(), make_zip()))
        assert began.acquire(timeout=30), "an archive of another key is checked meanwhile"
        go_on.set()
        assert theirs.result(30).status_code == 201
        answers = [one.result(30) for one in mine]
    refused = [answer for answer in answers if answer.status_code != 201]
    assert len(refused) == 47
    for answer in refused:
        assert "uploads at once for one key" in limited(answer, "UPLOADS", 1)


@pytest.mark.parametrize("settings", [{"searches": 2}], indirect=True)
@pytest.mark.parametrize(
    "path", ["/jobs?tag=x", "/jobs?query=x", "/jobs/getJobs?command=x", "/jobs/getJobList?tagFilter=x"]
)
def test_many_searches_of_one_key_hold_up_nobody_else(client, other, monkeypatch, path):
    began, go_on = threading.Semaphore(0), threading.Event()
    page = queries.page

    def slow(session, wanted, **kwargs):
        if wanted.text or wanted.command or wanted.tags:
            began.release()
            assert go_on.wait(60)
        return page(session, wanted, **kwargs)

    monkeypatch.setattr(queries, "page", slow)

    def search(_: int) -> httpx.Response:
        return client.get(path, timeout=60)

    with ThreadPoolExecutor(50) as pool:
        mine = [pool.submit(search, number) for number in range(45)]
        wait_until(lambda: sum(one.done() for one in mine) == 43)
        assert client.get("/jobs").status_code == 200
        theirs = pool.submit(other.get, path)
        for _ in range(3):
            assert began.acquire(timeout=30)
        go_on.set()
        assert theirs.result(30).status_code == 200
        answers = [one.result(30) for one in mine]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(refused) == 43
    for answer in refused:
        assert "searches at once for one key" in limited(answer, "SEARCHES", 2)


@pytest.mark.parametrize("settings", [{"searches": 2}], indirect=True)
@pytest.mark.parametrize(("path", "body"), [("/tensorboards", "json"), ("/ui/tensorboard", "data")])
def test_a_key_looks_for_the_files_of_few_tensorboards_at_once(live_server, client, monkeypatch, path, body):
    go_on = threading.Event()

    def slow(*_args):
        assert go_on.wait(60)
        raise ArtifactNotFound("none")

    monkeypatch.setattr("service.tensorboard.routes.unavailable", lambda _settings: None)
    monkeypatch.setattr("service.tensorboard.routes.find_runs", slow)

    def post(_: int) -> httpx.Response:
        return client.post(path, **{body: {"ids": ["j1"]}}, headers={"Origin": live_server.url})

    with ThreadPoolExecutor(6) as pool:
        sent = [pool.submit(post, number) for number in range(6)]
        try:
            wait_until(lambda: sum(one.done() for one in sent) == 4)
        finally:
            go_on.set()
    assert sorted(one.result().status_code for one in sent) == [404, 404, 429, 429, 429, 429]


def test_many_patterns_in_one_request_are_refused_before_a_file_is_compared(client, worker):
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    worker.register()
    worker.end(worker.start())
    patterns = ",".join(f"*{number}?" for number in range(20_000))
    answer = client.post(f"/jobs/{job_id}/artifactsDestroy", json={"files": patterns})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "files")
    message = answer.json()["error"]["message"]
    assert "20,000 patterns exceed the limit of 100" in message
    names = ",".join(f"file{number}" for number in range(5000))
    assert client.post(f"/jobs/{job_id}/artifactsDestroy", json={"files": names}).status_code == 204


def test_many_ids_in_one_request_are_refused_and_those_of_one_are_read_at_once(client, database):
    ids = [client.post("/jobs", json=make_job_body(tags=["red"])).json()["id"] for _ in range(3)]
    for field, path, query in (
        ("entityIds", "/entityTags/getTags", {"entity": "job", "entityIds": ["j"] * 75_000}),
        ("tagFilter", "/jobs/getJobList", {"tagFilter": [f"t{number}" for number in range(75_000)]}),
    ):
        answer = client.request("GET", path, json=query)
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
        message = answer.json()["error"]["message"]
        assert "75,000 ids exceed the limit of 1,000" in message
    with record_requests(database) as asked:
        query = {"entity": "job", "entityIds": ids + ["nothing"] * 900}
        found = client.request("GET", "/entityTags/getTags", json=query)
    assert found.json() == {one: [{"tag": {"name": "red"}}] for one in ids}
    assert len([statement for statement, _ in asked if "FROM jobs" in statement]) == 1


@pytest.mark.parametrize("settings", [{"priority": 60}], indirect=True)
def test_a_priority_above_the_highest_here_is_refused(client):
    answer = client.post("/jobs", json=make_job_body(priority=61))
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "priority")
    assert "61 is above 60" in answer.json()["error"]["message"]
    assert "GRADIENT_LIMITS__PRIORITY" in answer.json()["error"]["message"]
    assert client.post("/jobs", json=make_job_body(priority=60)).status_code == 201


@pytest.mark.parametrize("settings", [{"requests_per_minute": 3}], indirect=True)
def test_a_page_over_a_limit_is_shown_as_a_page(client):
    for _ in range(3):
        client.get("/jobs")
    answer = client.get("/ui/jobs", headers={"Accept": "text/html"})
    assert answer.status_code == 429
    assert answer.headers["retry-after"]
    assert "GRADIENT_LIMITS__REQUESTS_PER_MINUTE" in answer.text


@pytest.mark.parametrize("processes", [1, 4])
def test_ssh_has_the_shares_of_all_processes_since_one_serves_it(settings, processes):
    settings.api.processes = processes
    limits = Limits(settings.of_one_process().limits, processes)
    assert limits.ssh_sessions.per_key == settings.limits.exec_sessions
