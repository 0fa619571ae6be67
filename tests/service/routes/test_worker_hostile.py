"""Malformed requests of a worker of another host: each is refused with a sentence, and harms nothing."""

import json
from urllib.parse import quote

import pytest
from sqlalchemy import select
from support.live_service import make_job_body

from core.db.models.jobs import Worker
from core.jobs.scheduling.claims import WorkerOffer
from core.security import worker_tokens
from core.storage.artifacts.manifests import ArtifactFile, Manifest, write_manifest
from core.storage.artifacts.received import Piece, pack

NUMBERS = ["x", "1", True, None, [], {}, 1.5, -1, 2**63, 10**400]
TIMES = [number for number in NUMBERS if number != -1]
RAW_NUMBERS = ["NaN", "Infinity", "1e400", "-1e400"]
TEXTS = [1, None, [], "", ".", "..", "../x", "/x", "a/../b", "a//b", "a\0b", "x" * 300, "a/" * 200 + "b", "x" * 40_000]
DEEP = "[" * 100_000
FILE = {"path": "a", "size": 1, "mtime_ms": 0, "sha256": None, "mode": 0o644}
HEADER = {"format": "x", "version": 1, "state": "complete", "files": 1, "bytes": 1, "skipped": [], "folders": []}
OPTIONAL = {"mode", "folders"}
OFFER = {
    "worker": "w",
    "host": "h",
    "backends": ["process"],
    "machine_types": None,
    "gpus": None,
    "cpus": 1.0,
    "memory_mb": 1,
    "ports": {"first": 1, "last": 0, "address": ""},
    "refusal": None,
    "nodes_address": None,
}


def variants(good, changes):
    """JSON texts, in each of which one value is another one."""
    for name, values in changes.items():
        yield from (json.dumps(good | {name: value}) for value in values)
        yield from (json.dumps(good | {name: "@"}).replace('"@"', raw) for raw in RAW_NUMBERS)
        if name not in OPTIONAL:
            yield json.dumps({key: value for key, value in good.items() if key != name})
    yield json.dumps(good | {"other": 1})
    yield from ("", "{", "null", "[]", "1", DEEP, '{"path": "\\ud800"}', "\0")


def pieces():
    good = FILE | {"offset": 0, "length": 1}
    numbers = dict.fromkeys(("size", "offset", "length"), NUMBERS) | {"mtime_ms": TIMES}
    yield from variants(good, {"path": TEXTS, "sha256": [1, "x", "A" * 64], "mode": [*NUMBERS, 2**20]} | numbers)
    yield from (json.dumps(good | {"mtime_ms": at}) for at in (2**44, -(2**44), 2**62))
    yield from (json.dumps(good | {name: 10**9}) for name in ("offset", "length"))


def lists():
    header, file = json.dumps(HEADER), json.dumps(FILE)
    changes = {"state": ["x", 1, None], "skipped": [1, [1], [{"path": 1}]], "folders": [1, ["x"], [["..", 0, 0]]]}
    yield from (f"{text}\n{file}\n" for text in variants(HEADER, changes) if '"other"' not in text)
    numbers = dict.fromkeys(("size", "mode"), NUMBERS) | {"mtime_ms": TIMES}
    texts = variants(FILE, {"sha256": [1, "x"], "path": [1, None]} | numbers)
    yield from (f"{header}\n{text}\n" for text in texts if text)


def offers():
    wrong = [1, "x", [1], ["a\0b"], ["x" * 300], [["x"]]]
    names = dict.fromkeys(("backends", "machine_types", "gpus"), wrong)
    ports = [1, {}, *({"first": 1, "last": value, "address": ""} for value in NUMBERS)]
    numbers = {"cpus": ["x", -1, 1e300], "memory_mb": ["x", -1, 2**40, 1.5]}
    yield from variants(OFFER, names | numbers | {"host": [1, None, "a\0b", "x" * 300], "ports": ports})


BODIES = [
    *(("POST", "artifacts", f"{head}\nx") for head in pieces()),
    *(("PUT", "artifacts?final=1", text) for text in lists()),
    *(("PUT", "artifacts", text) for text in lists()),
    *(("POST", "artifacts/uploads", text) for text in ("", "{", "1", "[1]", DEEP, json.dumps(["x"] * 501))),
    *(("POST", "/claims", text) for text in offers()),
]
QUERIES = [
    ("POST", f"log?{name}={value}")
    for name in ("offset", "source_bytes", "resume")
    for value in ("x", "-1", "1.5", "NaN", 2**53 + 1, 2**63 - 1, 2**63, 10**400)
]
PATHS = [
    *(("GET", f"artifacts/file?file={quote(str(path), safe='')}") for path in TEXTS if path),
    *(("GET", f"storage/file?file={quote(str(path), safe='')}") for path in TEXTS if path),
    *(("GET", f"storage?{query}") for query in ("limit=0", "limit=x", f"limit={10**400}")),
    *(("GET", f"/jobs/{job}/1/log") for job in ("x", "%00", "x" * 3000, "%ff")),
    *(("GET", f"/jobs/{{job}}/{attempt}/log") for attempt in ("0", "-1", "x", 2**63, 10**400)),
    *(("GET", f"/workspaces/{name}") for name in ("x", "%00", "%2e%2e", "x" * 3000)),
    ("POST", "/refusal?name=other&host=h"),
    ("POST", f"/refusal?name=h&host={'x' * 300}"),
]


