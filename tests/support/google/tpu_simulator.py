"""A simulated cloud with TPUs, and a device in it, for tests."""

import contextlib
import threading
import time

import pytest
from support.constants import set_constants
from support.deployment import wait_until
from support.google.tpu_faults import ControlledTpuProject, FaultyTpuSimulator

from gradient_server.simulator.cloud import FakeDevice
from worker.backends.base import LaunchError
from worker.backends.tpu import times
from worker.backends.tpu.resource_inventory import ResourceEntry

ZONES = ["us-central1-b", "us-west4-a"]
NO_RESOURCES = ([], [])
"""Nodes and queued resources of the simulator when everything was deleted."""
LATE_SECONDS = 20.0
"""The service may see what it sees by its polls so much later, on a busy machine; earlier is an error."""


def no_job_ended(_job_id):
    """Report no job as over."""
    return False


@contextlib.contextmanager
def running_simulator(**options):
    """A running simulator whose nodes are all the same device."""
    device = FakeDevice().start()
    simulator = FaultyTpuSimulator(ControlledTpuProject(device=("127.0.0.1", device.port), **options))
    simulator.start()
    try:
        yield simulator
    finally:
        simulator.stop()
        device.stop()


SHORT_TIMES = {
    "runner": "process",
    "poll_seconds": 0.02,
    "watch_seconds": 0.05,
    "timeout_seconds": 30.0,
    "unhealthy_seconds": 0.2,
    "api_retry_seconds": 30.0,
    "probe_seconds": 0.2,
    "provision_timeout_seconds": 20.0,
    "orphan_grace_seconds": 0.0,
    "grant_seconds": 0.5,
}
"""TPU settings and constants, with short timeouts."""


def tpu_settings(simulator, **options):
    """Return TPU settings for the simulated cloud, with short timeouts."""
    return with_times(tpu_options(simulator, **options))


def tpu_options(simulator, **options):
    return {"simulator_address": simulator.address, "zones": ZONES} | SHORT_TIMES | options


def with_times(options):
    """Return TPU settings; set the constants that are among the options until the end of the test."""
    settings, constants = split_times(options)
    set_constants(constants)
    return settings


def split_times(options):
    """Return TPU settings, and the constants among them by their full names."""
    constants = {name for name in options if hasattr(times, name.upper())}
    settings = {name: value for name, value in options.items() if name not in constants}
    return settings, {f"{times.__name__}.{name.upper()}": options[name] for name in constants}


class MemoryResourceInventory:
    """An inventory of billed resources in memory, for a backend without a database."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self._lock = threading.Lock()

    def installation(self) -> str:
        return "gtest"

    def record_intent(self, kind, name, *, job_id, attempt, price=None):
        with self._lock:
            row = next((row for row in self.rows if row["name"] == name and not row["gone"]), None)
            if row is None:
                row = {"kind": kind, "name": name, "job_id": job_id, "attempt": attempt, "operation": None}
                row |= {"id": len(self.rows), "gone": False, "deleting": False, "states": [], "detail": None}
                row |= {"since": None, "until": None, "price": price, "recorded_at": time.time()}
                self.rows.append(row)
            return self._entry(row) if (row["job_id"], row["attempt"]) == (job_id, attempt) else None

    def update(self, entry, *, state, health=None, detail=None, operation=None):
        row = self.rows[entry.id]
        row["states"].append((state, health))
        row["operation"] = operation or row["operation"]
        row["detail"] = detail or row["detail"]

    def record_billing(self, entry, *, since=None, until=None, price=None):
        with self._lock:
            row = self.rows[entry.id]
            if since is not None and row["since"] is None:
                row |= {"since": since, "price": price or row["price"]}
            if until is not None and row["since"] is not None and row["until"] is None:
                row["until"] = until

    def record_deletion(self, entry, *, gone, detail=None):
        row = self.rows[entry.id]
        row["gone" if gone else "deleting"] = True
        row["detail"] = detail or row["detail"]

    def record_refusal(self, why):
        self.refusal = why

    def record_unowned(self, owners):
        self.unowned = owners

    def list_of_attempt(self, job_id, attempt):
        return [self._entry(row) for row in self.rows if (row["job_id"], row["attempt"]) == (job_id, attempt)]

    def list_on_host(self):
        return [entry for entry in map(self._entry, self.rows) if not entry.over]

    def list_orphaned(self):
        return [self._entry(row) for row in self.rows if not row["gone"]]

    def states(self, index=0):
        return [state for state, _ in self.rows[index]["states"]]

    def billed(self):
        return [row["name"] for row in self.rows if row["since"] is not None]

    def billing(self, index=0):
        """Return start and end of billing, in Unix time, and the price if it is not the list price."""
        row = self.rows[index]
        return row["since"], row["until"], row["price"]

    def _entry(self, row):
        over = row["gone"] or row["deleting"]
        known = {name: row[name] for name in ("id", "kind", "name", "job_id", "attempt", "operation")}
        return ResourceEntry(**known, recorded_at=row["recorded_at"], over=over)


def expect_launch_error(harness, spec=None, confirm=lambda: None):
    """Return the reason and detail of a launch that must fail."""
    with pytest.raises(LaunchError) as raised:
        harness.backend.launch(spec or harness.spec("true"), confirm, lambda *_: None)
    return raised.value.reason, raised.value.detail


def billed(place, google):
    """Wait for the end of both bills, and compare them; return the start and the end of ours."""
    inventory = place.resource_inventory
    wait_until(lambda: inventory.billing()[1] is not None, "the end of the bill")
    ((begin, end),) = google.cloud.bills.values()
    since, until, _ = inventory.billing()
    # A start is dated by the last look before it, at the earliest by the request.
    assert inventory.list_of_attempt(place.job_id, 1)[0].recorded_at <= since < begin + LATE_SECONDS
    assert end <= until < end + LATE_SECONDS
    return since, until
