"""A PostgreSQL server that ends connections under the API."""

import pytest
from support.servers.postgres import BackendTerminator

from core.db import migrations
from core.db.database import Database


@pytest.fixture
def database(postgres):
    database = Database(postgres.new_database())
    migrations.upgrade(database)
    yield database
    database.close()


def test_a_connection_that_dies_at_the_end_of_a_read_is_told_as_503(client, database):
    assert client.get("/jobs").status_code == 200, "the key is known now, and is not looked up again"
    ended = BackendTerminator(database, 100)  # the service reads for itself, too
    answer = client.get("/jobs")
    assert (answer.status_code, answer.json()["error"]["name"]) == (503, "StoreUnavailable")
    ended.remaining = 0
    assert client.get("/jobs").status_code == 200
