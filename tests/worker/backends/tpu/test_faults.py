"""Faults of the cloud during a job: no resource is billed afterwards."""

import statistics
import sys
import time

import grpc
import pytest
from support.deployment import wait_until
from support.google.tpu_faults import DENIED, HANG, TpuFault
from support.google.tpu_simulator import NO_RESOURCES, ZONES, expect_launch_error, no_job_ended

from core.errors import LeaseLost
from gradient_server.simulator.tpu.state import Health, NodeState
from worker.backends.base import LaunchError

pytestmark = pytest.mark.integration


def running(place, command="echo up; sleep 600", **options):
    spec = place.spec(command, **options)
    handle = place.launch(spec)
    wait_until(lambda: place.output(spec).startswith(b"up"), "the job to run")
    return handle


def ended(place, handle):
    exit_ = wait_until(lambda: place.backend.ended(handle), "the job to end")
    place.backend.destroy(handle)
    return exit_.reason


def node_id(place):
    return f"gj-{place.job_id}-1"


WAYS = pytest.mark.parametrize("way", [pytest.param("node", marks=pytest.mark.slow), "queued"])


def test_what_bills_is_written_down_before_it_is_asked_for(make_harness, simulator):
    place = make_harness(provisioning="node")
    inventory, before = place.resource_inventory, []
    intend = inventory.record_intent
    inventory.record_intent = lambda *args, **options: (
        before.append(list(simulator.cloud.record)),
        intend(*args, **options),
    )[1]
    place.launch(place.spec("true"))
    assert before == [[]]
    assert inventory.billed() == [f"{ZONES[0]}/{node_id(place)}"]


def test_without_room_anywhere_it_says_so(make_harness, simulator):
    simulator.cloud.room = 0
    reason, detail = expect_launch_error(make_harness(provisioning="node"))
    assert reason == "tpu_capacity"
    assert all(zone in detail for zone in ZONES)
    assert simulator.cloud.record == []


def test_without_room_it_queues_says_so_and_goes_on(make_harness, simulator):
    simulator.cloud.capacity[ZONES[0]] = 0
    place, said = make_harness(zones=ZONES[:1]), []

    def progress(_, words):
        said.append(words)
        if "WAITING_FOR_RESOURCES since" in words:
            simulator.cloud.capacity[ZONES[0]] = 1

    handle = place.launch(place.spec("exit 3"), progress=progress)
    assert place.wait(handle).code == 3
    assert any(f"queued resource {ZONES[0]}/{node_id(place)}: WAITING_FOR_RESOURCES since" in one for one in said)


def test_a_queue_that_brings_nothing_in_time_is_left(make_harness, simulator):
    simulator.cloud.room = 0
    reason, detail = expect_launch_error(make_harness(provision_timeout_seconds=0.4))
    assert (reason, simulator.cloud.remaining_resources()) == ("tpu_capacity", NO_RESOURCES)
    assert "not available within" in detail
    assert [made for made, _ in simulator.cloud.record] == ["created", "deleted"] * 2, "both zones were queued in"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.INTERNAL, "tpu_failed"),
        (grpc.StatusCode.FAILED_PRECONDITION, "tpu_denied"),
    ],
)
@WAYS
def test_an_operation_that_fails_late(make_harness, simulator, way, code, reason):
    simulator.cloud.late_errors.append((code, "it did not work out"))
    assert expect_launch_error(make_harness(provisioning=way)) == (reason, "it did not work out")
    assert simulator.cloud.remaining_resources() == NO_RESOURCES


def test_an_operation_that_finds_no_room_late_has_the_next_zone_tried(make_harness, simulator):
    simulator.cloud.late_errors.append((grpc.StatusCode.RESOURCE_EXHAUSTED, "no more room"))
    place = make_harness(provisioning="node")
    place.launch(place.spec("true"))
    assert [made for made, _ in simulator.cloud.record] == ["created", "deleted", "created"]


def test_a_kind_of_node_that_google_offers_no_more_is_refused_in_its_words(make_harness, simulator):
    simulator.cloud.deny_tpu_node = True
    assert expect_launch_error(make_harness(provisioning="node")) == ("tpu_denied", DENIED)


