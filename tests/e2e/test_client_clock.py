"""Clients whose clock or time zone is not the server's."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

CLIENT = Path(sys.executable).with_name("gradient-cli")


@pytest.fixture(scope="module")
def job(service):
    job_id = service.submit("echo said")
    service.wait_ended(job_id)
    return job_id


def run(service, *arguments, **env):
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENT_")}
    done = subprocess.run(
        [str(CLIENT), *arguments],
        env=plain | {"GRADIENT_HOME": str(service.home)} | env,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("offset", ["+3h", "-3h", "+400d"])
def test_ages_are_those_by_the_servers_clock(service, job, faketime, offset):
    wrong = {"LD_PRELOAD": faketime, "FAKETIME": offset, "NO_FAKE_STAT": "1"}  # or Python compiles all modules again
    assert job in run(service, "jobs", "list", "--since", "10m", **wrong)
    assert "said" in run(service, "jobs", "logs", job, "--since", "10m", **wrong)
    assert "said" not in run(service, "jobs", "logs", job, "--until", "10m", **wrong)
    listed = run(service, "jobs", "list", **wrong)
    assert re.search(r"just now|\b\d+[sm] ago", listed), listed


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York", "UTC"])
def test_a_time_without_a_zone_is_utc_everywhere(service, job, zone):
    now = datetime.now(UTC)
    for at, found in ((now - timedelta(hours=1), True), (now + timedelta(hours=1), False)):
        moment = f"{at:%Y-%m-%dT%H:%M}"
        listed = run(service, "jobs", "list", "--since", moment, TZ=zone)
        queried = run(service, "jobs", "list", "--query", f"created>{moment}", TZ=zone)
        assert [job in listed, job in queried] == [found, found]
        assert ("said" in run(service, "jobs", "logs", job, "--since", moment, TZ=zone)) is found
        zoned = at.astimezone().isoformat(timespec="minutes")
        assert (job in run(service, "jobs", "list", "--since", zoned, TZ=zone)) is found
