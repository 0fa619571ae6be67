"""Comparisons exported as one file, and imported by another installation."""

import hashlib
import json

import pytest
from support.live_service import make_job_body

PROGRAM = {"machineType": "CPU,V100", "metric": "accuracy", "target": 0.9, "repeats": 3}
TIMES = (2.0, 0.5, 2.1, 0.52, 1.9, 0.49)


@pytest.fixture
def exported(client, train):
    """The text of a file, of a comparison that is decided."""
    made = client.post("/comparisons", json=make_job_body(**PROGRAM, name="<b>digits", envVars={"TOKEN": "hush"}))
    for seconds in TIMES:
        train(seconds, [0.5, 0.9])
    answer = client.get(f"/comparisons/{made.json()['id']}/export")
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Disposition"] == f'attachment; filename="comparison-{made.json()["id"]}.json"'
    return answer.text


def send(client, text):
    return client.post("/comparisons/import", content=text, headers={"Content-Type": "application/json"})


def sign(content):
    """The text of a changed file with the digest that belongs to it."""
    rest = {name: value for name, value in content.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return json.dumps(rest | {"sha256": hashlib.sha256(text.encode()).hexdigest()})


def moved(text):
    """The same file as another installation would have written it."""
    return sign(json.loads(text) | {"exportedFrom": "https://other.example"})


def test_the_file_has_figures_specs_digests_and_versions_and_no_secret(client, exported):
    file = json.loads(exported)
    assert (file["format"], file["formatVersion"]) == ("gradient-jobs comparison", 1)
    assert file["release"] == client.get("/health").json()["version"]
    assert [row["machineType"] for row in file["comparison"]["rows"]] == ["CPU", "V100"]
    assert file["comparison"]["rows"][1]["stepsPerSecond"]["median"] == pytest.approx(20, rel=0.05)
    assert "V100" in file["comparison"]["machines"]["V100"]["accelerator"]
    assert file["program"]["command"] == make_job_body()["command"]
    assert len(file["programSha256"]) == len(file["sha256"]) == 64
    assert "hush" not in exported


def test_an_imported_comparison_is_shown_as_imported(client, exported):
    answer = send(client, moved(exported))
    assert answer.status_code == 201, answer.text
    found = answer.json()
    original = json.loads(exported)["comparison"]
    assert found["id"] != original["id"]
    assert (found["imported"]["id"], found["importedFrom"]) == (original["id"], "https://other.example")
    assert [row["seconds"] for row in found["rows"]] == [row["seconds"] for row in original["rows"]]
    assert [row["marks"][-1] for row in found["rows"]] == ["imported", "imported"]
    assert found["notes"][0].startswith("Imported from https://other.example, release ")
    assert client.get(f"/comparisons/{found['id']}").json() == found
    listed = client.get("/comparisons").json()["comparisons"]
    assert [(one["importedFrom"], one["jobs"], one["ended"]) for one in listed] == [
        ("https://other.example", 6, 6),
        (None, 6, 6),
    ]
    page = client.get(f"/ui/comparisons/{found['id']}").text
    for text in ("&lt;b&gt;digits", "imported</span>", "None of the jobs ran here", "Machines there", "<noscript>"):
        assert text in page
    assert "/ui/jobs/j" not in page, "its jobs are not here"
    assert "https://other.example" in client.get("/ui/comparisons").text
    assert f'href="/comparisons/{original["id"]}/export"' in client.get(f"/ui/comparisons/{original['id']}").text


def test_it_stands_beside_an_own_comparison_of_the_same_program_without_ranks(client, exported):
    own_id = json.loads(exported)["comparison"]["id"]
    before = client.get(f"/comparisons/{own_id}").json()
    assert before["sameProgram"] == []
    imported = send(client, moved(exported)).json()
    after = client.get(f"/comparisons/{own_id}").json()
    [beside] = after.pop("sameProgram")
    before.pop("sameProgram")
    assert after == before, "ranks, decision and notes are of what ran here"
    assert beside["comparisonId"] == imported["id"]
    for row in beside["rows"]:
        assert (row["fastest"], row["cheapest"], row["mostAccurate"], row["labels"]) == (None, None, None, [])
        assert (row["onTimeCostFront"], row["speedup"]) == (None, None)
        assert row["marks"][-1] == "imported from https://other.example"
    page = client.get(f"/ui/comparisons/{own_id}").text
    assert page.count(f'<a href="/ui/comparisons/{imported["id"]}">imported from https://other.example</a>') == 2
    assert json.loads(client.get(f"/comparisons/{own_id}/export").text)["comparison"]["sameProgram"] == []
    body = {"exportedFrom": "https://third.example", "programSha256": "0" * 64}
    send(client, sign(json.loads(exported) | body))
    assert len(client.get(f"/comparisons/{own_id}").json()["sameProgram"]) == 1, "another program is another matter"


def test_the_same_file_is_imported_once_and_goes_on_unchanged(client, exported):
    text = moved(exported)
    first, again = send(client, text), send(client, text)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    path = f"/comparisons/{first.json()['id']}"
    assert client.get(f"{path}/export").text == text
    assert client.post(f"{path}/repeats", json={"machineTypes": ["CPU"]}).status_code == 400
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404
    assert send(client, text).status_code == 201


def test_a_comparison_that_differs_in_more_than_machines_is_exported_without_a_program(client):
    ids = [client.post("/jobs", json=make_job_body(command=each)).json()["id"] for each in ("a", "b")]
    made = client.post("/comparisons/from-jobs", json={"jobs": ids}).json()
    file = client.get(f"/comparisons/{made['id']}/export").json()
    assert (file["programSha256"], "command" in file["program"]) == (None, False)
    imported = send(client, json.dumps(file)).json()
    assert imported["differences"] == made["differences"]
    assert client.get(f"/ui/comparisons/{imported['id']}").status_code == 200


def change(path, value):
    def apply(file):
        *before, last = path
        inside = file
        for name in before:
            inside = inside[name]
        inside[last] = value
        return sign(file)

    return apply


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: json.dumps(file)[:-30], "damaged or was not written by `compare export --to`"),
        (lambda _: "", "damaged or was not"),
        (lambda _: "[" * 100_000, "damaged or was not"),
        (lambda _: "PK\x03\x04\x00", "damaged or was not"),
        (lambda _: "[1]", "is not a comparison that"),
        (lambda _: '{"cells": []}', "is not a comparison that"),
        (lambda file: json.dumps(file["comparison"]), "is not a comparison that"),
        (lambda file: json.dumps(file | {"formatVersion": 2, "release": "9.1"}), "release 9.1 in a format that this"),
        (lambda file: json.dumps(file | {"exportedFrom": "x"}), "its sha256 differs"),
        (lambda file: json.dumps({k: v for k, v in file.items() if k != "sha256"}), "its sha256 differs"),
        (change(["comparison", "rows"], "none"), "comparison.rows"),
        (change(["comparison", "rows", 0, "seconds", "median"], "fast"), "comparison.rows.0.seconds.median"),
        (lambda file: sign(file).replace(": 0.9", ": NaN", 1), "damaged or was not"),
        (change(["comparison", "rows", 0, "peakMemoryBytes"], 10**400), "cannot be from a comparison"),
        (change(["comparison", "rows", 0, "cost"], 1e300), "cannot be from a comparison"),
        (change(["comparison", "name"], "n" * 201), "cannot be from a comparison"),
        (change(["comparison", "metric"], "m" * 201), "1 to 200 characters"),
        (change(["exportedAt"], "9999-12-31T23:59:59-14:00"), "cannot be from a comparison"),
        (change(["exportedAt"], "2026-01-01T00:00:00"), "cannot be from a comparison"),
        (change(["programSha256"], "abc"), "programSha256"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_with_the_reason(client, exported, damage, said):
    answer = send(client, damage(json.loads(exported)))
    assert answer.status_code in {400, 422}, answer.text
    assert said in answer.json()["error"]["message"]
    assert len(client.get("/comparisons").json()["comparisons"]) == 1


def test_a_file_that_is_too_large_is_refused(client, exported):
    answer = send(client, exported + " " * 1024**2)
    assert answer.status_code == 413
    assert "1,048,576 bytes" in answer.json()["error"]["message"]


def test_an_import_needs_a_key(anonymous_client):
    assert send(anonymous_client, "{}").status_code == 401
