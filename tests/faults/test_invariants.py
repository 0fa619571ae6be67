"""The checker itself: it has to find every kind of broken promise, and nothing in a history that is whole."""

import copy
import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from support.faults import fault_report
from support.faults.fault_report import FaultTrial
from support.faults.invariants import (
    History,
    InvariantViolation,
    ServedOutputs,
    check_invariants,
    find_violations,
    log_matches,
    make_report,
)
from support.faults.job_journal import JobJournal, recorded_command

from core.jobs.states import JobState

ONE, TWO = "j0000000000001", "j0000000000002"
OUT = b"hello\nworld\n"
MODEL = hashlib.sha256(b"weights").hexdigest()
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def row(job_id, state, **values):
    base = {
        "id": job_id,
        "state": state,
        "attempt": 1,
        "lease": 1,
        "reason": "completed",
        "exit_code": 0,
        "worker": "w1",
        "host": "h1",
        "heartbeat_at": NOON,
        "finished_at": NOON,
        "stop_requested_at": None,
        "deleted_at": None,
        "logs_removed_at": None,
        "artifacts_state": "complete",
        "spec_json": {"command": recorded_command(), "stop_grace": 10},
    }
    return base | values


def chain(job_id, *moves, start=0):
    """Events of these moves (kind, from, to), a second apart."""
    return [
        {
            "id": start + number,
            "job_id": job_id,
            "at": NOON + timedelta(seconds=number),
            "kind": kind,
            "attempt": 1,
            "lease": 0 if kind == "submitted" else 1,
            "from_state": source,
            "to_state": target,
        }
        for number, (kind, source, target) in enumerate(moves)
    ]


ENDED = (
    ("submitted", None, "queued"),
    ("claimed", "queued", "starting"),
    ("started", "starting", "running"),
    ("ended", "running", "finishing"),
    ("finished", "finishing", "succeeded"),
)
RUNNING = (
    ("submitted", None, "queued"),
    ("claimed", "queued", "starting"),
    ("started", "starting", "running"),
    ("stop_requested", None, None),
)


@pytest.fixture
def whole():
    """A job that has ended, and one that runs and was asked to stop."""
    return History(
        jobs=[
            row(ONE, JobState.SUCCEEDED),
            row(TWO, JobState.RUNNING, reason=None, exit_code=None, finished_at=None, stop_requested_at=NOON),
        ],
        attempts=[{"job_id": ONE, "attempt": 1, "exit_code": 0}, {"job_id": TWO, "attempt": 1, "exit_code": None}],
        events=chain(ONE, *ENDED) + chain(TWO, *RUNNING, start=10),
        gpus=[{"host": "h1", "gpu": "0", "job_id": TWO, "attempt": 1}],
        accepted=[(ONE, "key1"), (TWO, None)],
        seen_ended={ONE: row(ONE, JobState.SUCCEEDED)},
        journals={
            (ONE, 1): JobJournal(starts=[7], out=OUT, artifacts={"model": MODEL}, exit=0),
            (TWO, 1): JobJournal(starts=[8], out=b"a\n"),
        },
        served={
            ONE: ServedOutputs(OUT, [1, 2], True, "complete", {"model": (MODEL, MODEL)}),  # noqa: FBT003 - complete
            TWO: ServedOutputs(b"a\n", [1], False, "none", {}),  # noqa: FBT003 - not complete
        },
        processes=[(TWO, 1, 8)],
        scratch=[(TWO, 1)],
    )


def test_a_whole_history_has_no_violation(whole):
    assert find_violations(whole) == []
    report = make_report(whole)
    assert (report.jobs, report.lost, report.doubled, report.stuck) == (2, 0, 0, 1)


def event(job_id, kind, source=None, target=None, *, number=90, lease=1, seconds=90):
    at = NOON + timedelta(seconds=seconds)
    moved = {"from_state": source, "to_state": target}
    return {"id": number, "job_id": job_id, "at": at, "kind": kind, "attempt": 1, "lease": lease} | moved


def change_job(number, **values):
    return lambda history: history.jobs[number].update(values)


