"""Processes of the worker's host, at moments when a job starts or ends."""

import pytest
from support.backend_harness import BackendHarness

from core.settings.worker import ProcessSettings
from worker.backends.job_processes import JobProcesses

pytestmark = pytest.mark.integration


def test_a_wrapper_that_starts_while_it_is_looked_for_is_not_lost(tmp_path, monkeypatch):
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="off"))
    spec, handle = place.running("echo up; sleep 600")
    started, hidden = spec.control / "started", spec.control / "hidden"
    started.rename(hidden)

    def start_meanwhile(_processes):
        hidden.rename(started)
        return False

    with monkeypatch.context() as patched:
        patched.setattr(JobProcesses, "leader_alive", start_meanwhile)
        assert place.backend.poll(handle) is None
    assert place.backend.poll(handle) is None
    place.clear()
    assert place.backend.poll(handle).reason == "process_lost"
