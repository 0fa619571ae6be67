"""Jobs on a TPU VM: options that are refused, and how the worker validates what the VM reports."""

import json
import time
from types import SimpleNamespace

import pytest
from support.backend_harness import BackendHarness
from support.fake_clouds import MemoryResourceLog, expect_launch_error, tpu_settings

from core.errors import StoreUnavailable
from core.settings import Settings
from worker.backends.base import LaunchError, PortForward, read_control
from worker.backends.tpu.vm.agent import PART_BYTES
from worker.backends.tpu.vm.client import VmAgentClient


class MemoryRelay:
    """Objects of an attempt, in memory."""

    bucket, prefix = "b", "jobs/j1/vm/1/"

    def __init__(self):
        self.objects = {}
        self.away = False

    def put(self, name, content):
        self.objects[name] = content if isinstance(content, bytes) else content.read_bytes()

    def get(self, name, most=1 << 16):
        if self.away:
            raise StoreUnavailable("away")
        return self.objects[name][:most] if name in self.objects else None

    def names(self, folder, start):
        whole = [name.removeprefix(f"{folder}/") for name in self.objects if name.startswith(f"{folder}/")]
        return sorted(name for name in whole if name >= start)

    def clear(self):
        self.objects.clear()


@pytest.fixture
def relay():
    return MemoryRelay()


@pytest.fixture
def vms(relay):
    settings = Settings(
        tpu={"vm_poll_seconds": 0.01, "poll_seconds": 0.01, "probe_seconds": 0.1, "unhealthy_seconds": 0.1}
    )
    bucket = SimpleNamespace(mailbox=lambda _job, _attempt: relay, renew_token=lambda _job, _attempt: None)
    return VmAgentClient(lambda _region: bucket, settings)


@pytest.fixture
def handle(tmp_path):
    return {"name": "j1-1", "job_id": "j1", "attempt": 1, "zone": "us-central1-b", "control": str(tmp_path)}


def ended(vms, handle):
    until = time.monotonic() + 30
    while (found := vms.poll(handle)) is None:
        assert time.monotonic() < until
        time.sleep(0.005)
    return found


def part(at):
    return f"log/{at:020d}"


@pytest.mark.parametrize("here", [b"", b"ab", b"abc", b"abcde", b"abcdef"])
def test_wherever_the_last_worker_died_the_rest_is_added_once(vms, relay, handle, tmp_path, here):
    (tmp_path / "log").write_bytes(here)
    relay.objects |= {part(0): b"abc", part(3): b"def", "exit": b'{"code": 0}'}
    assert ended(vms, handle).code == 0
    assert (tmp_path / "log").read_bytes() == b"abcdef"


def test_what_a_job_puts_among_the_parts_is_passed_over(vms, relay, handle, tmp_path):
    relay.objects |= {part(0): b"abc", "log/-1": b"x", "log/word": b"x", part(2): b"Cd", part(99): b"gap"}
    relay.objects |= {part(4): b"z" * (PART_BYTES + 1), "exit": b'{"code": 1}'}
    assert ended(vms, handle).code == 1
    assert (tmp_path / "log").read_bytes() == b"abcd" + b"z" * PART_BYTES


@pytest.mark.parametrize("code", ["null", "-1", "256", '"0"', "1.5"])
def test_an_exit_that_is_none_is_a_job_that_vanished(vms, relay, handle, code):
    relay.objects["exit"] = b'{"code": %s}' % code.encode()
    found = ended(vms, handle)
    assert (found.code, found.reason) == (None, "process_lost")


def test_a_wish_reaches_the_vm_and_one_that_is_not_heard_is_an_end(vms, relay, handle, tmp_path):
    vms.stop(handle, grace=True)
    assert vms.poll(handle) is None
    vms.stop(handle, grace=False)
    assert ended(vms, handle).reason == "process_lost"
    assert relay.objects["wish"] == b"kill"
    assert read_control(tmp_path, "stopping") is not None


def test_a_vm_that_tells_nothing_is_given_up(vms, handle):
    assert vms.silent(handle) is None
    until = time.monotonic() + 30
    while (trouble := vms.silent(handle)) is None:
        vms.poll(handle)
        assert time.monotonic() < until
    assert trouble.reason == "tpu_unhealthy"


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"phase": "failed", "reason": "image_pull", "detail": "no such image"}, "image_pull"),
        ({"phase": "failed", "reason": "done", "detail": "a lie"}, "launch_failed"),
        (None, "tpu_unreachable"),
    ],
)
def test_why_a_job_did_not_begin_is_told(vms, relay, told, reason):
    if told is not None:
        relay.objects["status"] = json.dumps(told).encode()
    with pytest.raises(LaunchError) as raised:
        vms.wait_until_running(SimpleNamespace(job_id="j1", attempt=1), "us-central1-b", lambda _: None, lambda: None)
    assert raised.value.reason == reason


@pytest.mark.parametrize(
    ("tpu", "options", "reason"),
    [
        ({"provisioning": "pool", "pool": {"TPU": ["us-central1-b/mine"]}}, {}, "tpu_denied"),
        ({}, {"ports": (PortForward(5000, 80),)}, "option_refused"),
        ({}, {}, "bucket_missing"),
    ],
)
def test_what_a_vm_cannot_give_is_refused_before_anything_is_made(simulator, tmp_path, tpu, options, reason):
    settings = tpu_settings(simulator, placement_by_type={"TPU": "vm"}, **tpu)
    place = BackendHarness("tpu", tmp_path, tpu=settings, resource_log=MemoryResourceLog(), machine_type="TPU")
    assert expect_launch_error(place, place.spec("true", **options))[0] == reason
    assert simulator.cloud.record == []