@pytest.fixture
def held(client, stores, worker):
    """A job that a worker holds, and how this worker sends a request."""
    worker.register()
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    job = worker.start()
    with stores.database.write() as session:
        token = worker_tokens.create(session, job.worker)

    def send(method, path, body=b""):
        path = path.replace("{job}", job_id) if path.startswith("/") else f"/jobs/{job_id}/1/{path}"
        return client.request(method, f"/worker{path}", content=body, headers={"Authorization": f"Bearer {token}"})

    return job_id, send


def test_what_is_malformed_is_refused_with_a_sentence_and_harms_neither_log_nor_artifacts(held, client, tmp_path):
    job_id, send = held
    assert send("POST", "log?offset=0", b"before\n").json()["position"] == 7
    assert len(BODIES) > 300
    wrong = []
    for method, path, body in [*BODIES, *((method, path, "") for method, path in [*QUERIES, *PATHS])]:
        answer = send(method, path, body)
        if not 400 <= answer.status_code < 500 or len(answer.json()["error"]["message"]) < 20:
            wrong.append((answer.status_code, method, path[:200], body[:200], answer.text[:200]))
    assert wrong == []
    assert send("POST", "log?offset=7&resume=3").status_code == 400
    assert send("POST", "log?offset=7", b"after\n").json()["position"] == 13
    assert client.get(f"/jobs/{job_id}/logs/raw").content == b"before\nafter\n"
    file = ArtifactFile("a", 1, 0, None)
    write_manifest(tmp_path / "list", Manifest("complete", 1, 1, ()), [file], durable=False)
    assert send("POST", "artifacts", pack([Piece(file, 0, b"x")])).status_code == 204
    assert send("PUT", "artifacts", (tmp_path / "list").read_bytes()).json() == {}


def test_a_path_that_is_a_file_and_a_folder_is_refused(held):
    _, send = held
    for path, status in (("a", 204), ("a/b", 400), ("c/d", 204), ("c", 400), ("c/e", 204)):
        sent = send("POST", "artifacts", pack([Piece(ArtifactFile(path, 1, 0, None), 0, b"x")]))
        assert sent.status_code == status, path


def test_the_log_of_the_next_attempt_follows_one_whose_position_was_wrong(held, stores, client):
    job_id, send = held
    assert send("POST", f"log?offset=0&resume={2**53}").status_code == 200
    assert send("POST", f"log?offset={2**53}", b"too far\n").status_code == 400
    with stores.logs.open_writer(job_id, 2) as writer:
        writer.append(b"next\n", 0)
    assert client.get(f"/jobs/{job_id}/logs/raw").content.endswith(b"next\n")


def test_every_field_of_an_offer_is_known():
    assert {*OFFER} == set(WorkerOffer.__dataclass_fields__)


def test_a_worker_claims_only_for_the_host_on_which_it_has_registered_and_does_not_move_to_that_of_another(
    client, stores, worker
):
    worker.register()
    with stores.database.write() as session:
        tokens = {name: worker_tokens.create(session, name) for name in ("far", "farther")}
        [taken] = session.scalars(select(Worker.host))

    def send(method, path, name="far", **options):
        headers = {"Authorization": f"Bearer {tokens[name]}"}
        return client.request(method, f"/worker/{path}", headers=headers, **options)

    def claim(**changes):
        return send("POST", "claims", content=json.dumps(OFFER | {"host": "x"} | changes))

    def record(host, name="far", silent_seconds=0):
        return send("PUT", "host", name, params={"host": host, "silent_seconds": silent_seconds}).status_code

    assert claim().status_code == 400
    assert (record("x"), record("y", "farther"), record("x")) == (204, 204, 204)
    assert claim().json() == {"job": None}
    for changes in ({"host": taken}, {"backends": ["other"]}, {"machine_types": ["other"]}):
        assert claim(**changes).status_code == 400, changes
    assert (record(taken), record("y"), record("z", silent_seconds=60)) == (400, 400, 204)
    assert claim().json() == {"job": None}, "it is still on the host on which it was heard of"
    assert record("z") == 204
    assert (claim().status_code, claim(host="z").status_code) == (400, 200)
    with stores.database.write() as session:
        worker_tokens.revoke(session, "far")
    assert claim(host="z").status_code == 401, "at once"
