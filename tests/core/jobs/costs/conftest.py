import pytest
from support.database_clock import simulated_clock


@pytest.fixture
def database(sqlite_database):
    return sqlite_database


@pytest.fixture
def clock(database):
    with simulated_clock(database) as clock:
        yield clock
