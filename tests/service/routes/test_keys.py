"""API keys over the API: administrators create and revoke them, everybody else has only the own one."""

import pytest

from core.security import api_keys


@pytest.fixture
def other(database):
    with database.write() as session:
        return api_keys.create(session, "other")


@pytest.fixture
def administrator(settings, api_key):
    """Make the client's key that of an administrator."""
    settings.sign_in.administrators.append(api_key.split("_")[1])


@pytest.mark.usefixtures("administrator", "other")
def test_an_administrator_creates_lists_and_revokes_keys(client):
    created = client.post("/keys", json={"name": "ci", "days": 7})
    assert created.status_code == 201
    secret = created.json()["apiKey"]
    assert created.json()["expiresAt"] > created.json()["createdAt"]
    assert client.get("/jobs", headers={"x-api-key": secret}).status_code == 200
    listed = client.get("/keys")
    names = [one["name"] for one in listed.json()["keys"]]
    assert (sorted(names[:2]), names[2:]) == (["other", "tests"], ["ci"]), "two may be of the same millisecond"
    assert secret not in listed.text
    assert client.delete(f"/keys/{created.json()['id']}").status_code == 204
    assert client.get("/jobs", headers={"x-api-key": secret}).status_code == 401
    assert [one["state"] for one in client.get("/keys").json()["keys"]] == ["valid", "valid", "revoked"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [({"name": " "}, 400, "name"), ({"name": "x", "days": 0}, 400, "days"), ({"days": 1}, 422, "name")],
)
@pytest.mark.usefixtures("administrator")
def test_a_key_without_a_name_or_with_wrong_days_is_refused(client, body, status, field):
    refused = client.post("/keys", json=body)
    assert (refused.status_code, refused.json()["error"]["field"]) == (status, field)
    assert client.delete("/keys/none").status_code == 404


def test_everybody_else_sees_and_revokes_only_the_own_key(client, other):
    refused = client.post("/keys", json={"name": "mine"})
    assert (refused.status_code, refused.json()["error"]["name"]) == (403, "AdministratorOnly")
    assert "GRADIENT_SIGN_IN__ADMINISTRATORS" in refused.json()["error"]["message"]
    assert [one["name"] for one in client.get("/keys").json()["keys"]] == ["tests"]
    assert client.delete(f"/keys/{other[0].id}").status_code == 403
    own = client.get("/keys").json()["keys"][0]["id"]
    assert client.delete(f"/keys/{own}").status_code == 204
    assert client.get("/keys").status_code == 401