def stopped(history, seconds, grace=10):
    """The second job ends so many seconds after its stop."""
    history.jobs[1] |= row(TWO, JobState.CANCELLED, reason="stopped_by_user", exit_code=143, stop_requested_at=NOON)
    history.jobs[1]["spec_json"]["stop_grace"] = grace
    wished = next(one for one in history.events if one["kind"] == "stop_requested")
    over = wished["at"] + timedelta(seconds=seconds)
    history.events += [
        event(TWO, "ended", "running", "finishing", number=91) | {"at": over},
        event(TWO, "finished", "finishing", "cancelled", number=92) | {"at": over},
    ]
    history.gpus, history.processes, history.scratch = [], [], []
    history.served[TWO] = ServedOutputs(b"a\n", [1], True, "complete", {})  # noqa: FBT003 - complete


DOCTORED = {
    "I1 accepted and gone": lambda h: h.accepted.append(("jgone", None)),
    "I1 a key made two": lambda h: h.accepted.append((TWO, "key1")),
    "I1 finished twice": lambda h: h.events.insert(5, event(ONE, "finished")),
    "I1 ended without a reason": change_job(0, reason=None),
    "I1 held by nobody": change_job(1, worker=None),
    "I1 waits without a reason": change_job(1, state=JobState.QUEUED),
    "I2 started twice": lambda h: h.journals[TWO, 1].starts.append(9),
    "I2 an attempt nobody knows": lambda h: h.journals.update({(ONE, 2): JobJournal(starts=[9], out=b"")}),
    "I3 two runs at once": lambda h: h.journals[TWO, 1].overlaps.append(6),
    "I3 two attempts alive": lambda h: h.processes.append((TWO, 2, 9)),
    "I4 a move that is none": lambda h: h.events[1].update(to_state="running"),
    "I4 a move after the end": lambda h: h.events.append(event(ONE, "requeued", "succeeded", "queued")),
    "I4 an older lease": lambda h: h.events.append(event(TWO, "phase", lease=0)),
    "I4 another state than its events": change_job(1, state=JobState.FINISHING),
    "I4 changed after its end": lambda h: h.seen_ended[ONE].update(exit_code=1),
    "I5 another exit code": lambda h: h.journals[ONE, 1].__setattr__("exit", 3),
    "I5 another reason": change_job(0, reason="exit_nonzero"),
    "I5 an unknown reason": change_job(0, reason="bad_weather"),
    "I5 an attempt that differs": lambda h: h.attempts[0].update(exit_code=1),
    "I5 success without an end": lambda h: h.journals[ONE, 1].__setattr__("exit", None),
    "I5 success without a start": lambda h: h.journals.pop((ONE, 1)),
    "I6 a line is missing": lambda h: h.served.update({ONE: ServedOutputs(b"hello\n", [1])}),
    "I6 a line is doubled": lambda h: h.served.update({ONE: ServedOutputs(b"hello\nhello\nworld\n", [1, 2, 3])}),
    "I6 numbers with a gap": lambda h: h.served[ONE].lines.remove(1),
    "I6 never complete": lambda h: h.served[ONE].__setattr__("complete", False),
    "I6 another digest": lambda h: h.journals.update(
        {(ONE, 1): JobJournal([7], [], None, ("00", 12), {"model": MODEL}, 0)}
    ),
    "I7 another content": lambda h: h.served[ONE].artifacts.update(model=(MODEL, "00")),
    "I7 a file is missing": lambda h: h.served[ONE].artifacts.clear(),
    "I7 no hash": lambda h: h.served[ONE].artifacts.update(model=(None, MODEL)),
    "I7 not the manifest's state": lambda h: h.served[ONE].__setattr__("artifacts_state", "partial"),
    "I8 a GPU is not given back": lambda h: h.gpus.append({"host": "h1", "gpu": "1", "job_id": ONE, "attempt": 1}),
    "I8 a GPU is held twice": lambda h: h.gpus.append({"host": "h1", "gpu": "0", "job_id": ONE, "attempt": 1}),
    "I9 a process is left": lambda h: h.processes.append((ONE, 1, 9)),
    "I9 a folder is left": lambda h: h.scratch.append((ONE, 1)),
    "I9 a container is left": lambda h: h.containers.append((ONE, 1)),
    "I10 begun again": lambda h: h.events.append(event(TWO, "claimed")),
    "I10 too slow": lambda h: stopped(h, seconds=26),
    "I11 tells": lambda h: h.disclosing_routes.append("GET /jobs/ID"),
    "I12 leaks": lambda h: h.canary_leaks.append("a message"),
}


