"""Jobs on a TPU VM: options that are refused, and how the worker validates what the VM reports."""

import time
from pathlib import Path

import pytest
from support.backend_harness import BackendHarness
from support.deployment import wait_until
from support.google.tpu_simulator import MemoryResourceInventory, expect_launch_error, tpu_settings

from worker.backends.base import LaunchError
from worker.backends.tpu import cancellation
from worker.backends.tpu.storage.errors import BucketRefused
from worker.backends.tpu.vm import client, follower, reports
from worker.backends.tpu.vm.follower import read_left
from worker.runner.control_files import read_control
from worker.runner.stores import PART_BYTES


def ended(vms, handle):
    return wait_until(lambda: vms.ended(handle), "the end")


@pytest.mark.parametrize("here", [0, 1, 5, PART_BYTES - 1, PART_BYTES, PART_BYTES + 2, PART_BYTES + 3])
def test_wherever_the_last_worker_died_the_rest_is_added_once(vms, relay, handle, tmp_path, here):
    output = bytes(number % 251 for number in range(PART_BYTES)) + b"end"
    (tmp_path / "log").write_bytes(output[:here])
    relay.objects |= {"log/0": output[:PART_BYTES], "log/1": output[PART_BYTES:]}
    relay.report(end={"code": 0})
    assert ended(vms, handle).code == 0
    assert (tmp_path / "log").read_bytes() == output


def test_a_disk_that_was_full_for_a_moment_truncates_no_output(
    defaults, relay, handle, tmp_path, monkeypatch, full_disk
):
    clock = Clock(monkeypatch)

    def look_again():
        clock.sleep(2.0)
        return defaults.ended(handle)

    relay.objects["log/0"] = b"abcd"
    look_again()
    relay.objects["log/0"] += b"efgh"
    full_disk.left = [2]
    look_again()
    assert (tmp_path / "log").read_bytes() == b"abcdef"
    full_disk.left = None
    relay.objects["log/0"] += b"ijkl"
    relay.report(end={"code": 0})
    look_again()
    assert (tmp_path / "log").read_bytes() == b"abcdefghijkl"


def test_what_a_job_puts_among_the_parts_is_passed_over(vms, relay, handle, tmp_path):
    relay.objects |= {"log/0": b"z" * (PART_BYTES + 1), "log/1": b"", "log/-1": b"x", "log/word": b"x", "log/2": b"gap"}
    relay.report(end={"code": 1})
    assert ended(vms, handle).code == 1
    assert (tmp_path / "log").read_bytes() == b"z" * PART_BYTES


def missing(tmp_path, hosts=0):
    """Return why artifacts are missing."""
    [skipped], _ = read_left(tmp_path, hosts)
    return skipped.why.removeprefix("on the TPU VM, ")


def test_a_stop_request_reaches_the_vm_and_one_that_is_not_answered_is_an_end(vms, relay, handle, tmp_path):
    vms.signal(handle, grace=True)
    assert vms.ended(handle) is None
    vms.signal(handle, grace=False)
    assert ended(vms, handle).reason == "process_lost"
    assert relay.objects["stop_request"] == b"kill"
    assert read_control(tmp_path, "stopping") is not None
    assert "did not report the end" in missing(tmp_path)


def test_a_vm_that_tells_nothing_is_given_up(vms, handle):
    assert vms.follower(handle).silent() is None
    until = time.monotonic() + 30
    while (trouble := vms.follower(handle).silent()) is None:
        vms.ended(handle)
        assert time.monotonic() < until
    assert trouble.reason == "tpu_unhealthy"


def start(client, handle):
    return client.wait_until_running(handle, lambda _: None, lambda: None, lambda: None)


