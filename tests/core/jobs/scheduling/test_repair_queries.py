"""The lease on the shared repairs."""

from sqlalchemy import update

from core.db.database import now
from core.db.models.jobs import LeaderLease
from core.jobs.scheduling.repair_queries import try_become_leader


def test_a_lease_does_not_outlast_a_clock_that_was_set_back(database):
    with database.write() as session:
        assert try_become_leader(session, "sweep", "dead", 60)
        assert not try_become_leader(session, "sweep", "w2", 60)
        session.execute(update(LeaderLease).values(until=now(3660)))  # as after the clock was set back by an hour
        assert try_become_leader(session, "sweep", "w2", 60)
        assert not try_become_leader(session, "sweep", "w3", 60)
