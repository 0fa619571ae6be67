"""Explanations of failed jobs by their logs: of programs that really failed, and some texts of GPUs from documentation.

Each line of `failed_logs.jsonl` has the command, its exit code, what it printed, and what is true of it: the class and
the place in the code. `collected`: 1 with the rules; 2 to 5 each after the rules were frozen, and then mended.
"""

import json
from pathlib import Path

import pytest

from core.jobs.exit_codes import reason_of_exit
from core.jobs.explanations import explain
from core.jobs.failure_rules import CLASSES, RULES
from core.jobs.reasons import REASONS
from core.jobs.states import JobState

LOGS = [json.loads(line) for line in Path(__file__).with_name("failed_logs.jsonl").read_text().splitlines()]
BEGIN = "Traceback (most recent call last):\n  File "


def judge(log, reason=None):
    found, detail = reason_of_exit(log["code"], f"{log['log'][-16384:]}\n{log['signals']}", lambda name: f"list {name}")
    explanation = explain(reason or found, detail, log["log"].split("\n"))
    place = explanation.failure and explanation.failure.place
    return explanation.cause, place and f"{place.file}:{place.line}"


@pytest.mark.parametrize("collected", sorted({log["collected"] for log in LOGS}))
def test_logs_of_programs_that_failed(collected):
    logs = [log for log in LOGS if log["collected"] == collected]
    assert {log["name"]: judge(log) for log in logs} == {log["name"]: (log["cause"], log["place"]) for log in logs}


def test_what_the_service_knows_wins_over_the_log():
    assert explain("diverged", "loss is nan at step 7", ["step 7", "Terminated"]).failure is None
    log = next(log for log in LOGS if log["name"] == "requests dns")
    causes = {name: judge(log, name)[0] for name, reason in REASONS.items() if reason.final is JobState.FAILED}
    known = {"out_of_memory": "memory", "time_limit": "time", "preempted": "preempted", "worker_lost": "machine"}
    assert {name: causes[name] for name in known} == known
    assert (causes["disk_quota"], causes["image_pull"], causes["exit_nonzero"]) == ("disk", "image", "network")
    assert {rule.cause for rule in RULES} | set(causes.values()) <= {*CLASSES, None}


@pytest.mark.parametrize(
    ("printed", "cause", "place"),
    [
        (f'{BEGIN}"/opt/venv/lib/python3.11/site-packages/a.py", line 1\nBoom: x', None, None),
        (f'{BEGIN}"/srv/jobs/j123456789abcd-2/workspace/a/b.py", line 7\nBoom: x', "code", "a/b.py:7"),
        ("0: step 1\n\x1b[31mValueError: bad\x1b[0m\n" + "step\n" * 30, None, None),
        ("CUDA out of memory, halving the batch\n" + "step\n" * 30 + "giving up", None, None),
        ("", None, None),
        ("\r" * 100_000, None, None),
    ],
)
def test_an_answer_is_right_or_absent(printed, cause, place):
    assert judge({"code": 1, "log": printed, "signals": ""}) == (cause, place)
