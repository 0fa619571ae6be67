from collections.abc import Iterator

import pytest

from core.db.database import Database


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request, tmp_path) -> Iterator[Database]:
    """A database of each kind, without any table."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'empty.db'}"
    else:
        url = request.getfixturevalue("postgres").new_database()
    empty_database = Database(url)
    yield empty_database
    empty_database.close()