@pytest.mark.parametrize("doctored", DOCTORED)
def test_a_doctored_history_is_found_out(whole, doctored):
    DOCTORED[doctored](whole)
    found = find_violations(whole)
    assert any(problem.startswith(doctored.split()[0] + " ") for problem in found), found


def test_every_invariant_has_a_doctored_case():
    assert {name.split()[0] for name in DOCTORED} == {f"I{number}" for number in range(1, 13)}


def test_a_stop_in_time_is_no_violation_and_a_late_one_is_none_in_a_storm(whole):
    late = copy.deepcopy(whole)
    stopped(whole, seconds=24)
    assert find_violations(whole) == []
    stopped(late, seconds=60)
    late.stop_seconds = None
    assert find_violations(late) == []


@pytest.mark.parametrize(
    ("raw", "printed", "fits"),
    [
        (b"a\nb\n", [(b"a\n", True), (b"b\n", True)], True),
        (b"a\nb\n", [(b"a\n", False), (b"b\n", True)], True),
        (b"a\nx\nb\n", [(b"a\n", False), (b"b\n", True)], True),  # printed, killed before it was written down
        (b"a\nx\nb\n", [(b"a\n", True), (b"b\n", True)], False),
        (b"a\nTerminated\nTerminated\nx\nb\n", [(b"a\n", False), (b"b\n", True)], True),  # the shell's words
        (b"a\nTerminated\nx\ny\nb\n", [(b"a\n", False), (b"b\n", True)], False),
        (b"a\nTerminated\nb\n", [(b"a\n", True), (b"b\n", True)], False),
        (b"b\na\n", [(b"a\n", True), (b"b\n", True)], False),
        (b"a\n[gradient] 3 bytes\nz\n", [(b"a\nxy\nz\n", True)], True),
        (b"a\n[gradient] 3 bytes\nq\n", [(b"a\nxy\nz\n", True)], False),
        (b"", [], True),
    ],
)
def test_a_log_is_what_was_printed_in_order(raw, printed, fits):
    assert log_matches(raw, printed) is fits


def test_a_real_history_that_somebody_falsified_is_found_out(deployment):
    deployment.start_up()
    job_id = deployment.submit(recorded_command("say hello; leave model weights"))
    deployment.wait_ended(job_id)
    assert check_invariants(deployment).jobs == 1
    log = next((deployment.home / "logs").rglob("raw"))
    log.write_bytes(b"HELLO\n")
    (stored,) = (path for path in (deployment.home / "artifacts").rglob("model") if path.is_file())
    stored.unlink()
    stored.write_bytes(b"WEIGHTS")
    (deployment.storage / "truth" / job_id / "1.starts").write_text("7\n8\n")
    deployment.accepted.append(("jgone", None))
    deployment.logs[0].write_text(deployment.canary)
    with pytest.raises(InvariantViolation) as broken:
        check_invariants(deployment)
    assert {problem.split()[0] for problem in broken.value.report.problems} == {"I1", "I2", "I6", "I7", "I12"}
    assert (broken.value.report.lost, broken.value.report.doubled) == (1, 1)


def test_the_table_adds_up_what_was_tried():
    trials = [
        FaultTrial("F10", jobs=2, repairs=[1.0]),
        FaultTrial("F2", tries=10, jobs=1, lost=1, doubled=2, stuck=3, repairs=[0.5, 2.5, 1.0]),
        FaultTrial("F10", jobs=3),
    ]
    head, second, tenth = fault_report.format_table(trials)
    assert head.split()[:3] == ["fault", "what", "tries"]
    assert second.split()[0] == "F2"
    assert second.split()[-9:] == ["10", "1", "1", "2", "3", "1.0", "s", "2.5", "s"]
    assert tenth.split()[-9:] == ["2", "5", "0", "0", "0", "1.0", "s", "1.0", "s"]
