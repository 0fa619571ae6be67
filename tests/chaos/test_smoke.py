"""A chaos run of a few faults, so that `make chaos` works when it is needed."""

import pytest
from chaos.checker import is_documented_end, log_difference
from chaos.faults import FAULTS
from chaos.run import RunPlan, run
from chaos.vitals import ProcessVitals, find_leaks
from support.faults.job_journal import JobJournal

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

QUICK = ("worker kill -9", "Redis kill -9, wiped", "dockerd kill -9", "API kill -9", "stops and deletes")


@pytest.mark.slow
def test_a_few_faults_break_no_promise(tmp_path, postgres, redis, docker_server, small_disk):
    del postgres, redis, docker_server, small_disk  # it has its own: they say what this machine needs
    kinds = tuple(one for one in FAULTS if one.name in QUICK)
    folder = tmp_path / "chaos"
    folder.mkdir()
    said = []
    outcome = run(RunPlan(seed=20181030, faults=len(QUICK), kinds=kinds, alone=0), folder, said.append)
    assert outcome.violations == [], "\n".join(said)
    assert outcome.checked_counts["jobs"] > len(QUICK)


def test_a_missing_line_a_repeated_one_and_one_of_nobody_are_found():
    whole = [JobJournal(out=b"one\ntwo\nthree\n", exit=0)]
    assert log_difference(b"one\ntwo\nthree\n", whole) == ""
    assert log_difference(b"one\nthree\n", whole)
    assert log_difference(b"one\ntwo\ntwo\nthree\n", whole)
    assert log_difference(b"one\ntwo\nthree\nfour\n", whole)
    assert log_difference(b"one\ntwo\n", whole)
    assert log_difference(b"two\none\nthree\n", whole)


def test_a_shells_own_words_and_lines_that_found_no_room_are_none():
    ended = [JobJournal(out=b"one\ntwo\n")]
    assert log_difference(b"one\ntwo\nbash: line 9:  311 Terminated    sleep 1\n", ended) == ""
    assert log_difference(b"one\ntwo\nthree\n", ended) == "", "printed before its end, and not written down any more"
    assert log_difference(b"one\n", ended), "written down, so it was printed"
    full = [JobJournal(out=b"one\ntwo\nthree\n", exit=0, unsaid=True)]
    assert log_difference(b"one\nthree\n", full) == ""


def test_a_process_that_opens_ever_more_files_is_found():
    at_a_peak, rising = [3, 3, 34, 19, 20, 66, 71], [30, 200, 340, 460, 590, 730]
    steady = ProcessVitals("w1", 1, 0.0, 600, first_files=3, files=71, first_mib=150, mib=170, counts=at_a_peak)
    leaking = ProcessVitals("w3", 2, 0.0, 600, first_files=30, files=730, first_mib=150, mib=185, counts=rising)
    assert find_leaks([steady]) == []
    (found,) = find_leaks([steady, leaking])
    assert "w3" in found


def test_a_job_that_never_began_has_to_be_repeated_and_a_lost_container_may_end_it():
    never = {"reason": "never_started", "machine_faults": 0}
    assert not is_documented_end(never, began=False, lost=False)
    assert not is_documented_end(never, began=False, lost=True), "another container would have run it"
    assert is_documented_end(never | {"machine_faults": 3}, began=False, lost=False), (
        "repeated as often as is documented"
    )
    assert is_documented_end({"reason": "process_lost", "machine_faults": 0}, began=True, lost=True)
    assert not is_documented_end({"reason": "process_lost", "machine_faults": 0}, began=True, lost=False)
    assert not is_documented_end({"reason": "signalled", "machine_faults": 0}, began=True, lost=True), (
        "nobody signalled it"
    )
    assert is_documented_end(
        {"reason": "engine_unavailable", "machine_faults": 0}, began=False, lost=False, stopped=True
    )
    assert not is_documented_end({"reason": "internal_error", "machine_faults": 3}, began=False, lost=False)
