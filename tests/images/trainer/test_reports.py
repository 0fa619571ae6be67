import os
import signal

import pytest

from gradient_trainer.errors import TrainingStopped
from gradient_trainer.measurement.pace import WARM_UP_STEPS, Pace
from gradient_trainer.training.stop import StopRequest


def test_pace_leaves_out_warm_up_and_the_time_between_measurements():
    now = [0.0]
    pace = Pace(clock=lambda: now[0], cpu_clock=lambda: 3 * now[0])

    def measure(steps, seconds_each):
        pace.begin()
        for _ in range(steps):
            now[0] += seconds_each
            pace.step()
        return pace.end()

    assert measure(1, 30.0) is None
    now[0] += 100
    assert measure(WARM_UP_STEPS - 1 + 10, 0.5) == pytest.approx(2.0)
    now[0] += 100
    assert measure(30, 0.25) == pytest.approx(4.0)
    assert pace.overall == pytest.approx(40 / 12.5)
    assert pace.cpu_seconds_per_step == pytest.approx(3 * 12.5 / 40)


def test_pace_is_unknown_before_the_warm_up_is_over():
    pace = Pace()
    pace.begin()
    pace.step()
    assert pace.end() is None
    assert pace.overall is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_remembered_and_the_old_reaction_returns(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert stop.signal is None
        os.kill(os.getpid(), number)
        assert stop.signal is number
    assert signal.getsignal(number) is before


def test_a_second_interrupt_ends_at_once():
    with StopRequest():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_stopped_is_an_exit_with_the_shells_code():
    assert TrainingStopped(7, signal.SIGTERM).code == 143
