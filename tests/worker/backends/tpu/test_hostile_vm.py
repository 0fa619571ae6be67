"""A job that controls its TPU VM, and so all that the VM reports in the bucket."""

import json
from types import SimpleNamespace

import pytest
from support.deployment import wait_until

from worker.backends.base import LaunchError
from worker.backends.tpu.vm import follower
from worker.backends.tpu.vm.follower import Host, read_left
from worker.backends.tpu.vm.reports import Report, parse_report
from worker.runner.stores import PART_BYTES

DEEP = b'{"a":' + b"[" * 60_000
LONG_NUMBER = b'{"code": ' + b"1" * 5000 + b"}"


def ended(vms, handle):
    return wait_until(lambda: vms.ended(handle), "the end")


def start(client, handle):
    return client.wait_until_running(handle, lambda _: None, lambda: None, lambda: None)


@pytest.mark.parametrize("report", [DEEP, LONG_NUMBER, b"\xff", b"[]", b"null", b"{", b'"\\ud800"'])
def test_a_report_that_is_none_is_empty(report):
    assert parse_report(report) == Report()


@pytest.mark.parametrize("others", [{}, {"usage": [1], "collecting": 1}])
@pytest.mark.parametrize(
    "end",
    [
        1,
        [0],
        "0",
        {},
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
    ],
)
def test_whatever_a_vm_reports_as_the_end_is_one(vms, relay, handle, others, end):
    relay.report(end=end, **others)
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
    relay.objects["left"] = report
    relay.report(end={"code": 0})
    assert ended(vms, handle).code == 0
    skipped, notes = read_left(tmp_path, 0)
    if isinstance(left, int):
        assert (len(skipped), len(notes)) in {(left, 0), (left, left)}
        assert all(len(text.encode()) <= 1000 for text in [*notes, *(text for pair in skipped for text in pair)])
    else:
        assert (skipped, notes) == left


@pytest.mark.parametrize(
    "at", [float("nan"), float("inf"), float("-inf"), -1, pytest.param(10**400, id="huge"), "0", "nan", [0], None]
)
def test_a_time_that_is_none_does_not_make_a_host_the_first_to_fail(defaults, relay, handle, at):
    handle |= {"hosts": ["10.0.0.1", "10.0.0.2"]}
    for rank, (code, told) in enumerate([(4, at), (3, 5.0)]):
        relay.of_host(rank).report(end={"code": code, "at": told})
    found = ended(defaults, handle)
    assert (found.code, found.at) == (3, None)


@pytest.mark.parametrize(
    ("told", "recorded"),
    [
        ("a\0b \x1b[31m\x7f\ud800\n c", "on the TPU VM, a?b ?[31m?? c"),
        ("x" * 9000, f"on the TPU VM, {'x' * 1000}"[: follower.MISSING_CHARACTERS]),
        (["x"], None),
        (" ", None),
    ],
)
def test_why_artifacts_are_missing_is_one_line_to_print(vms, relay, handle, tmp_path, told, recorded):
    relay.report(end={"code": 0, "missing": told})
    assert ended(vms, handle).code == 0
    assert [skipped.why for skipped in read_left(tmp_path, 0)[0]] == ([recorded] if recorded else [])


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"reason": ["x"], "detail": "no"}, "no"),
        ({"reason": {"x": 1}, "detail": ["no"]}, "no reason was given"),
        ({"detail": "x" * 60_000}, "x" * 1000),
        ({}, "no reason was given"),
    ],
)
def test_a_failed_start_has_a_known_reason_and_a_short_detail(vms, relay, handle, fields, detail):
    relay.report(phase="failed", **fields)
    with pytest.raises(LaunchError) as raised:
        start(vms, handle)
    assert (raised.value.reason, raised.value.detail) == ("launch_failed", detail)


@pytest.mark.parametrize("report", [DEEP, b'{"phase": ["here"]}', b'{"phase": {}, "detail": 1}', b'{"phase": 0}'])
def test_a_report_without_a_phase_tells_nothing(relay, tmp_path, report):
    relay.objects["report"] = report
    host = Host(tmp_path, 0, [""])
    host.read(relay)
    assert (host.report.phase, host.doing) == ("", "the TPU VM is starting")


@pytest.mark.parametrize(
    ("told", "port"),
    [(8474, 8474), (65536, 0), (-1, 0), ("8474", 0), (True, 0), (8474.0, 0), ([8474], 0), (10**400, 0)],
)
def test_a_port_for_sessions_is_one_or_none(told, port):
    assert parse_report(json.dumps({"port": told}).encode()).port == port


def test_parts_that_are_always_full_take_no_more_than_the_time_of_one_look(relay, tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("worker.backends.tpu.vm.reports.time", clock)
    monkeypatch.setattr("worker.backends.tpu.vm.follower.time", clock)
    full = b"x" * PART_BYTES

    def get(name, most=1 << 16, start=0):
        clock.now += 1.0
        return full[start:][:most] if name.startswith("log/") else None

    relay.get = get
    assert not Host(tmp_path, 0, [""]).receive(relay, {"log": tmp_path / "log"})
    assert clock.now < 12
    assert (tmp_path / "log").stat().st_size <= 12 * PART_BYTES
