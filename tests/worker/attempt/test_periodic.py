"""Steps that are repeated for running jobs."""

import threading

import pytest
from support.deployment import wait_until

from worker.attempt import periodic
from worker.attempt.periodic import PeriodicTask, Schedule


class _Steps(PeriodicTask):
    def __init__(self, job, first, pause=600.0):
        super().__init__(first, job.log_context())
        self.pause = pause
        self.count = 0
        self.threads = set()

    def step(self):
        self.count += 1
        self.threads.add(threading.current_thread().name)
        return self.pause


@pytest.fixture
def schedule():
    schedule = Schedule()
    yield schedule
    with schedule._changed:
        schedule._waiting.clear()
        schedule._changed.notify()
    wait_until(lambda: schedule._thread is None, "the end of the thread")


def _after_a_step(submit, schedule):
    """Count the steps of a task that is started now, after its first one."""
    task = _Steps(submit(), 0.0)
    task.start(schedule)
    wait_until(lambda: task.count, "a step")
    return task.count


def test_an_end_waits_for_the_step_in_progress(submit, schedule):
    began, may_end = threading.Event(), threading.Event()

    class Slow(_Steps):
        def step(self):
            began.set()
            may_end.wait(30)
            return super().step()

    slow = Slow(submit(), 0.0)
    slow.start(schedule)
    assert began.wait(30)
    ender = threading.Thread(target=slow.end)
    ender.start()
    assert ender.is_alive()
    assert slow.count == 0
    assert _after_a_step(submit, schedule) == 1, "a slow step holds nobody up"
    may_end.set()
    ender.join(30)
    assert slow.count == 1


def test_a_step_that_fails_is_logged_and_ends_its_task_alone(submit, schedule, caplog):
    class Broken(_Steps):
        def step(self):
            super().step()
            raise ValueError("broken")

    broken = Broken(submit(), 0.0, 0.0)
    broken.start(schedule)
    wait_until(lambda: "periodic_step_failed" in caplog.text, "the message")
    assert _after_a_step(submit, schedule) == 1
    assert broken.count == 1


def test_a_thread_that_cannot_be_started_delays_the_steps_alone(submit, schedule, monkeypatch):
    """As when a job has used up the threads that its host allows, for a moment."""
    failures = 2

    def start(thread, real=threading.Thread.start):
        nonlocal failures
        if failures and thread.name.startswith(name):
            failures -= 1
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(periodic, "_THREAD_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(threading.Thread, "start", start)
    name, task = "schedule", _Steps(submit(), 0.0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="thread"):
            task.start(schedule)
    name, failures = "periodic", 2
    assert _after_a_step(submit, schedule) == 1
    assert _after_a_step(submit, schedule) == 1
    task.end()
