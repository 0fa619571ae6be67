"""Bodies with very many errors: they take neither the event loop nor much memory, and are refused all the same."""

import hashlib
import json
import threading
from http import HTTPStatus

import pytest
from support.live_service import make_job_body, measure_peak_memory, wait_until

from core.settings import Settings
from core.settings.limits import LimitSettings
from service.auth.per_key_limits import Limits
from service.http.json_body import LARGE_BYTES
from service.schemas.base import parse_request

COUNT = 100_000
MOST_BYTES = 12 * 1024**2
"""Peak memory of a request; to describe all its errors takes 18 to 90 MiB."""
NUMBERS = "[" + "1," * COUNT + "1]"
TEXTS = "{" + ",".join(f'"n{number}":1' for number in range(COUNT // 4)) + "}"
JOB = '{"machineType":"CPU","command":"true","%s":%s}'
ROWS = ",".join(f'{{"marks":[{",".join("1" * 900)}]}}' for _ in range(COUNT // 1000))


def sign_export(comparison):
    """An exported comparison with this content, and the digest that belongs to it."""
    rest = f'{{"comparison":{comparison},"format":"gradient-jobs comparison","formatVersion":1}}'
    return rest[:-1] + f',"sha256":"{hashlib.sha256(rest.encode()).hexdigest()}"}}'


REQUESTS = {
    "tags to add": ("PATCH", "/jobs/ID/tags", f'{{"add":{NUMBERS}}}'),
    "tags to remove": ("PATCH", "/jobs/ID/tags", f'{{"remove":{NUMBERS}}}'),
    "jobs to stop": ("POST", "/jobs/actions", f'{{"action":"stop","ids":{NUMBERS}}}'),
    "artifacts": ("POST", "/jobs/ID/artifacts/contents", f'{{"paths":{NUMBERS}}}'),
    "a clone": ("POST", "/jobs/ID/clone", f'{{"outputs":{NUMBERS}}}'),
    "jobs to compare": ("POST", "/comparisons/from-jobs", f'{{"jobs":{NUMBERS}}}'),
    "a comparison": ("POST", "/comparisons", JOB % ("tags", NUMBERS)),
    "an imported comparison": ("POST", "/comparisons/import", sign_export(f'{{"rows":{NUMBERS}}}')),
    "one of many rows": ("POST", "/comparisons/import", sign_export(f'{{"rows":[{ROWS}]}}')),
    "jobs to show": ("POST", "/tensorboards", f'{{"ids":{NUMBERS}}}'),
    "unknown fields": ("POST", "/projects", TEXTS),
    **{name: ("POST", "/jobs", JOB % (name, NUMBERS)) for name in ("tags", "ports", "outputs", "dataDisks")},
    "envVars": ("POST", "/jobs", JOB % ("envVars", TEXTS)),
    "a dry run": ("POST", "/jobs?dryRun=true", JOB % ("tags", NUMBERS)),
    "a manifest": ("POST", "/workspaces/missing", TEXTS),
}


@pytest.fixture
def settings(settings: Settings, request: pytest.FixtureRequest) -> Settings:
    return settings.model_copy(update={"limits": LimitSettings(**getattr(request, "param", {}))})


@pytest.fixture(autouse=True)
def _short_wait(stores, settings):
    stores.limits = Limits(settings.limits, wait_seconds=0.2)


@pytest.fixture
def send(client):
    """A function that sends one of `REQUESTS`, or another request, and returns the answer."""
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]

    def send(method, path, body):
        return client.request(
            method, path.replace("ID", job_id), content=body, headers={"Content-Type": "application/json"}
        )

    return send


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
def test_very_many_errors_take_little_memory(send, request_of):
    answers = []
    assert measure_peak_memory(lambda: answers.append(send(*request_of))) < MOST_BYTES
    assert answers[0].status_code in {HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.BAD_REQUEST}
    assert len(answers[0].content) < 1000


def test_of_very_many_errors_the_number_is_named(send):
    few = json.dumps(dict.fromkeys(map(str, range(1000)), 1))
    error = send("POST", "/projects", few).json()["error"]
    assert error["message"] == "1,001 names or values are invalid, too many to list."  # `name` is missing, too
    error = send(*REQUESTS["unknown fields"]).json()["error"]
    assert (error["field"], error["message"]) == ("n0", "'n0' is not a field here.")
    error = send(*REQUESTS["a manifest"]).json()["error"]
    assert error["message"] == "manifest: n0: Extra inputs are not permitted"
    error = send(*REQUESTS["tags"]).json()["error"]
    assert (error["field"], error["message"]) == ("tags.0", "tags.0: must be a valid string, not 1.")


def array_schemas(document, schema, seen):
    """All arrays of a schema, with their places."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in seen:
            yield from array_schemas(document, document["components"]["schemas"][name], {*seen, name})
        return
    if schema.get("type") == "array":
        yield schema
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), *schema.get("prefixItems", ())]
    parts += [schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)]
    for part in parts:
        yield from array_schemas(document, part, seen)


def test_every_list_of_a_body_has_a_limit(app):
    document = app.openapi()
    unlimited, count = [], 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                for schema in array_schemas(document, content.get("schema", {}), frozenset()):
                    count += 1
                    unlimited += [(method, path, schema)] * ("maxItems" not in schema)
    assert count > 20
    assert unlimited == []


@pytest.mark.parametrize("settings", [{"uploads": 1}], indirect=True)
def test_a_large_body_is_parsed_in_a_thread_with_a_slot_of_its_key(live_server, send, monkeypatch):
    threads, go_on = [], threading.Event()

    def parse(model, raw):
        threads.append(threading.current_thread())
        assert threading.current_thread() is live_server.thread or go_on.wait(60)
        return parse_request(model, raw)

    monkeypatch.setattr("service.http.json_body.parse_request", parse)
    small, large = '{"add":["a"]}', '{"add":["a"]' + " " * LARGE_BYTES + "}"
    answers = []
    first = threading.Thread(target=lambda: answers.append(send("PATCH", "/jobs/ID/tags", large)))
    first.start()
    try:
        wait_until(lambda: threads)
        refused = send("PATCH", "/jobs/ID/tags", large)
        assert (refused.status_code, refused.json()["error"]["name"]) == (429, "LimitReached")
        assert send("PATCH", "/jobs/ID/tags", small).status_code == 200
    finally:
        go_on.set()
        first.join()
    assert answers[0].status_code == 200
    assert [one is live_server.thread for one in threads] == [False, True]
