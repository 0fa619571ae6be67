"""Kill the API while it creates the jobs of a schedule: no time is missed, and none has two jobs."""

import signal
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select, update
from support.deployment import wait_until

from core.db.database import Database, now
from core.db.models.schedules import Schedule

MINUTES = 8


@pytest.mark.parametrize("name", ["submit_before_commit", "submit_after_commit"])
def test_no_minute_is_missed_or_doubled(deployment, name):
    api = deployment.start_api()
    body = {"machineType": "CPU", "command": "true", "cron": "* * * * *", "onMiss": "all"}
    made = deployment.request("POST", "/schedules", json=body).json()
    api.kill()
    database = Database(deployment.database_url)
    with database.write() as session:  # as if nothing had run for some minutes
        first = session.scalars(select(now())).one().replace(second=0, microsecond=0) - timedelta(minutes=MINUTES - 1)
        session.execute(update(Schedule).values(next_at=first))
    database.close()
    for _ in range(3):
        doomed = deployment.start("api", "--port", "0", GRADIENT_FAILPOINT=name)
        assert doomed.wait() == -signal.SIGKILL, doomed.read_log()
    for _ in range(2):  # both at once
        api = deployment.start_api()

    def times():
        jobs = deployment.request("GET", f"/jobs?q=schedule:{made['id']}&limit=200").json()["jobs"]
        return sorted(datetime.fromisoformat(job["envVars"]["SCHEDULED_AT"]) for job in jobs)

    wait_until(lambda: len(times()) >= MINUTES, "a job for each minute")
    api.kill()
    deployment.start_api()
    found = times()
    assert found == [first + timedelta(minutes=number) for number in range(len(found))]
