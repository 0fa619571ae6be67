"""Submissions with a workspace, repeated and broken ones: each leaves all of a job or nothing of it."""

import hashlib
import io
import json
import socket
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.live_service import (
    OFFER,
    FakeWorker,
    LiveServer,
    count_jobs,
    list_stored_workspaces,
    make_form,
    make_job_body,
    make_zip,
    record_statements,
    wait_until,
)

from core.settings import QueueSettings, Settings
from core.settings.api import ApiSettings
from core.settings.database import DatabaseSettings
from core.settings.network import SshSettings
from service.main import create_app


@pytest.fixture
def nothing_left(database, settings):
    """Checks, after the test, that no job and no workspace is there."""
    yield
    assert count_jobs(database) == 0
    assert list_stored_workspaces(settings) == []


def error_of(answer, status, field=None):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["status"] == status
    assert error.get("field") == field
    return error["message"]


def test_a_folder_is_stored_once(client, stores):
    assert client.get(f"/workspaces/{'0' * 64}").status_code == 404
    archive = make_zip({"a": b"1", "b": b"22"})
    jobs = [client.post("/jobs", files=make_form(make_job_body(), archive)).json() for _ in range(2)]
    sha256 = jobs[0]["workspaceSha256"]
    assert jobs[1]["workspaceSha256"] == sha256
    assert [stored.sha256 for stored in stores.workspaces.stored()] == [sha256]
    assert client.get(f"/workspaces/{sha256}").json() == {"sha256": sha256, "size": 3}
    by_name = client.post("/jobs", json=make_job_body(workspaceSha256=sha256))
    assert (by_name.status_code, by_name.json()["workspaceSha256"]) == (201, sha256)
    clone = client.post(f"/jobs/{jobs[0]['id']}/clone").json()
    assert clone["workspaceSha256"] == sha256


def test_none_means_no_workspace_and_git_urls_lose_their_password(client):
    assert client.post("/jobs", json=make_job_body(workspace="none")).json()["workspace"] is None
    job = client.post("/jobs", json=make_job_body(workspace="https://me:pw@example.com/a.git#main")).json()
    assert job["workspace"] == "https://example.com/a.git#main"


def test_a_hundred_at_once_with_one_key_make_one_job(live_server, database):
    def post(_):
        with live_server.client() as one:
            answer = one.post("/jobs", json=make_job_body(), headers={"Idempotency-Key": "same"})
        return answer.status_code, answer.json().get("id")

    with ThreadPoolExecutor(25) as pool:
        answers = list(pool.map(post, range(100)))
    assert sorted({status for status, _ in answers}) == [200, 201]
    assert [status for status, _ in answers].count(201) == 1
    assert len({job_id for _, job_id in answers}) == 1
    assert count_jobs(database) == 1


def test_a_key_belongs_to_one_request(client, database):
    headers = {"Idempotency-Key": "k1"}
    archive = make_zip()
    first = client.post("/jobs", files=make_form(make_job_body(), archive), headers=headers)
    again = client.post("/jobs", files=make_form(dict(reversed(make_job_body().items())), archive), headers=headers)
    sha256 = first.json()["workspaceSha256"]
    by_sha = client.post("/jobs", json=make_job_body(workspaceSha256=sha256, name=None), headers=headers)
    assert [answer.status_code for answer in (first, again, by_sha)] == [201, 200, 200]
    assert first.json()["id"] == again.json()["id"] == by_sha.json()["id"]
    for body in (
        {"json": make_job_body(command="other")},
        {"files": make_form(make_job_body(), make_zip({"b": b"2"}))},
    ):
        other = client.post("/jobs", **body, headers=headers)
        assert (other.status_code, other.json()["error"]["name"]) == (422, "IdempotencyMismatch")
    assert count_jobs(database) == 1


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "ü".encode("latin-1")])
@pytest.mark.usefixtures("nothing_left")
def test_a_key_that_is_none_is_refused(client, key):
    message = error_of(
        client.post("/jobs", json=make_job_body(), headers={"Idempotency-Key": key}), 400, "Idempotency-Key"
    )
    assert "255" in message


