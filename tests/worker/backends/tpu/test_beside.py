"""Jobs beside the device, also without the database, and the creation and start-up script of a new node."""

import sys
from types import SimpleNamespace

import pytest
from support.backend_harness import BackendHarness
from support.google.tpu_simulator import NO_RESOURCES, MemoryResourceInventory, tpu_settings

from core.errors import ExtraMissing, StoreUnavailable
from core.settings import Settings
from worker.attempt.control import AttemptControl
from worker.attempt.scratch import Scratch
from worker.attempt.self_fence import SelfFence
from worker.backends import make_backend


@pytest.fixture
def beside(simulator, docker_server, tmp_path):
    settings = {"tpu": tpu_settings(simulator, runner="docker"), "docker": docker_server.settings()}
    place = BackendHarness(
        "tpu", tmp_path, resource_inventory=MemoryResourceInventory(), machine_type="TPU", **settings
    )
    yield place
    place.clear()


def test_a_container_finds_the_device_and_both_are_gone_afterwards(beside, simulator, docker_server):
    handle = beside.launch(spec := beside.spec('echo "$TPU_GRPC_URL in $PWD"; exit 4'))
    assert beside.backend.capabilities.containers
    assert beside.wait(handle).code == 4
    address, port = simulator.cloud.device
    assert beside.output(spec).decode() == f"grpc://{address}:{port} in /paperspace\n"
    beside.backend.destroy(handle)
    with docker_server.client() as client:
        assert client.containers(all=True, filters={"label": [f"gradient.job={beside.job_id}"]}) == []
    assert simulator.cloud.remaining_resources() == NO_RESOURCES


def test_a_container_that_cannot_be_started_gives_the_device_back(beside, simulator):
    with pytest.raises(Exception, match="image_pull"):
        beside.launch(beside.spec("true", container="gradient-test:none"))
    assert simulator.cloud.remaining_resources() == NO_RESOURCES
    assert [what for what, _ in simulator.cloud.record].count("created") == 2


@pytest.fixture
def cut_off(make_harness, monkeypatch):
    """A backend, and a function after which its record of resources does not answer."""
    place = make_harness()

    def fail(*_):
        raise StoreUnavailable("The database does not answer.")

    def cut():
        for name in ("list_on_host", "list_of_attempt"):
            monkeypatch.setattr(place.resource_inventory, name, fail)

    yield place, cut
    monkeypatch.undo()


def test_a_host_cut_off_from_the_database_ends_jobs_beside_their_tpus(cut_off):
    """Other hosts start them again."""
    place, cut = cut_off
    spec, handle = place.running("echo up; exec sleep 600")
    cut()
    scratch = Scratch(place.root / "attempts", spec.job_id, spec.attempt)
    context = SimpleNamespace(
        settings=place.settings, backend=lambda _: place.backend, scratch=lambda _job, _attempt: scratch
    )
    job = SimpleNamespace(id=spec.job_id, attempt=1, backend="tpu", max_attempts=2, spec=spec.job_spec)
    job.log_context = dict
    fence, signals = SelfFence(context), AttemptControl()
    fence.record_contact(-1e6)
    fence.check([(job, signals)])
    assert signals.contact_lost
    assert place.wait(handle).code == 143


def test_no_device_counts_as_destroyed_while_the_database_is_away(cut_off):
    place, cut = cut_off
    spec = place.spec("true")
    place.wait(place.launch(spec))
    cut()
    [owned] = place.backend.owned()
    assert owned["name"] == spec.name
    with pytest.raises(StoreUnavailable):
        place.backend.destroy(owned)


def test_without_googles_library_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("worker.backends.tpu.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(ExtraMissing, match=r"gradient-jobs\[tpu\]"):
        make_backend("tpu", Settings())
