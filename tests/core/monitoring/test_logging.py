"""Our own logs, as a process writes them."""

import subprocess
import sys

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


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_an_error_is_told_with_its_place_and_without_what_variables_hold(log_format):
    done = subprocess.run([sys.executable, "-c", PROGRAM, log_format], capture_output=True, text=True, check=True)
    assert "database_unavailable" in done.stderr
    assert "no route to the database" in done.stderr
    assert "in connect" in done.stderr
    assert "correct horse" not in done.stderr
