"""A job that controls its TPU VM, and so all that the VM reports in the bucket."""

import json
from types import SimpleNamespace

import pytest
from support.deployment import wait_until

from worker.backends.base import LaunchError
from worker.backends.tpu.vm import reports, slices
from worker.backends.tpu.vm.reports import StartingHost, append_parts, parse_report
from worker.backends.tpu.vm.slices import MISSING_BYTES, MISSING_FILE
from worker.runner.control_files import read_control

DEEP = b'{"a":' + b"[" * 60_000
LONG_NUMBER = b'{"code": ' + b"1" * 5000 + b"}"
SPEC = SimpleNamespace(job_id="j1", attempt=1, check=lambda: None)


def ended(vms, handle):
    return wait_until(lambda: vms.ended(handle), "the end")


@pytest.mark.parametrize("report", [DEEP, LONG_NUMBER, b"\xff", b"[]", b"null", b"{", b'"\\ud800"'])
def test_a_report_that_is_none_is_empty(report):
    assert parse_report(report) == {}


@pytest.mark.parametrize("heartbeat", [DEEP, LONG_NUMBER, b'{"usage": [1], "log": {}, "ended": "x", "collecting": 1}'])
@pytest.mark.parametrize(
    "end",
    [DEEP, LONG_NUMBER, b"null"]
    + [
        json.dumps({"code": None, **fields}).encode()
        for fields in (
            {"code": True},
            {"code": float("nan")},
            {"code": [0]},
            {"code": -1},
            {"code": 256},
            {"code": "0"},
            {"code": 1.5},
            {"reason": "x" * 100},
            {"reason": ["restarted"]},
            {"reason": {"a": 1}},
            {"reason": "restarted\n" + "x" * 100},
            {"missing": ["x"], "at": [1]},
        )
    ],
)
def test_whatever_a_vm_reports_as_the_end_is_one(vms, relay, handle, heartbeat, end):
    relay.objects |= {"heartbeat": heartbeat, "exit": end}
    found = ended(vms, handle)
    assert (found.code, found.reason) == (None, "process_lost")


@pytest.mark.parametrize(
    ("report", "left"),
    [(DEEP, ([], [])), (b"[]", ([], [])), (b'{"skipped": 1, "notes": {"a": 1}}', ([], []))]
    + [
        (json.dumps(report).encode(), left)
        for report, left in (
            ({"skipped": [1, [2], ["a", "b", "c"], ["a", 3], ["\ud800", "x" * 9000]]}, 2),
            ({"skipped": [["a", "b"]] * 9000, "notes": ["\ud800"] * 9000}, 2002),
        )
    ],
)
def test_what_a_vm_says_was_left_is_text_and_has_an_end(vms, relay, handle, tmp_path, report, left):
    relay.objects |= {"left": report, "exit": b'{"code": 0}'}
    assert ended(vms, handle).code == 0
    skipped, notes = reports.read_left(tmp_path, 0)
    if isinstance(left, int):
        assert (len(skipped), len(notes)) in {(left, 0), (left, left)}
        assert all(len(text.encode()) <= 1000 for text in [*notes, *(text for pair in skipped for text in pair)])
    else:
        assert (skipped, notes) == left


@pytest.mark.parametrize(
    "at", [float("nan"), float("inf"), float("-inf"), -1, pytest.param(10**400, id="huge"), "0", "nan", [0], None]
)
def test_a_time_that_is_none_does_not_make_a_host_the_first_to_fail(defaults, relay, handle, tmp_path, at):
    handle |= {"hosts": ["10.0.0.1", "10.0.0.2"], "stop_grace": 30.0}
    for rank, (code, told) in enumerate([(4, at), (3, 5.0)]):
        relay.of_host(rank).objects["exit"] = json.dumps({"code": code, "at": told}).encode()
    assert defaults.ended(handle) is None  # it looks, and decides at the next
    assert defaults.ended(handle).code == 3
    assert slices.first_failure(tmp_path, 2) == 1


@pytest.mark.parametrize(
    ("told", "recorded"),
    [
        ("a\0b \x1b[31m\x7f\ud800\n c", "a?b ?[31m?? c"),
        ("x" * 9000, "x" * (MISSING_BYTES - 1)),
        (["x"], None),
        (" ", None),
    ],
)
def test_why_artifacts_are_missing_is_one_line_to_print(vms, relay, handle, tmp_path, told, recorded):
    relay.objects["exit"] = json.dumps({"code": 0, "missing": told}).encode()
    assert ended(vms, handle).code == 0
    assert read_control(tmp_path, MISSING_FILE, MISSING_BYTES) == recorded


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"reason": ["x"], "detail": "no"}, "no"),
        ({"reason": {"x": 1}, "detail": ["no"]}, "no reason was given"),
        ({"detail": "x" * 60_000}, "x" * 1000),
        ({}, "no reason was given"),
    ],
)
def test_a_failed_start_has_a_known_reason_and_a_short_detail(vms, relay, fields, detail):
    relay.objects["status"] = json.dumps({"phase": "failed", **fields}).encode()
    with pytest.raises(LaunchError) as raised:
        vms.wait_until_running(SPEC, "us-central1-b", ["10.0.0.1"], lambda _: None, lambda: None)
    assert (raised.value.reason, raised.value.detail) == ("launch_failed", detail)


@pytest.mark.parametrize("status", [DEEP, b'{"phase": ["here"]}', b'{"phase": {}, "detail": 1}', b'{"phase": 0}'])
def test_a_status_that_is_none_tells_nothing(relay, status):
    relay.objects["status"] = status
    host = StartingHost(relay, "")
    host.update()
    assert (host.phase, host.doing) == ("", "the TPU VM is starting")


@pytest.mark.parametrize(
    ("detail", "port"),
    [("8474", 8474), ("65536", 0), ("-1", 0), ("x", 0), ("8474\n", 0), ("\u0663", 0), (8474, 0), ("9" * 5000, 0)],
)
def test_a_port_for_sessions_is_one_or_none(relay, detail, port):
    relay.objects["status"] = json.dumps({"phase": "running", "detail": detail}).encode()
    host = StartingHost(relay, "")
    host.update()
    assert host.session_port == port


def slow_listing(names, clock):
    """List names; each takes a moment."""
    for name in sorted(names):
        clock.now += 0.01
        yield name, 3


def listing_of(names, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(reports, "time", clock)
    contents = {f"log/{name}": b"abc" for name in names}
    listed = slow_listing(names, clock)
    return SimpleNamespace(sizes=lambda *_: listed, get=lambda name, _most: contents[name]), clock


def test_names_behind_the_next_part_are_not_read(tmp_path, monkeypatch):
    mailbox, clock = listing_of([f"{0:020d}", *(f"{number}" for number in range(3, 10_000))], monkeypatch)
    assert append_parts(mailbox, tmp_path / "log", "log", {}, set(), 1e9)
    assert (tmp_path / "log").read_bytes() == b"abc"
    assert clock.now < 1


def test_many_names_among_the_parts_take_no_more_than_the_time_of_one_look(tmp_path, monkeypatch):
    mailbox, clock = listing_of(
        [f"{0:020d}", *(f"{0:020d}x{number}" for number in range(10_000)), f"{3:020d}"], monkeypatch
    )
    assert not append_parts(mailbox, tmp_path / "log", "log", {}, set(), 5.0)
    assert (tmp_path / "log").read_bytes() == b"abc"
    assert clock.now < 6
