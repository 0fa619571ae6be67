"""Our own logs, as a process writes them."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

pytestmark = pytest.mark.integration

PROGRAM = """
import logging, sys
from core.monitoring.logging import configure

def connect(password):
    raise OSError("no route to the database")

configure(sys.argv[1], "info")
try:
    connect("correct horse")
except OSError:
    logging.getLogger("core.db.database").warning("database_unavailable", exc_info=True)
"""

FIELDS = """
import logging, sys, threading
from core.monitoring.logging import bind, configure

configure(sys.argv[1], "info")
logger = logging.getLogger("worker.supervisor")
bind(job_id="j1", attempt=2)
logger.info("attempt_ended", extra={"exit_code": 0, "label": 'a b=\\"c\\"', "path": "one\\nforged [error]"})
bind(job_id="j2")
logger.error("%s lost", "lease")
logger.debug("too low")
other = threading.Thread(target=logger.info, args=("elsewhere",))
other.start()
other.join()
"""


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_an_error_is_told_with_its_place_and_without_what_variables_hold(log_format):
    done = subprocess.run([sys.executable, "-c", PROGRAM, log_format], capture_output=True, text=True, check=True)
    assert "database_unavailable" in done.stderr
    assert "no route to the database" in done.stderr
    assert "in connect" in done.stderr
    assert "correct horse" not in done.stderr


def test_a_json_line_has_the_bound_fields_and_its_own():
    first, second, third = map(json.loads, run(FIELDS, "json"))
    at = datetime.fromisoformat(first.pop("timestamp"))
    assert abs(at - datetime.now(UTC)) < timedelta(minutes=5)
    assert first == {
        "level": "info",
        "event": "attempt_ended",
        "logger": "worker.supervisor",
        "job_id": "j1",
        "attempt": 2,
        "exit_code": 0,
        "label": 'a b="c"',
        "path": "one\nforged [error]",
    }
    assert (second["level"], second["event"], second["job_id"]) == ("error", "lease lost", "j2")
    assert "attempt" not in second
    assert "job_id" not in third


def run(program, log_format):
    done = subprocess.run([sys.executable, "-c", program, log_format], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()
