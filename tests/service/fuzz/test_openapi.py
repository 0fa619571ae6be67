"""The API's description: what clients are told. Its routes and fields are kept as a file so that a change is seen."""

import json
import os
import re
import textwrap
from pathlib import Path

from support.fuzz_target import describe_api

WITHOUT_KEY = {"/original/artifact/{job_id}/{path}", "/original/users/login", "/original/apiTokens/createPublic"}
"""Paths that take a signature in the link, or a password."""
SNAPSHOT = Path(__file__).with_name("routes-and-fields.txt")


def outline():
    """One paragraph for each operation, with its parameters and body, and for each schema, with its fields."""
    document = describe_api()
    paragraphs = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            body = sorted(set(re.findall(r"#/components/schemas/(\w+)", json.dumps(operation.get("requestBody", {})))))
            takes = [parameter["name"] for parameter in operation.get("parameters", [])] + body
            paragraphs.append(f"{method.upper()} {path}: {', '.join(takes)}")
    paragraphs += [
        f"{name}: {', '.join(schema.get('properties') or schema.get('enum') or [])}"
        for name, schema in document["components"]["schemas"].items()
    ]
    return "".join(
        textwrap.fill(each.removesuffix(": "), 116, subsequent_indent="    ", break_on_hyphens=False) + "\n"
        for each in paragraphs
    )


def test_the_routes_and_their_fields_are_as_they_were():
    text = outline()
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert text == SNAPSHOT.read_text(encoding="utf-8"), "run with UPDATE_SNAPSHOTS=1 if the change is meant"


def test_every_operation_is_described_with_its_errors():
    for path, methods in describe_api()["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], (method, path)
            if path in {"/health", "/readiness"} or path.startswith("/_s3/"):  # S3's own errors are XML
                continue
            assert {"400", "401", "403", "404", "413", "421", "422", "500", "503"} <= set(operation["responses"]), (
                method,
                path,
            )
            for status in ("400", "401", "403", "404", "413", "421", "422", "500", "503"):
                schema = operation["responses"][status]["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorView"}, (method, path)
            assert ({"ApiKey": []} in operation.get("security", [])) == (path not in WITHOUT_KEY), (method, path)


def test_every_schema_that_is_referred_to_is_in_the_document():
    document = describe_api()
    used = set(re.findall(r'"\$ref": "([^"]*)"', json.dumps(document)))
    assert used == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def test_operation_ids_are_unique(app):
    ids = [operation["operationId"] for methods in app.openapi()["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


def test_every_link_leads_to_an_operation_with_the_parameters_it_gives(app):
    operations = [operation for methods in app.openapi()["paths"].values() for operation in methods.values()]
    taken = {one["operationId"]: {parameter["name"] for parameter in one.get("parameters", [])} for one in operations}
    answers = [answer for operation in operations for answer in operation["responses"].values()]
    links = [link for answer in answers for link in answer.get("links", {}).values()]
    assert {"show_job", "stop_job", "read_log", "list_artifacts", "read_artifact"} <= {x["operationId"] for x in links}
    for link in links:
        assert set(link["parameters"]) <= taken[link["operationId"]]


def test_the_document_is_public_and_pages_that_load_foreign_scripts_are_not_there(anonymous_client):
    assert anonymous_client.get("/openapi.json").json()["info"]["title"] == "Gradient Jobs"
    assert anonymous_client.get("/docs").status_code == 404
    assert anonymous_client.get("/redoc").status_code == 404
