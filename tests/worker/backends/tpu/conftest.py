"""A backend over a simulated cloud, with nothing left in it at the end; a client of TPU VMs over objects in memory."""

import json
from concurrent.futures import Executor, Future
from types import SimpleNamespace

import pytest
from support.backend_harness import BackendHarness
from support.constants import set_constants
from support.google.production import GENERATIONS, PROJECT
from support.google.tpu_simulator import (
    NO_RESOURCES,
    SHORT_TIMES,
    MemoryResourceInventory,
    running_simulator,
    tpu_settings,
    with_times,
)

from core.errors import StoreUnavailable
from core.settings import Settings
from worker.backends.tpu.vm.client import VmClient


@pytest.fixture
def simulator():
    with running_simulator() as running:
        yield running


@pytest.fixture
def make_harness(simulator, tmp_path):
    """Makes places; at the end their resources are released as a worker's teardown does, and nothing may be left."""
    places = []

    def make(**options):
        settings = tpu_settings(simulator, **options)
        place = BackendHarness(
            "tpu", tmp_path, tpu=settings, resource_inventory=MemoryResourceInventory(), machine_type="TPU"
        )
        places.append(place)
        return place

    yield make
    simulator.clear_all_faults()
    for place in places:
        place.clear()
    assert simulator.cloud.remaining_resources() == NO_RESOURCES


@pytest.fixture
def make_google_harness(google, tmp_path):
    """Makes backends with production settings: real clients, TLS, a key file, and no simulator."""
    places = []

    def make(machine_type="TPU", docker=None, bucket=None, token_port=0, **options):
        project = {"project": PROJECT, "zones": list(GENERATIONS), "placement": "grpc"}
        settings = with_times(project | SHORT_TIMES | options)
        set_constants({"worker.backends.base.TOKEN_PORT": token_port})
        place = BackendHarness(
            "tpu",
            tmp_path,
            docker,
            tpu=settings,
            bucket=bucket or {},
            resource_inventory=MemoryResourceInventory(),
            machine_type=machine_type,
        )
        assert (place.settings.tpu.simulator_address, place.settings.gcs.endpoint) == (None, None)
        places.append(place)
        return place

    yield make
    google.clear_faults()
    for place in places:
        place.clear()
        place.backend.remove_orphans(lambda *_: False, lambda _: True)  # objects of starts that were refused
    assert (google.cloud.remaining_resources(), google.objects("jobs/j")) == (NO_RESOURCES, [])


class MemoryRelay:
    """Objects of an attempt, in memory."""

    bucket, prefix = "b", "jobs/j1/vm/1/"

    def __init__(self):
        self.objects = {}
        self.hosts = {0: self}
        self.away = False
        self.request = lambda: None

    def put(self, name, content):
        self.request()
        self.objects[name] = content if isinstance(content, bytes) else content.read_bytes()

    def get(self, name, most=1 << 16, start=0):
        self.request()
        if self.away:
            raise StoreUnavailable("away")
        return self.objects[name][start:][:most] if name in self.objects else None

    def report(self, **report):
        self.objects["report"] = json.dumps(report).encode()

    def clear(self):
        self.objects.clear()

    def of_host(self, rank):
        return self.hosts.setdefault(rank, MemoryRelay())


@pytest.fixture
def relay():
    return MemoryRelay()


@pytest.fixture
def vms(relay):
    times = {
        "vm_poll_seconds": 0.01,
        "poll_seconds": 0.01,
        "probe_seconds": 0.1,
        "unhealthy_seconds": 0.1,
        "vm_silent_seconds": 0.1,
    }
    settings = Settings(tpu=with_times(times))
    bucket = SimpleNamespace(mailbox=lambda _job, _attempt: relay, renew_token=lambda _job, _attempt: None)
    client = VmClient(lambda _region: bucket, settings)
    client.pool = ImmediateExecutor()
    return client


@pytest.fixture
def handle(tmp_path):
    place = {"zone": "us-central1-b", "control": str(tmp_path), "hosts": [], "stop_grace": 30.0}
    return {"name": "j1-1", "job_id": "j1", "attempt": 1} | place


class ImmediateExecutor(Executor):
    """Runs what is submitted at once: a poll decides after its look at the bucket, never beside it."""

    def submit(self, function, /, *args):
        future = Future()
        future.set_result(function(*args))
        return future


@pytest.fixture
def defaults(relay):
    """A client with the times of the default settings."""
    bucket = SimpleNamespace(mailbox=lambda _job, _attempt: relay, renew_token=lambda _job, _attempt: None)
    client = VmClient(lambda _region: bucket, Settings())
    client.pool = ImmediateExecutor()
    return client