@WAYS
def test_a_missing_permission_is_told_at_once(make_harness, simulator, way):
    simulator.inject("*", TpuFault(grpc.StatusCode.PERMISSION_DENIED, "Permission 'tpu.nodes.create' denied", times=0))
    reason, detail = expect_launch_error(make_harness(provisioning=way))
    assert (reason, detail) == ("tpu_denied", "Permission 'tpu.nodes.create' denied")


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
@WAYS
def test_an_api_that_is_away_for_a_while_is_waited_for(make_harness, simulator, way, code):
    rate = "RATE_LIMIT_EXCEEDED" if code is grpc.StatusCode.RESOURCE_EXHAUSTED else ""
    simulator.inject("*", TpuFault(code, "later", rate, times=5))
    place = make_harness(provisioning=way)
    assert place.wait(place.launch(place.spec("exit 4"))).code == 4


@pytest.mark.parametrize(
    "fault",
    [
        TpuFault(grpc.StatusCode.UNAVAILABLE, "gone to lunch", times=0),
        TpuFault(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests", "RATE_LIMIT_EXCEEDED", times=0),
        TpuFault(seconds=HANG, times=0),
    ],
)
def test_an_api_that_stays_away_ends_the_start(make_harness, simulator, fault):
    simulator.inject("*", fault)
    began = time.monotonic()
    assert expect_launch_error(make_harness(api_retry_seconds=0.3, timeout_seconds=0.3))[0] == "tpu_api_unavailable"
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("fault", [TpuFault(grpc.StatusCode.UNAVAILABLE, done=True), TpuFault(seconds=HANG, done=True)])
@pytest.mark.parametrize(("way", "method"), [("node", "CreateNode"), ("queued", "CreateQueuedResource")])
def test_what_was_made_though_the_answer_was_lost_is_taken(make_harness, simulator, way, method, fault):
    simulator.inject(method, fault)
    place = make_harness(provisioning=way, timeout_seconds=0.5)
    assert place.wait(place.launch(place.spec("true"))).code == 0
    made = [name for what, name in simulator.cloud.record if what == "created"]
    assert len(made) == len(set(made)), "nothing was made twice"


@WAYS
def test_whoever_comes_after_a_crash_goes_on_with_the_same_device(make_harness, simulator, way):
    simulator.cloud.create_seconds = 0.3
    place = make_harness(provisioning=way)

    class Crash(Exception):
        pass

    def progress(*_):
        if simulator.cloud.remaining_resources() != NO_RESOURCES:
            raise Crash

    spec = place.spec("true")
    with pytest.raises(Crash):
        place.backend.launch(spec, lambda: None, progress)
    heir = place.new_instance()
    handle = heir.launch(spec, lambda: None, lambda *_: None)
    assert wait_until(lambda: heir.ended(handle), "the job to end").code == 0
    heir.destroy(handle)
    made = [name for what, name in simulator.cloud.record if what == "created"]
    assert made == list(dict.fromkeys(made))


def test_a_ready_node_that_stays_ill_is_given_back(make_harness, simulator):
    place = make_harness(provisioning="node")

    def progress(*_):
        if simulator.cloud.remaining_resources() != NO_RESOURCES:
            simulator.cloud.set_health(node_id(place), Health.UNHEALTHY_MAINTENANCE, "in the shop")

    with pytest.raises(LaunchError) as raised:
        place.backend.launch(place.spec("true"), lambda: None, progress)
    assert raised.value.reason == "tpu_unhealthy"
    assert "READY, but UNHEALTHY_MAINTENANCE: in the shop" in raised.value.detail
    assert simulator.cloud.remaining_resources() == NO_RESOURCES


def test_a_closed_port_is_found_before_the_job_starts(make_harness, simulator):
    simulator.cloud.device = ("127.0.0.1", 9)  # of a service that nobody runs
    place = make_harness()
    spec = place.spec("echo ran")
    reason, detail = expect_launch_error(place, spec)
    assert reason == "tpu_unreachable"
    assert detail.startswith("grpc://127.0.0.1:9: ")
    assert place.output(spec) == b""
    assert simulator.cloud.remaining_resources() == NO_RESOURCES


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda cloud, name: cloud.preempt(name), "preempted"),
        (lambda cloud, name: cloud.set_state(name, NodeState.STOPPED), "tpu_lost"),
        (lambda cloud, name: cloud.set_health(name, Health.UNHEALTHY_TENSORFLOW), "tpu_unhealthy"),
        (lambda cloud, name: cloud.suspend(name, by_user=False), "tpu_suspended"),
        (lambda cloud, name: cloud.suspend(name, by_user=True), "tpu_suspended"),
    ],
)
def test_a_job_whose_device_is_lost_is_ended_with_the_reason(make_harness, simulator, harm, reason):
    place = make_harness()
    handle = running(place)
    assert place.backend.ended(handle) is None
    harm(simulator.cloud, node_id(place))
    assert ended(place, handle) == reason
    assert simulator.cloud.remaining_resources() == NO_RESOURCES


