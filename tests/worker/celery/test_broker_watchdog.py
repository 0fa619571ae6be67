"""The deaf probe: only messages that were sent and did not come back make a worker deaf."""

import threading

import pytest
from support.constants import set_constants
from support.deployment import wait_until

from core.errors import StoreUnavailable
from worker.celery.broker_watchdog import BrokerWatchdog

WATCHDOG = "worker.celery.broker_watchdog"


@pytest.fixture
def probing():
    probes = []

    def start(ping, *, note=lambda: None, silent_seconds=0.05):
        deaf = threading.Event()
        set_constants({f"{WATCHDOG}.PING_SECONDS": 0.01, f"{WATCHDOG}.SILENT_SECONDS": silent_seconds})
        probe = BrokerWatchdog(lambda: ping(probe), note, deaf.set)
        probes.append(probe)
        probe.start()
        return deaf, probe

    yield start
    for probe in probes:
        probe.stop()
        probe._thread.join(60)


def counted(pings, action):
    def ping(probe):
        pings.append(1)
        action(probe)

    return ping


def away(_):
    raise ConnectionError("away")


def test_a_worker_that_receives_its_own_pings_is_not_silent(probing):
    pings, noted = [], []
    deaf, _ = probing(counted(pings, BrokerWatchdog.ping_received), note=lambda: noted.append(1), silent_seconds=5)
    wait_until(lambda: len(pings) > 20, "pings")
    assert not deaf.is_set()
    assert len(noted) >= 20


def test_a_worker_that_never_receives_its_own_pings_is_silent(probing):
    deaf, _ = probing(lambda _: None)
    assert deaf.wait(30)


def test_a_broker_that_is_away_makes_no_worker_silent(probing):
    pings = []
    deaf, _ = probing(counted(pings, away), silent_seconds=0.02)
    wait_until(lambda: len(pings) > 20, "pings")
    assert not deaf.is_set()


@pytest.mark.parametrize("error", [StoreUnavailable("away"), RuntimeError("odd")])
def test_a_database_that_is_away_makes_no_worker_silent(probing, error):
    pings = []

    def fail():
        raise error

    deaf, _ = probing(counted(pings, BrokerWatchdog.ping_received), note=fail, silent_seconds=5)
    wait_until(lambda: len(pings) > 5, "pings")
    assert not deaf.is_set()
