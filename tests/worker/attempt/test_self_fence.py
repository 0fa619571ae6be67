"""A worker that is cut off from the database ends what others may start again."""

from types import SimpleNamespace

import pytest

from core.errors import StoreUnavailable
from core.settings import Settings
from worker.attempt import self_fence
from worker.attempt.control import AttemptControl
from worker.attempt.scratch import Scratch
from worker.attempt.self_fence import SelfFence
from worker.backends.base import base_handle


class _Backend:
    """A backend with one attempt of a job, which is never taken up by a watch."""

    def __init__(self, job, *, away=False):
        self._job = job
        self._away = away
        self.stopped = []

    def owned(self):
        if self._away:
            raise StoreUnavailable("The database does not answer.")
        return [] if self._job is None else [base_handle(self._job.id, 1, None)]

    def signal(self, handle, *, grace):
        self.stopped.append((handle["job_id"], grace))


@pytest.fixture
def job(submit):
    made = submit(max_attempts=2)
    made.attempt = 1
    return made


def context(tmp_path, backend):
    def scratch(job_id, attempt):
        made = Scratch(tmp_path, job_id, attempt)
        made.control.mkdir(parents=True, exist_ok=True)
        return made

    return SimpleNamespace(settings=Settings(home=tmp_path), backend=backend, scratch=scratch)


def check(tmp_path, running, backends):
    """Check these jobs, each with its backend, on a worker that lost contact long ago."""
    by_name = {f"backend {number}": backend for number, backend in enumerate(backends)}
    fence = SelfFence(context(tmp_path, by_name.__getitem__))
    fence.record_contact(-1e6)
    for (job, _), name in zip(running, by_name, strict=True):
        job.backend = name
    fence.check(running)


def test_a_backend_that_needs_the_database_keeps_no_other_job_running(tmp_path, job, submit):
    waiting = submit(max_attempts=2)
    backends = _Backend(None, away=True), _Backend(job)
    signals = AttemptControl(), AttemptControl()
    check(tmp_path, [(waiting, signals[0]), (job, signals[1])], backends)
    assert backends[1].stopped == [(job.id, True)]
    assert all(one.contact_lost for one in signals), "the first may run, too"


@pytest.mark.parametrize("unrecorded", [True, False])
def test_a_job_without_retries_is_ended_if_nobody_knows_of_its_start(tmp_path, submit, unrecorded):
    """For other workers it never began, so that they start it again; one that was recorded runs on."""
    once = submit(max_attempts=1)
    once.attempt = 1
    signals, backend = AttemptControl(), _Backend(once)
    signals.start_unrecorded = unrecorded
    check(tmp_path, [(once, signals)], [backend])
    assert [grace for _, grace in backend.stopped] == [True] * unrecorded
    assert signals.contact_lost == unrecorded


def test_a_job_that_has_ended_keeps_its_own_end(tmp_path, job):
    signals, backend = AttemptControl(), _Backend(job)
    control = Scratch(tmp_path, job.id, 1).control
    control.mkdir(parents=True)
    (control / "exit").write_text("0\n")
    check(tmp_path, [(job, signals)], [backend])
    assert (backend.stopped, signals.contact_lost) == ([], False)


def test_a_job_that_has_not_been_started_is_not_ended_once_it_is(tmp_path, job):
    signals = AttemptControl()
    check(tmp_path, [(job, signals)], [_Backend(None)])
    assert not signals.contact_lost


def test_a_worker_that_was_frozen_asks_the_database_before_it_ends_a_job(tmp_path, job, monkeypatch):
    clock, backend, signals = SimpleNamespace(at=0.0), _Backend(job), AttemptControl()
    monkeypatch.setattr(self_fence, "time", SimpleNamespace(monotonic=lambda: clock.at))
    fence = SelfFence(context(tmp_path, lambda _: backend))
    clock.at = 10_000.0
    fence.check([(job, signals)])
    assert backend.stopped == [], "another worker of this host may run it by now"
    clock.at += 5
    fence.check([(job, signals)])
    assert backend.stopped == [(job.id, True)], "the database does not answer"
