"""A simulated clock of an SQLite database."""

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from sqlalchemy import event

MIDNIGHT = datetime(2026, 3, 5, tzinfo=UTC)


class Clock:
    """In seconds after a midnight."""

    seconds = 0.0

    def strftime(self, _form, _now, shift):
        at = MIDNIGHT + timedelta(seconds=self.seconds + float(shift.split()[0]))
        return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}"


@contextmanager
def simulated_clock(database):
    clock = Clock()

    def set_clock(connection, *_):
        connection.create_function("strftime", -1, clock.strftime)

    event.listen(database.engine, "checkout", set_clock)
    yield clock
    event.remove(database.engine, "checkout", set_clock)