def test_spot_capacity_that_google_takes_back_is_preempted(make_harness, simulator):
    place = make_harness(spot=True)
    handle = running(place)
    simulator.cloud.suspend(node_id(place), by_user=False)
    assert ended(place, handle) == "preempted"


def test_a_job_that_fails_because_its_device_is_lost_is_not_blamed(make_harness, simulator):
    """The job notices the loss by its broken connection, before the worker polls."""
    place = make_harness(watch_seconds=600.0)
    spec = place.spec('echo up; while [ ! -e "$PWD/broken" ]; do sleep 0.05; done; exit 1')
    handle = place.launch(spec)
    wait_until(lambda: place.output(spec) == b"up\n", "the job to run")
    simulator.cloud.preempt(node_id(place))
    (spec.workspace / "broken").touch()
    assert ended(place, handle) == "preempted"


def test_a_job_that_ignores_signals_is_killed_after_its_grace(make_harness, simulator):
    place = make_harness()
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    handle = running(place, f'exec "{sys.executable}" -c "{program}"', stop_grace=0.3)
    simulator.cloud.preempt(node_id(place))
    assert ended(place, handle) == "preempted"


def test_another_worker_knows_why_the_job_was_ended(make_harness, simulator):
    place = make_harness()
    handle = running(place)
    simulator.cloud.preempt(node_id(place))
    wait_until(lambda: place.backend.ended(handle), "the job to end")
    simulator.inject("*", TpuFault(grpc.StatusCode.UNAVAILABLE, times=0))
    assert place.new_instance().ended(handle).reason == "preempted"


def test_an_api_that_is_away_says_nothing_of_a_running_job(make_harness, simulator):
    place = make_harness(timeout_seconds=3.0)
    handle = running(place, 'echo up; while [ ! -e "$PWD/end" ]; do sleep 0.05; done; exit 6')
    simulator.inject("*", TpuFault(seconds=HANG, times=0))
    polls = []
    while sum(polls) + len(polls) * 0.05 < 1.0:
        began = time.monotonic()
        assert place.backend.ended(handle) is None
        polls.append(time.monotonic() - began)
        time.sleep(0.05)
    assert statistics.median(polls) < 2.5, "whoever watches is not kept waiting"  # one may be, by a busy machine
    (place.spec("true").workspace / "end").touch()
    exit_ = place.wait(handle)
    assert (exit_.code, exit_.reason) == (6, None)


def test_a_teardown_is_repeated_until_the_cloud_takes_it(make_harness, simulator):
    place = make_harness(provisioning="node")
    handle = place.launch(place.spec("true"))
    simulator.inject("DeleteNode", TpuFault(grpc.StatusCode.UNAVAILABLE, "not now"))
    with pytest.raises(LaunchError, match="tpu_api_unavailable"):
        place.backend.destroy(handle)
    place.backend.destroy(handle)
    assert simulator.cloud.remaining_resources() == NO_RESOURCES


