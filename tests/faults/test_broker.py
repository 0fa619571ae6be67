import pytest
from faults.table import trial
from faults.truth import GATE, recorded

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]


def test_smoke(shared):
    shared.start_api()
    shared.start_worker()
    with trial("F6", shared) as one:
        shared.submit(recorded("say hello; leave model weights", 3))
        one.lifted()
    assert one.jobs == 1