@pytest.mark.parametrize("path", ["/jobs?dryrun=true", "/comparisons?dryRun=true", "clone"])
def test_an_unknown_query_parameter_creates_no_job(client, path):
    job = make_job_body(machineType="CPU,V100" if "comparisons" in path else "CPU")
    name = path.partition("?")[2].partition("=")[0]
    existing = []
    if path == "clone":
        existing = [client.post("/jobs", json=job).json()["id"]]
        path, name = f"/jobs/{existing[0]}/clone?pinimage=true", "pinimage"
    answer = client.post(path, json=job)
    error = answer.json()["error"]
    assert (answer.status_code, error["field"]) == (422, name)
    assert f"{name!r} is not a field here" in error["message"]
    assert [one["id"] for one in client.get("/jobs").json()["jobs"]] == existing


@pytest.mark.parametrize("command", ["", "  \n"])
@pytest.mark.usefixtures("nothing_left")
def test_an_empty_command_is_refused(client, command):
    message = error_of(
        client.post("/jobs", files=make_form(make_job_body(command=command), make_zip())), 400, "command"
    )
    assert "--command" in message


@pytest.mark.parametrize("name", ["../evil.sh", "/etc/evil", "a/../../evil"])
@pytest.mark.usefixtures("nothing_left")
def test_a_zip_that_escapes_is_refused(client, name, settings):
    error_of(client.post("/jobs", files=make_form(make_job_body(), make_zip({name: b"x"}))), 400, "workspace")
    assert not list(settings.root.parent.rglob("evil*"))


@pytest.mark.usefixtures("nothing_left")
def test_a_zip_bomb_is_refused_while_reading(client):
    zeros = zlib.compressobj(9, zlib.DEFLATED, -15)
    # After a full flush nothing refers to what came before it, so that it can be repeated.
    megabyte = zeros.compress(bytes(1024**2)) + zeros.flush(zlib.Z_FULL_FLUSH)
    packed = megabyte * 512 + zeros.flush()
    assert len(packed) < 1024**2
    message = error_of(
        client.post("/jobs", files=make_form(make_job_body(), _zip_of(packed, 512 * 1024**2))), 400, "workspace"
    )
    assert "bomb" in message or "limit" in message


def _zip_of(packed, size):
    # A zip whose one entry holds a deflate stream that was made elsewhere.
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("zeros.bin", packed)
    raw = bytearray(out.getvalue())
    local, central = 0, raw.index(b"PK\x01\x02")
    for at, method, sizes in ((local, 8, 18), (central, 10, 20)):
        raw[at + method : at + method + 2] = (8).to_bytes(2, "little")
        raw[at + sizes : at + sizes + 8] = len(packed).to_bytes(4, "little") + size.to_bytes(4, "little")
    return bytes(raw)


@pytest.mark.parametrize(
    "archive",
    [make_zip()[:-30], b"", b"not an archive at all", b"PK\x03\x04"],
    ids=["cut off", "empty", "text", "only a beginning"],
)
@pytest.mark.usefixtures("nothing_left")
def test_a_damaged_archive_is_refused(client, archive):
    error_of(client.post("/jobs", files=make_form(make_job_body(), archive)), 400, "workspace")


@pytest.mark.usefixtures("nothing_left")
def test_an_upload_that_is_not_what_was_announced_is_refused(client):
    spec = make_job_body(workspaceSha256=hashlib.sha256(b"other").hexdigest())
    assert "damaged" in error_of(client.post("/jobs", files=make_form(spec, make_zip())), 400, "workspace")


@pytest.mark.usefixtures("nothing_left")
def test_a_form_without_its_end_is_refused(client):
    boundary = "b0undary"
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="spec"\r\n\r\n{json.dumps(make_job_body())}\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="workspace"; filename="w.zip"\r\n\r\n'
    ).encode() + make_zip()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    message = error_of(client.post("/jobs", content=body, headers=headers), 400, "workspace")
    assert "the end of the form is missing" in message


def test_the_spec_of_a_form_may_be_a_file_and_is_utf8_either_way(client):
    for spec in ((None, json.dumps(make_job_body(name="é"), ensure_ascii=False).encode()), ("s", b'{"name": "\xff"}')):
        answer = client.post("/jobs", files={"spec": spec, "workspace": ("w.zip", make_zip())})
        assert answer.status_code == (201 if spec[0] is None else 422)
    spec = ("spec.json", json.dumps(make_job_body(name="é")).encode())
    job = client.post("/jobs", files={"spec": spec, "workspace": ("w.zip", make_zip())}).json()
    assert job["name"] == "é"
    latin = (None, json.dumps(make_job_body(name="é"), ensure_ascii=False).encode("latin-1"))
    assert client.post("/jobs", files={"spec": latin}).status_code == 422


