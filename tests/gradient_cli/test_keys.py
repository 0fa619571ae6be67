"""`keys`: a key is printed once, and wrong days are refused before a request."""

import json

KEY = {"id": "abcdefgh", "name": "ci", "state": "valid", "createdAt": None, "lastUsedAt": None, "expiresAt": None}


def test_a_created_key_is_all_of_standard_output(cli, server):
    server.on("POST", "/keys", KEY | {"apiKey": "gj_abcdefgh_x_y"})
    done = cli("keys", "create", "ci", "--days", "90")
    assert (done.returncode, done.stdout) == (0, "gj_abcdefgh_x_y\n"), done.stderr
    assert server.requests_to("POST", "/keys")[0].json == {"name": "ci", "days": 90}
    assert "shown only once" in done.stderr


def test_keys_are_listed_and_revoked(cli, server):
    server.on("GET", "/keys", {"keys": [KEY]})
    server.on("DELETE", "/keys/abcdefgh", {})
    listed = cli("keys", "list")
    assert listed.stdout.splitlines()[0].split() == ["ID", "NAME", "STATE", "LAST", "USED", "CREATED", "EXPIRES"]
    assert listed.stdout.splitlines()[1].split()[:3] == ["abcdefgh", "ci", "valid"]
    assert json.loads(cli("keys", "list", "--json").stdout) == {"keys": [KEY]}
    assert "revoked abcdefgh" in cli("keys", "revoke", "abcdefgh").stderr
    assert len(server.requests_to("DELETE", "/keys/abcdefgh")) == 1
