"""`keys` and `whoami`: a key is printed once, wrong numbers are refused before a request, and rights are shown."""

import json

KEY = {"id": "abcdefgh", "name": "ci", "state": "valid", "createdAt": None, "lastUsedAt": None, "expiresAt": None}


def test_a_created_key_is_all_of_standard_output(cli, server):
    server.on("POST", "/keys", KEY | {"apiKey": "gj_abcdefgh_x_y"})
    done = cli("keys", "create", "ci", "--days", "90")
    assert (done.returncode, done.stdout) == (0, "gj_abcdefgh_x_y\n"), done.stderr
    assert server.requests_to("POST", "/keys")[0].json == {"name": "ci", "days": 90, "scope": "submit", "agent": False}
    assert "shown only once" in done.stderr


def test_keys_are_listed_and_revoked(cli, server):
    server.on("GET", "/keys", {"keys": [KEY]})
    server.on("DELETE", "/keys/abcdefgh", {})
    listed = cli("keys", "list")
    assert listed.stdout.splitlines()[0].split() == [
        "ID",
        "NAME",
        "STATE",
        "LAST",
        "USED",
        "CREATED",
        "EXPIRES",
        "RIGHTS",
    ]
    assert listed.stdout.splitlines()[1].split()[:3] == ["abcdefgh", "ci", "valid"]
    assert json.loads(cli("keys", "list", "--json").stdout) == {"keys": [KEY]}
    assert "revoked abcdefgh" in cli("keys", "revoke", "abcdefgh").stderr
    assert len(server.requests_to("DELETE", "/keys/abcdefgh")) == 1


def test_a_key_is_created_with_rights_and_shown_with_them(cli, server):
    rights = {"scope": "read", "projects": ["a", "b c"], "machineTypes": ["CPU"], "maxJobs": 5, "agent": True}
    server.on("POST", "/keys", KEY | rights | {"apiKey": "gj_abcdefgh_x_y"})
    server.on("GET", "/keys/self", KEY | rights | {"administrator": False})
    options = ("--scope", "read", "--projects", "a, b c", "--machineTypes", "CPU", "--maxJobs", "5", "--agent")
    assert cli("keys", "create", "agent", *options).returncode == 0
    assert server.requests_to("POST", "/keys")[0].json == {"name": "agent", **rights}
    assert "maxJobs: 'many' is not a whole number" in cli("keys", "create", "x", "--maxJobs", "many").stderr
    shown = cli("whoami").stdout
    assert "read; only projects a, b c; only machine types CPU; at most 5 unfinished jobs" in shown
    assert "ci (abcdefgh), of a program" in shown
    assert json.loads(cli("whoami", "--json").stdout)["maxJobs"] == 5
