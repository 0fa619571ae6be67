"""A job's phases from its events."""

from datetime import UTC, datetime, timedelta

from service.dashboard.job.timeline import phase_spans
from service.schemas.events import EventView

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def event(second, kind, **fields):
    empty = dict.fromkeys(("from_state", "to_state", "phase", "reason", "message", "actor", "actor_key"))
    return EventView(id=1, at=BEGAN + timedelta(seconds=second), attempt=1, kind=kind, **(empty | fields))


def told(events, now=100.0):
    return [(one.phase, one.seconds, one.open) for one in phase_spans(events, BEGAN + timedelta(seconds=now))]


WHOLE = [
    event(0, "submitted"),
    event(2, "claimed"),
    event(3, "phase", phase="pulling"),
    event(9, "phase", phase="provisioning"),
    event(10, "started"),
    event(11, "adopted"),
    event(70, "ended"),
    event(75, "finished"),
]


def test_an_earlier_attempt_ends_where_the_job_was_queued_again():
    again = [*WHOLE[:7], event(80, "requeued"), event(90, "claimed")]
    first = [(one.phase, one.seconds, one.open) for one in phase_spans(again, BEGAN, attempt=1)]
    assert first[0] == ("queued", 2.0, False)
    assert first[-2:] == [("running", 60.0, False), ("collecting", 10.0, False)]


def test_no_events_and_a_clock_that_went_back():
    assert phase_spans([], BEGAN) == []
    assert told([event(5, "submitted")], now=0) == [("queued", 0.0, True)]