@pytest.mark.usefixtures("nothing_left")
def test_a_chunked_form_over_the_limit_is_cut_off(client):
    head = b'--b\r\nContent-Disposition: form-data; name="workspace"; filename="w.zip"\r\n\r\n'
    chunks = (head if number == 0 else bytes(1024**2) for number in range(200))
    answer = client.post("/jobs", content=chunks, headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert answer.status_code == 413


@pytest.mark.usefixtures("nothing_left")
def test_a_connection_that_breaks_in_an_upload_leaves_nothing(live_server, client):
    head = (
        f"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: {live_server.api_key}\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 5000000\r\n\r\n"
        f'--b\r\nContent-Disposition: form-data; name="spec"\r\n\r\n{json.dumps(make_job_body())}\r\n'
        '--b\r\nContent-Disposition: form-data; name="workspace"; filename="w.zip"\r\n\r\n'
    )
    with socket.create_connection(("127.0.0.1", live_server.port)) as connection:
        connection.sendall(head.encode() + bytes(1_000_000))
    wait_until(lambda: not live_server.server.server_state.tasks)
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"workspace": ("w.zip", make_zip())}, "spec"),
        ({"spec": (None, json.dumps(make_job_body())), "extra": (None, "x")}, "extra"),
        ([("spec", (None, json.dumps(make_job_body()))), ("spec", (None, json.dumps(make_job_body())))], "spec"),
        ({"spec": (None, json.dumps(make_job_body())), "workspace": (None, "no file")}, "workspace"),
    ],
)
@pytest.mark.usefixtures("nothing_left")
def test_a_form_with_other_parts_is_refused(client, parts, field):
    error_of(client.post("/jobs", files=parts), 422, field)


@pytest.mark.parametrize(
    ("spec", "status", "field", "says"),
    [
        (make_job_body(envVars={f"V{i}": "x" for i in range(1000)}), 400, "envVars", "1,000"),
        (make_job_body(envVars={"LR": 0.1}), 422, "envVars.LR", "string"),
        (make_job_body(envVars={"1X": "a"}), 400, "envVars", "'1X'"),
        (make_job_body(envVars={"PS_JOB_ID": "a"}), 400, "envVars.PS_JOB_ID", "is reserved"),
        (make_job_body(name="two\nlines"), 400, "name", "line break"),
        (make_job_body(tags=["esc\x1b[31m"]), 400, "tags", "control character"),
        (make_job_body(project="a\nb"), 400, "project", "line break"),
        (make_job_body(timeLimit="5"), 422, "timeLimit", "'5'"),
        (make_job_body(timeLimit=True), 422, "timeLimit", "integer"),
        (make_job_body(timeLimit=0), 400, "timeLimit", "1 to"),
        (make_job_body(cpus=float("nan")), 400, "cpus", "nan"),
        (make_job_body(machinetype="CPU"), 422, "machinetype", "'machineType'"),
        (make_job_body(workspace="file:///etc"), 400, "workspace", "git"),
        (make_job_body(workspace="https://me:pw@[host/repo.git"), 400, "workspace", "git"),
        (make_job_body(container="Not An Image"), 400, "container", "name:tag"),
        ([1], 422, None, "object"),
    ],
)
@pytest.mark.usefixtures("nothing_left")
def test_a_bad_spec_is_refused_with_its_field(client, spec, status, field, says):
    body = json.dumps(spec).encode()
    message = error_of(client.post("/jobs", content=body, headers={"Content-Type": "application/json"}), status, field)
    assert says in message
    assert len(message) < 500
    if isinstance(spec, dict):
        error_of(client.post("/jobs", files=make_form(spec, make_zip())), status, field)