def test_a_teardown_that_stays_refused_is_left_to_the_sweep(make_harness, simulator):
    place = make_harness(provisioning="node", api_retry_seconds=0.0)
    handle = place.launch(place.spec("true"))
    simulator.inject("DeleteNode", TpuFault(grpc.StatusCode.PERMISSION_DENIED, "no"))
    place.backend.destroy(handle)
    assert len(simulator.cloud.remaining_resources()[0]) == 1
    assert place.backend.remove_orphans(lambda *_: False, no_job_ended) == 1
    assert simulator.cloud.remaining_resources() == NO_RESOURCES


def test_the_sweep_leaves_what_a_job_owns(make_harness, simulator):
    place = make_harness()
    place.launch(place.spec("sleep 600"))
    assert place.backend.remove_orphans(lambda *asked: asked == (place.job_id, 1), no_job_ended) == 0
    assert simulator.cloud.remaining_resources() != NO_RESOURCES


@pytest.mark.parametrize(("way", "count"), [("node", 1), ("queued", 1)])
def test_the_sweep_finds_by_its_label_what_nobody_wrote_down(make_harness, simulator, way, count):
    place = make_harness(provisioning=way)
    place.launch(place.spec("true"))
    place.resource_inventory.rows.clear()
    assert place.backend.remove_orphans(lambda *_: False, no_job_ended) == count
    assert simulator.cloud.remaining_resources() == NO_RESOURCES


def test_the_sweep_touches_neither_what_is_young_nor_what_is_others(make_harness, simulator):
    place = make_harness(orphan_grace_seconds=600.0)
    place.launch(place.spec("true"))
    forgotten = list(place.resource_inventory.rows)
    place.resource_inventory.rows.clear()
    assert place.backend.remove_orphans(lambda *_: False, no_job_ended) == 0, "it is young"
    place = make_harness()
    place.resource_inventory.installation = lambda: "another"
    assert place.backend.remove_orphans(lambda *_: False, no_job_ended) == 0, "it is another service's"
    assert simulator.cloud.remaining_resources() != NO_RESOURCES
    place.resource_inventory.rows = forgotten


def test_what_should_be_gone_is_deleted_again_also_while_its_job_runs_elsewhere(make_harness, simulator):
    """One zone's node was to be deleted and the next zone had one, but the deletion did not take effect."""
    simulator.cloud.late_errors.append((grpc.StatusCode.RESOURCE_EXHAUSTED, "no more room"))
    place = make_harness(provisioning="node")
    place.launch(place.spec("sleep 600"))
    first = f"projects/simulated/locations/{ZONES[0]}"
    simulator.cloud.create_node(first, node_id(place), None)
    row = place.resource_inventory.rows[0]
    row["gone"], row["deleting"] = False, True
    assert place.backend.remove_orphans(lambda *_: True, no_job_ended) == 0
    assert simulator.cloud.nodes(first) == []
    assert len(simulator.cloud.remaining_resources()[0]) == 1, "the job's own stays"


def test_a_host_that_was_frozen_leaves_the_next_attempt_its_folders_in_the_bucket(make_harness, monkeypatch):
    place, completed = make_harness(), []
    handle = place.launch(place.spec("true"))
    place.wait(handle)
    monkeypatch.setattr(place.backend.output_collector, "complete", lambda job_id, *_: completed.append(job_id))
    place.resource_inventory.record_intent("node", "next", job_id=place.job_id, attempt=2)
    place.backend.destroy(handle)
    assert completed == []
    place.backend.destroy(handle | {"attempt": 2})
    assert completed == [place.job_id]


@WAYS
def test_a_host_that_was_frozen_leaves_its_successor_the_device(make_harness, simulator, way):
    """Frozen while it asks for the device; it resumes with an error, and another worker has the job by now."""
    place, reports = make_harness(provisioning=way), []

    def report(_, detail):
        reports.append(detail)
        if len(reports) == 2:
            raise LeaseLost("another worker holds the job")

    simulator.inject("*", TpuFault(grpc.StatusCode.INVALID_ARGUMENT, times=0))
    with pytest.raises(LeaseLost):
        place.backend.launch(place.spec("true"), lambda: None, report)
    (entry,) = place.resource_inventory.list_of_attempt(place.job_id, 1)
    assert not entry.over
