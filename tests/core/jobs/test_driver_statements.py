"""Statements that the driver executes: their values and errors are those of SQLAlchemy."""

import pytest
from sqlalchemy import bindparam, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from core.db.database import Base, now
from core.errors import StoreUnavailable
from core.jobs.driver_statements import DriverStatement

PROJECTS = Base.metadata.tables["projects"]
FOUND = (PROJECTS.c.id, PROJECTS.c.created_at, PROJECTS.c.tags, PROJECTS.c.max_running)


@pytest.fixture
def insert_project(database):
    """An insert of projects with a constant, the database's time, and JSON."""
    statement = insert(PROJECTS).values(created_at=now(), max_running=3)
    return DriverStatement(database.engine.dialect, statement, PROJECTS, ["id", "name", "tags"])


def test_values_are_stored_and_read_as_sqlalchemy_does(database, insert_project):
    by_id = select(*FOUND).where(PROJECTS.c.id == bindparam("id"))
    find = DriverStatement(database.engine.dialect, by_id, PROJECTS, ["id"], FOUND)
    with database.write() as session:
        insert_project.execute(
            session.connection(), [{"id": f"pr{tag}", "name": tag, "tags": [tag, "ü"]} for tag in ("a", "b")]
        )
        insert_project.execute(session.connection(), [{"id": "prc", "name": "c", "tags": None}])
    with database.read() as session:
        for one in ("pra", "prb", "prc"):
            expected = session.execute(by_id, {"id": one}).one()
            assert find.fetch(session.connection(), {"id": one}) == list(expected)
            assert expected.max_running == 3
        assert expected.tags is None
        assert find.fetch(session.connection(), {"id": "none"}) is None


def test_errors_of_the_driver_are_those_of_sqlalchemy(database, insert_project):
    row = {"id": "pra", "name": "a", "tags": None}
    with pytest.raises(IntegrityError), database.write() as session:
        insert_project.execute(session.connection(), [row, row])

    def insert_without_the_table(session):
        session.execute(text("ALTER TABLE projects RENAME TO moved"))
        insert_project.execute(session.connection(), [row])

    # A missing table is an OperationalError of SQLite's driver, as is a database that does not answer.
    with pytest.raises((DBAPIError, StoreUnavailable)), database.write() as session:
        insert_without_the_table(session)
    with database.write() as session:
        insert_project.execute(session.connection(), [row])