def test_a_job_that_no_worker_can_run_is_refused_unless_it_is_to_wait(client, stores):
    huge = make_job_body(cpus=1000)
    assert client.post("/jobs", json=huge).status_code == 201, "a worker may yet come"
    FakeWorker(stores, replace(OFFER, cpus=2.0, memory_mb=4096)).register()
    for body, field, says in (
        (huge, "cpus", "The job requests 1,000 CPUs, but the largest worker of its machine type has 2. It would never"),
        (make_job_body(memoryMb=8192), "memoryMb", "8,192 MiB of memory, but the largest worker"),
    ):
        for query in ("", "?dryRun=true"):
            answer = client.post(f"/jobs{query}", json=body)
            assert says in error_of(answer, 400, field)
            assert "--waitAnyway" in answer.json()["error"]["message"]
        waits = client.post("/jobs", json=body | {"waitAnyway": True})
        assert waits.status_code == 201
        assert "the largest worker" in client.get(f"/jobs/{waits.json()['id']}").json()["message"]


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": "\\ud800"}', b"\xff\xfe", b"[" * 5000])
@pytest.mark.usefixtures("nothing_left")
def test_what_is_no_json_is_refused(client, body):
    answer = client.post("/jobs", content=body, headers={"Content-Type": "application/json"})
    assert "JSON" in error_of(answer, 422)


@pytest.mark.usefixtures("nothing_left")
def test_another_content_type_is_refused(client):
    answer = client.post("/jobs", content=b"machineType=CPU", headers={"Content-Type": "text/plain"})
    assert answer.json()["error"]["status"] == 415


@pytest.mark.usefixtures("nothing_left")
def test_bodies_over_the_limit_are_refused(client):
    assert client.post("/jobs", json=make_job_body(command="x" * 2_000_000)).status_code == 413
    chunks = (b'{"command": "' + b"x" * 100_000 for _ in range(20))
    answer = client.post("/jobs", content=chunks, headers={"Content-Type": "application/json"})
    assert answer.json()["error"]["name"] == "TooLarge"
    answer = client.post(
        "/projects", content=(b"x" * 100_000 for _ in range(20)), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 413
    answer = client.post("/jobs", files=make_form(make_job_body(), bytes(21 * 1024**2)))
    assert (answer.status_code, answer.json()["error"]["name"]) == (413, "TooLarge")
    assert "workspace" in answer.json()["error"]["message"]


@pytest.mark.usefixtures("nothing_left")
def test_a_disk_that_is_full_is_said_so(client, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("core.storage.workspaces.stored_files._copy", full)
    answer = client.post("/jobs", files=make_form(make_job_body(), make_zip()))
    assert answer.status_code == 503
    assert "No space left" in answer.json()["error"]["message"]


def test_a_job_cannot_have_the_ports_that_the_service_needs(settings, database, api_key):
    """It would answer in the service's place as soon as that is restarted."""
    own = {"api": ApiSettings(port=18780), "queue": QueueSettings(broker_url="redis://127.0.0.1/0")}
    live = LiveServer(create_app(settings.model_copy(update=own), database=database, wake=lambda: None), api_key)
    try:
        with live.client() as client:
            for port, what in ((18780, "its API"), (6379, "its broker")):
                asked = {"machineType": "CPU", "command": "true", "ports": [f"{port}:80"]}
                for query in ("?dryRun=true", ""):
                    answer = client.post(f"/jobs{query}", json=asked)
                    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "ports")
                    assert what in answer.json()["error"]["message"]
            assert client.post("/jobs", json=asked | {"ports": ["6380:80"]}).status_code == 201
    finally:
        live.stop()


def test_the_services_own_ports_are_those_of_its_settings():
    def ports(database=None, broker=None):
        made = Settings(
            ssh=SshSettings(port=0), database=DatabaseSettings(url=database), queue=QueueSettings(broker_url=broker)
        )
        return {port: what for port, what in made.own_ports.items() if port != made.api.port}

    assert ports("postgresql+psycopg://u:p@db/x", "redis://h/0") == {5432: "its database", 6379: "its broker"}
    assert ports("postgresql://u:p@db:6000/x", "rediss://h:6001/0") == {6000: "its database", 6001: "its broker"}
    assert ports("sqlite:////tmp/x") == {}
    assert Settings(ssh=SshSettings(port=2222)).own_ports[2222] == "its ssh endpoint"


def test_a_submission_is_five_statements(client, database):
    """Its project, the job, its event and message, budgets: each more would be a wait."""
    client.post("/jobs", json=make_job_body())
    counts = []
    for _ in range(3):  # other work of the service may come between
        with record_statements(database) as asked:
            assert client.post("/jobs", json=make_job_body()).status_code == 201
        counts.append(len([statement for statement, _ in asked if not statement.startswith("BEGIN")]))
    assert min(counts) == 5, asked
