"""A worker that adopts a starting attempt whose command already runs, and has hidden that."""

import os

import pytest
from support.deployment import wait_until

from core.db.database import Database
from core.jobs import lifecycle
from worker.attempt.control import AttemptControl, Detached
from worker.attempt.pipeline import run_attempt
from worker.backends.base import base_handle
from worker.backends.job_processes import find_running

pytestmark = pytest.mark.integration

HIDE = 'ln -sf {victim} "$VIRTUAL_ENV/pyvenv.cfg"; : >"${{GRADIENT_METRICS_FILE%/*}}/started"; echo hidden; sleep 600'


@pytest.fixture
def database(sqlite_database: Database):
    return sqlite_database


def test_nothing_is_written_where_the_job_can_lead_it_elsewhere(host, claim, tmp_path, monkeypatch):
    def let_go(_session, _job, handle, *_):
        handles.append(handle)
        raise Detached

    monkeypatch.setattr(lifecycle, "mark_running", let_go)
    handles, victim = [], tmp_path / "victim"
    victim.write_text("of the host")
    job = claim(HIDE.format(victim=victim))
    scratch = host.scratch(job.id, 1)
    log = scratch.control / "log"
    try:
        run_attempt(host, job, AttemptControl())
        wait_until(lambda: log.exists() and log.read_bytes() == b"hidden\n", "the job to hide its start")
        command = (scratch.control / "command").stat()
        (scratch.workspace / "linked").hardlink_to(victim)
        run_attempt(host, job, AttemptControl())
        assert len(handles) == 2
        assert victim.read_text() == "of the host"
        assert victim.stat().st_uid == os.getuid()
        assert (scratch.root / "python" / "pyvenv.cfg").is_symlink()
        assert (scratch.control / "command").stat().st_ino == command.st_ino
        assert log.read_bytes() == b"hidden\n", "it was started twice"
        assert [handle["job_id"] for handle in find_running(scratch.root.parent)] == [job.id]
    finally:
        host.backend("process").destroy(base_handle(job.id, 1, scratch.control))
