import pytest
from starlette.exceptions import HTTPException

from core.errors import Unauthorized
from service.throttle import Throttle


def fail(throttle, name):
    with pytest.raises(Unauthorized), throttle.trying(name):
        raise Unauthorized("wrong")


def refused(throttle, name):
    try:
        with throttle.trying(name):
            pass
    except HTTPException as error:
        return error.status_code
    return None


def test_too_many_failures_close_a_name_and_no_other_for_a_while(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("service.throttle.time.monotonic", lambda: now[0])
    throttle = Throttle(failures=3, seconds=60)
    for _ in range(3):
        fail(throttle, "ann")
    assert (refused(throttle, "ann"), refused(throttle, "bob")) == (429, None)
    now[0] += 61
    assert refused(throttle, "ann") is None


def test_success_forgets_failures():
    throttle = Throttle(failures=2, seconds=60)
    fail(throttle, "ann")
    assert refused(throttle, "ann") is None
    fail(throttle, "ann")
    assert refused(throttle, "ann") is None


def test_only_a_few_are_tried_at_once(monkeypatch):
    monkeypatch.setattr("service.throttle._WAIT_SECONDS", 0.01)
    throttle = Throttle(failures=2, seconds=60)
    with throttle.trying("a"), throttle.trying("b"):
        assert refused(throttle, "c") == 429
    assert refused(throttle, "c") is None
