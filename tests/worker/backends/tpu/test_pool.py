"""A pool of nodes that are there: jobs take them in turn and leave them running."""

import threading

import grpc
import pytest
from support.backend_harness import BackendHarness
from support.google.tpu_faults import TpuFault
from support.google.tpu_simulator import ZONES, expect_launch_error, no_job_ended

from core.errors import LeaseLost
from gradient_server.simulator.tpu.state import Health
from worker.backends.base import LaunchError


@pytest.fixture
def pool(simulator):
    """Two nodes that somebody made by hand."""
    parent = f"projects/simulated/locations/{ZONES[0]}"
    for name in ("mine", "yours"):
        simulator.cloud.create_node(parent, name, None)
    yield [f"{ZONES[0]}/mine", f"{ZONES[0]}/yours"]
    for name in simulator.cloud.remaining_resources()[0]:
        simulator.cloud.delete_node(name)


@pytest.fixture
def with_pool(make_harness, pool):
    return lambda **options: make_harness(pool={"TPU": pool}, **options)


def test_jobs_take_the_nodes_of_a_pool_in_turn(with_pool, tmp_path):
    place = with_pool(provision_timeout_seconds=0.3)
    first, second = (
        BackendHarness(
            "tpu",
            tmp_path / str(number),
            tpu=place.settings.tpu,
            resource_inventory=place.resource_inventory,
            machine_type="TPU",
        )
        for number in range(2)
    )
    command = 'echo "$TPU_NAME"; sleep 600'
    handles = [one.launch(one.spec(command)) for one in (first, second)]
    assert [handle["device"]["name"].partition("/")[2] for handle in handles] == ["mine", "yours"]
    reason, detail = expect_launch_error(place)
    assert reason == "tpu_capacity"
    assert "other jobs use 2 of the pool's 2 TPUs" in detail
    first.backend.destroy(handles[0])
    assert place.launch(place.spec("true"))["device"]["name"].endswith("/mine")
    second.clear()


def test_a_node_of_a_pool_is_not_deleted(with_pool, simulator):
    place = with_pool()
    handle = place.launch(place.spec("true"))
    place.backend.destroy(handle)
    assert place.backend.owned() == []
    assert place.backend.remove_orphans(lambda *_: False, no_job_ended) == 0
    assert len(simulator.cloud.remaining_resources()[0]) == 2


def test_an_ill_node_of_a_pool_is_passed_over(with_pool, simulator):
    simulator.cloud.set_health("mine", Health.UNHEALTHY_TENSORFLOW)
    place = with_pool()
    assert place.launch(place.spec("true"))["device"]["name"].endswith("/yours")


def test_nodes_that_do_not_exist_are_named(with_pool, simulator):
    place = with_pool()
    for name in simulator.cloud.remaining_resources()[0]:
        simulator.cloud.delete_node(name)
    reason, detail = expect_launch_error(place)
    assert (reason, detail.count("from GRADIENT_TPU__POOL does not exist")) == ("tpu_denied", 2), detail


def test_a_started_job_keeps_its_node_while_the_api_is_away(with_pool, simulator):
    """Its worker died before it recorded the start; the worker that adopts the job launches it again."""
    place = with_pool()
    spec = place.spec("sleep 600", stop_grace=0)
    place.launch(spec)
    held, waited_for = [], []

    def progress(_phase, detail):
        entries = place.resource_inventory.list_of_attempt(spec.job_id, 1)
        held.append([entry.name for entry in entries if not entry.over])
        waited_for.append(detail)
        simulator.clear_all_faults()

    simulator.inject("GetNode", TpuFault(grpc.StatusCode.UNAVAILABLE, times=0))
    again = place.new_instance().launch(spec, lambda: None, progress)
    assert waited_for[0].startswith("requested again, because Google reports: 503")
    assert all(names == [again["device"]["name"]] for names in held)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED])
def test_a_host_that_was_frozen_leaves_its_successor_the_node(with_pool, simulator, code):
    """Frozen while it checks the node; it resumes with an error, and another worker runs the job there by now."""
    place = with_pool()
    spec, checks = place.spec("sleep 600", stop_grace=0), []

    def confirm():
        checks.append(1)
        if len(checks) == 2:  # the first is that before anything bills
            raise LeaseLost("another worker holds the job")

    simulator.inject("GetNode", TpuFault(code, times=0))
    with pytest.raises(LeaseLost):
        place.backend.launch(spec, confirm, lambda *_: None)
    (entry,) = place.resource_inventory.list_of_attempt(spec.job_id, 1)
    assert not entry.over


def test_many_jobs_at_once_never_share_a_node(with_pool, tmp_path):
    place = with_pool(provision_timeout_seconds=0.2)
    taken, barrier = [], threading.Barrier(6)

    def take(number):
        one = BackendHarness(
            "tpu",
            tmp_path / str(number),
            tpu=place.settings.tpu,
            resource_inventory=place.resource_inventory,
            machine_type="TPU",
        )
        spec = one.spec("sleep 600", stop_grace=0)
        barrier.wait()
        try:
            taken.append((one, one.launch(spec)))
        except LaunchError:
            return

    threads = [threading.Thread(target=take, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(handle["device"]["name"] for _, handle in taken) == sorted(place.settings.tpu.pool["TPU"])
    for one, handle in taken:
        one.backend.destroy(handle)
