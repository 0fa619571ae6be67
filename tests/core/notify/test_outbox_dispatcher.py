"""The dispatcher: what is in the outbox is sent to whom it concerns, and stays until it is sent."""

import pytest
from sqlalchemy import func, select
from support.deployment import wait_until

from core.db.models.jobs import Outbox
from core.jobs import lifecycle
from core.notify import outbox_dispatcher
from core.notify.messages import WakeMessage
from core.notify.outbox_dispatcher import Dispatcher


@pytest.fixture
def database(sqlite_database):
    return sqlite_database


def messages(database):
    with database.read() as session:
        return session.scalar(select(func.count(Outbox.id)))


def test_new_jobs_wake_their_pool_once_and_stop_requests_wake_the_worker(database, submit):
    sent = []
    sender = Dispatcher(database, lambda: None, sent.append)
    first, _ = submit(), submit()
    sender.send()
    assert sent == [[WakeMessage("gradient.pool.CPU", first.id, None)]]
    with database.write() as session:
        session.get_one(type(first), first.seq).request_id = "r1"
        session.get_one(type(first), first.seq).state = "running"
        session.get_one(type(first), first.seq).worker = "holder"
        lifecycle.request_stop(session, first.id)
    sender.send()
    assert sent[1:] == [[WakeMessage("gradient.host.holder", first.id, "r1")]]
    assert messages(database) == 0


def test_a_job_that_ended_meanwhile_wakes_nothing(database, submit):
    sent = []
    job = submit()
    with database.write() as session:
        lifecycle.request_stop(session, job.id)
    assert Dispatcher(database, lambda: None, sent.append).send() == 1
    assert sent == [[]]
    assert messages(database) == 0


def test_what_could_not_be_sent_is_sent_again(database, submit, monkeypatch):
    monkeypatch.setattr(outbox_dispatcher, "RETRY_SECONDS", 0.01)
    tries, woken = [], []

    def publish(rings):
        tries.append(rings)
        if len(tries) < 3:
            raise ConnectionError("away")

    submit()
    sender = Dispatcher(database, lambda: woken.append(1), publish)
    sender.start()
    try:
        wait_until(lambda: messages(database) == 0, "the rows to be sent")
    finally:
        sender.stop()
    assert len(tries) == 3
    assert tries[0] == tries[2]
    assert woken, "this host was rung all the same"


def test_this_host_is_rung_while_the_broker_hangs(database, submit):
    asked, woken, hung = [], [], outbox_dispatcher.threading.Event()

    def publish(rings):
        asked.append(rings)
        assert hung.wait(60)

    submit()
    sender = Dispatcher(database, lambda: woken.append(1), publish)
    sender.start()
    try:
        wait_until(lambda: asked, "the broker to hang")
        before = len(woken)
        sender.wake()
        assert len(woken) == before + 1
    finally:
        hung.set()
        sender.stop()


def test_without_a_broker_rows_are_rung_here_and_removed(database, submit):
    woken = []
    submit()
    sender = Dispatcher(database, lambda: woken.append(1))
    sender.start()
    try:
        wait_until(lambda: messages(database) == 0, "the rows to be removed")
    finally:
        sender.stop()
    assert woken
