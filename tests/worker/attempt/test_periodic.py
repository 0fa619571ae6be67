"""Threads that repeat a step for a running job."""

import threading

from worker.attempt.periodic import PeriodicThread


class _Steps(PeriodicThread):
    def __init__(self, job, pause):
        super().__init__("steps", job, pause)
        self.stepped = threading.Event()

    def step(self):
        self.stepped.set()
        return 600.0


def test_a_thread_starts_once_its_first_step_is_due_and_not_again(submit):
    steps = _Steps(submit(), 0.0)
    for _ in range(2):
        steps.start_if_due()
    assert steps.stepped.wait(30)
    steps.end()
    assert not steps.is_alive()


def test_of_a_short_job_no_thread_starts(submit):
    steps = _Steps(submit(), 600.0)
    steps.start_if_due()
    steps.end()
    assert steps.ident is None
