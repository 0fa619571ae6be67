"""A database that takes what is sent and never answers."""

import contextlib
import threading

import pytest
from sqlalchemy import text
from support.deployment import wait_until

from core.db.connection_watchdog import ConnectionWatchdog
from core.db.database import Database
from core.errors import StoreUnavailable


def ask(database):
    with contextlib.suppress(StoreUnavailable), database.read() as session:
        return session.scalar(text("SELECT 7"))


def test_a_thread_that_no_answer_comes_to_is_freed(postgres, proxy):
    database = Database(proxy.url(postgres.new_database()))
    ConnectionWatchdog(database)

    def ask_in_the_dark():
        with database.read() as session:
            assert session.scalar(text("SELECT 1")) == 1
            proxy.shut()
            session.scalar(text("SELECT 2"))

    with pytest.raises(StoreUnavailable):
        ask_in_the_dark()
    proxy.open()
    assert wait_until(lambda: ask(database), "the next answer") == 7
    database.close()


def test_a_thread_that_only_looks_whether_its_connection_lives_is_freed(postgres, proxy, caplog):
    database = Database(proxy.url(postgres.new_database()))
    ConnectionWatchdog(database)
    assert wait_until(lambda: ask(database), "the first answer") == 7
    proxy.shut()
    asker = threading.Thread(target=ask, args=(database,))
    asker.start()
    wait_until(lambda: "connection_broken" in caplog.text, "the connection to be broken")
    proxy.open()
    asker.join()
    assert wait_until(lambda: ask(database), "the next answer") == 7
    database.close()