class Clock:
    """Time that passes only when the test says so."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        for module in (client, cancellation, follower, reports):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def beat(relay, clock, **report):
    relay.report(beat=clock.now, **report)


@pytest.mark.parametrize(
    ("collecting", "alive_for", "given_up_after"),
    [(True, 10_000, 3630), (False, 10_000, 30), (True, 100, 1020), (True, 0, 30)],
    ids=["it sends artifacts", "its program cannot be killed", "it dies while it sends", "it was dead before"],
)
def test_a_killed_vm_is_given_up_unless_it_sends_artifacts(
    defaults, relay, handle, monkeypatch, collecting, alive_for, given_up_after
):
    clock = Clock(monkeypatch)
    beat(relay, clock, collecting=collecting)
    defaults.ended(handle)
    clock.sleep(1.0)
    defaults.signal(handle, grace=False)
    killed_at = clock.now
    while (found := defaults.ended(handle)) is None:
        clock.sleep(10.0)
        if clock.now - killed_at <= alive_for:
            beat(relay, clock, collecting=collecting)
    assert found.reason == "process_lost"
    assert clock.now - killed_at == given_up_after
    assert "did not report the end" in missing(Path(handle["control"]))


@pytest.mark.parametrize("answers", [True, False])
def test_a_failed_host_of_a_slice_lets_the_others_send_their_artifacts(
    defaults, relay, handle, tmp_path, monkeypatch, answers
):
    clock = Clock(monkeypatch)
    handle |= {"hosts": ["10.0.0.1", "10.0.0.2"], "stop_grace": 30.0}
    relay.of_host(0).report(end={"code": 3, "at": 1})
    for _ in range(360):
        beat(relay.of_host(1), clock, collecting=True)
        assert defaults.ended(handle) is None
        clock.sleep(10.0)
    if answers:
        relay.of_host(1).report(end={"code": 143, "at": 2, "missing": "refused by the bucket: 'x'"})
    while (found := defaults.ended(handle)) is None:
        clock.sleep(10.0)
        if not answers:
            beat(relay.of_host(1), clock, collecting=True)
    assert relay.objects["stop_request"] == b"kill"
    assert (found.code, found.reason) == ((3, "tpu_host_failed") if answers else (None, "tpu_lost"))
    assert missing(tmp_path, 2).startswith("rank 1: refused by the bucket" if answers else "rank 1: not sent")
    assert 3600 <= clock.now - 1000 <= 3600 + 30 + 30 + 20


def test_three_hours_of_steady_output_are_no_silence(defaults, relay, handle, tmp_path, monkeypatch):
    """One small part each two seconds; each request takes 40 ms. The log is never far behind."""
    clock = Clock(monkeypatch)
    requests = []
    relay.request = lambda: (clock.sleep(0.04), requests.append(clock.now))
    line, sent = b"a line of output\n", b""
    for step in range(5400):
        sent += line
        relay.objects["log/0"] = sent
        relay.report(beat=step // 5)
        requests.clear()
        began = clock.now
        assert defaults.ended(handle) is None
        assert defaults.follower(handle).silent() is None
        assert len(requests) <= 4
        clock.now = max(clock.now, began + 2.0)
    assert (tmp_path / "log").read_bytes() == sent


def test_a_worker_that_was_away_for_hours_catches_up_without_a_false_alarm(
    defaults, relay, handle, tmp_path, monkeypatch
):
    clock = Clock(monkeypatch)
    relay.request = lambda: clock.sleep(1.0)
    count = 200
    relay.objects |= {f"log/{number}": b"x" * PART_BYTES for number in range(count)}
    while (found := defaults.ended(handle)) is None:
        assert defaults.follower(handle).silent() is None
        relay.report(beat=clock.now, end={"code": 0})
        clock.sleep(1.0)
    assert found.code == 0
    assert (tmp_path / "log").stat().st_size == count * PART_BYTES


def test_a_bucket_that_cannot_be_reached_is_no_silence_of_the_vm(defaults, relay, handle, monkeypatch):
    clock = Clock(monkeypatch)
    relay.report()
    defaults.ended(handle)
    relay.away = True
    for _ in range(30):
        clock.sleep(60.0)
        defaults.ended(handle)
        assert defaults.follower(handle).silent() is None
    relay.away = False
    for _ in range(10):  # its own link may be away, too
        clock.sleep(100.0)
        assert defaults.follower(handle).silent() is None
        defaults.ended(handle)
    assert defaults.follower(handle).silent().reason == "tpu_unhealthy"


@pytest.mark.parametrize("word", ["no_worker", "restarted"])
def test_an_end_that_the_vm_explains_is_a_lost_tpu(vms, relay, handle, word):
    relay.report(end={"code": None, "reason": word})
    found = ended(vms, handle)
    assert (found.code, found.reason) == (None, "tpu_lost")


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ({"phase": "here", "detail": "OSError: No space left on device"}, "launch_failed"),
        ({"phase": "pulling", "detail": "huge:latest"}, "image_pull"),
    ],
)
def test_a_start_that_never_ends_is_given_up(defaults, relay, handle, monkeypatch, report, reason):
    clock = Clock(monkeypatch)
    relay.report(**report)
    with pytest.raises(LaunchError) as raised:
        start(defaults, handle)
    assert (raised.value.reason, report["detail"] in raised.value.detail) == (reason, True)
    assert 1800 <= clock.now - 1000 < 1900


def test_a_report_that_the_worker_may_not_read_is_told_as_such(vms, relay, handle):
    def refuse():
        raise BucketRefused("bucket_refused", "gs://b: reading report is not allowed")

    relay.request = refuse
    with pytest.raises(LaunchError, match="bucket_refused: gs://b: reading report"):
        start(vms, handle)


def test_one_host_of_a_slice_that_never_reports_is_no_fault_of_the_network(vms, relay, handle):
    relay.of_host(0).report(phase="prepared")
    with pytest.raises(LaunchError) as raised:
        start(vms, handle | {"hosts": ["10.0.0.1", "10.0.0.2"]})
    assert (raised.value.reason, "rank 1 of 2 nodes (10.0.0.2)" in raised.value.detail) == ("tpu_unhealthy", True)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"phase": "failed", "reason": "image_pull", "detail": "no such image"}, "image_pull"),
        ({"phase": "failed", "reason": "done", "detail": "a lie"}, "launch_failed"),
        (None, "tpu_unreachable"),
    ],
)
def test_why_a_job_did_not_begin_is_told(vms, relay, handle, told, reason):
    if told is not None:
        relay.report(**told)
    with pytest.raises(LaunchError) as raised:
        start(vms, handle)
    assert raised.value.reason == reason


@pytest.mark.parametrize(
    ("tpu", "options", "reason"),
    [
        ({"pool": {"TPU": ["us-central1-b/mine"]}}, {}, "tpu_denied"),
        ({}, {}, "bucket_missing"),
    ],
)
def test_what_a_vm_cannot_give_is_refused_before_anything_is_made(simulator, tmp_path, tpu, options, reason):
    settings = tpu_settings(simulator, placement="vm", **tpu)
    place = BackendHarness(
        "tpu", tmp_path, tpu=settings, resource_inventory=MemoryResourceInventory(), machine_type="TPU"
    )
    assert expect_launch_error(place, place.spec("true", **options))[0] == reason
    assert simulator.cloud.record == []
