"""Projects and policies as the client shows and changes them."""

import json
import re

import pytest

PROJECT = {
    "id": "pr1",
    "name": "vision",
    "createdAt": None,
    "jobCount": 12,
    "runningCount": 2,
    "queuedCount": 5,
    "maxRunning": 4,
    "keepLogsDays": 30,
    "keepLogsBy": "project",
    "keepArtifactsDays": None,
    "keepArtifactsBy": "service",
}


@pytest.fixture(autouse=True)
def projects(server):
    other = {**PROJECT, "id": "pr2", "name": "pr1"}
    server.on("GET", "/projects", {"projects": [other, PROJECT]})
    server.on("PATCH", "/projects/pr1", PROJECT)
    return server


def test_an_id_comes_before_a_name(cli):
    assert json.loads(cli("projects", "show", "pr1", "--json").stdout)["name"] == "vision"


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        (["--maxRunning", "8"], {"maxRunning": 8}),
        (["--max-running", "none"], {"maxRunning": None}),
        (["--keepLogsDays", "7", "--keepArtifactsDays", "forever"], {"keepLogsDays": 7, "keepArtifactsDays": None}),
        (["--keepLogsDays", "default"], {"keepLogsDays": "default"}),
        (["--closed"], {"closed": True}),
        (["--open"], {"closed": False}),
    ],
)
def test_only_what_is_named_is_changed(cli, server, arguments, sent):
    done = cli("projects", "update", "vision", *arguments)
    assert done.returncode == 0, done.stderr
    (request,) = server.requests_to("PATCH", "/projects/pr1")
    assert request.json == sent
    assert "at most 4" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vision"], "nothing to change"),
        (["vision", "--maxRunning", "0"], "maxRunning: '0' is not a whole number from 1"),
        (["vision", "--maxRunning", "forever"], "or none."),
        (["vision", "--keepLogsDays", "-1"], "keepLogsDays: '-1' is not a whole number from 1"),
        (["vision", "--keepLogsDays", "soon"], "or forever or default."),
        (["--maxRunning", "1"], "project: required"),
    ],
)
def test_what_makes_no_sense_is_refused_here(cli, server, arguments, message):
    refused = cli("projects", "update", *arguments)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert server.requests == []


def test_a_project_that_is_not_there(cli):
    refused = cli("projects", "show", "nowhere")
    assert refused.returncode == 4
    assert "no project has the name or id 'nowhere'" in refused.stderr
    assert "gradient-cli projects list" in refused.stderr


LOG = {"what": "logs", "at": "2024-06-01T10:00:00.000Z", "message": "The log was removed: kept 30 days."}
ARTIFACTS = {**LOG, "what": "artifacts", "message": "The artifacts were removed: kept 30 days."}


@pytest.fixture
def pruned(server, protocol):
    path = f"/jobs/{protocol.id}"
    nothing = {"files": [], "skipped": [], "next": None, "totalFiles": 0, "totalBytes": 0}
    server.on("GET", path, protocol.ended(removed=[LOG, ARTIFACTS]))
    server.on("GET", f"{path}/logs", {"lines": [], "complete": True, "removed": LOG})
    server.on("GET", f"{path}/artifacts", {"state": "removed", **nothing, "removed": ARTIFACTS})
    return protocol.id


def test_show_says_what_was_removed_and_offers_no_way_to_it(cli, pruned):
    shown = cli("jobs", "show", pruned)
    assert re.search(r"The log was removed: kept 30 days. 2024-0[56]-\d\d \d\d:\d\d:00 \S+ \(", shown.stdout)
    assert "The artifacts were removed: kept 30 days." in shown.stdout
    assert "jobs clone" in shown.stderr
    assert "jobs logs" not in shown.stderr
    assert "artifacts list" not in shown.stderr


def test_logs_and_artifacts_say_what_was_removed(cli, pruned):
    for command in (["logs"], ["artifacts", "list"]):
        shown = cli("jobs", *command, pruned)
        assert (shown.returncode, shown.stdout) == (0, "")
        assert "removed: kept 30 days. (" in shown.stderr
        assert "no lines" not in shown.stderr
    got = cli("jobs", "artifacts", "get", pruned)
    assert got.returncode == 1
    assert "error: The artifacts were removed: kept 30 days." in got.stderr
    assert f"gradient-cli jobs clone {pruned}" in got.stderr


def test_following_a_removed_log_says_so_and_ends(cli, server, protocol, pruned):
    server.on("GET", f"/jobs/{pruned}/logs", protocol.Reply(stream=[protocol.event("removed", LOG), protocol.end()]))
    followed = cli.run_process("jobs", "logs", pruned, "--follow")
    assert followed.returncode == 0
    assert "The log was removed: kept 30 days. (" in followed.stderr


def test_members_get_roles_and_lose_them(cli, server):
    server.on("PUT", "/projects/pr1/members/ann%40example.org", {})
    server.on("PUT", "/projects/pr1/members/k1", {})
    server.on("DELETE", "/projects/pr1/members/k2", {})
    server.on("GET", "/projects/pr1/members", {"members": [{"id": "k1", "name": "robot", "role": "viewer"}]})
    done = cli(
        "projects", "members", "vision", "--set", "ann@example.org=maintainer", "--set", "k1=viewer", "--remove", "k2"
    )
    assert (done.returncode, done.stdout.split()[-3:]) == (0, ["robot", "k1", "viewer"]), done.stderr
    [sent] = server.requests_to("PUT", "/projects/pr1/members/ann%40example.org")
    assert sent.json == {"role": "maintainer"}
    assert len(server.requests_to("DELETE", "/projects/pr1/members/k2")) == 1
    for wrong in ("ann@example.org", "=viewer", "ann="):
        refused = cli("projects", "members", "vision", "--set", wrong)
        assert refused.returncode == 2
        assert "MEMBER=ROLE" in refused.stderr
