"""Many jobs at once from many clients to many workers: all end, none runs twice, and who is next is fair."""

import logging
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from support.faults.claim_order import find_claim_order_violations
from support.faults.fault_report import FULL_RUN, fault_trial, tries
from support.faults.job_journal import recorded_command

from core.db.models.jobs import Event, Job
from core.settings.worker import WorkerSettings

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(7200 if FULL_RUN else 300)]

CLIENTS, WORKERS = 8, 4
JOBS = tries(60, 10_000)
PRIORITIES = (10, 50, 90)
PROJECTS = ("alpha", "beta", "gamma")
# Nothing is to be repaired here: repairs are as rare as in production.
TIMERS = {
    f"GRADIENT_WORKER__{name.upper()}": str(WorkerSettings.model_fields[name].default)
    for name in ("lease_seconds", "poll_seconds", "sweep_seconds")
}


def test_all_jobs_of_a_mass_submission_end_and_their_order_is_fair(full_deployment):
    full_deployment.start_api(GRADIENT_LIMITS__SUBMISSIONS_PER_MINUTE="0", GRADIENT_LIMITS__REQUESTS_PER_MINUTE="0")
    for number in range(WORKERS):
        full_deployment.start_worker(f"w{number}", GRADIENT_WORKER__SLOTS="4", **TIMERS)
    with fault_trial("F21", full_deployment, seconds=7000) as one:
        one.tries = tries(1, 3)
        for round_ in range(one.tries):
            began = time.monotonic()
            seconds = submit_all(full_deployment, round_)
            one.mark_lifted()
            full_deployment.wait_all_ended(7000)
            one.repaired()
            logger.info("%d jobs, from the first submission to the last end: %.0f s", JOBS, time.monotonic() - began)
            assert sorted(seconds)[int(len(seconds) * 0.5)] < 5, "answers while everybody submits"
    jobs, events = full_deployment.rows(Job, Event)
    assert len(jobs) == JOBS * one.tries
    assert find_claim_order_violations(jobs, events) == []


def submit_all(deployment, round_):
    """As many clients as there are, each with every priority and, in unequal parts, every project."""
    seconds = []

    def client(number):
        for job in range(number, JOBS, CLIENTS):
            began = time.monotonic()
            deployment.submit(
                recorded_command("sleep 0.05; say done", job % 2),
                key=f"key{round_}-{job}",
                priority=PRIORITIES[job % 3],
                project=PROJECTS[min(job % 5, 2)],
            )
            seconds.append(time.monotonic() - began)

    clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert len(seconds) == JOBS
    return seconds


def history(*claims, priorities=(50, 50, 50, 50), projects=("a", "a", "b", "b")):
    """Four jobs that were submitted long before, and then claimed in this order, ten seconds apart."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    jobs = [
        {"id": f"j{seq}", "seq": seq, "priority": priority, "project_id": project}
        for seq, (priority, project) in enumerate(zip(priorities, projects, strict=True))
    ]
    events = [{"id": seq, "job_id": f"j{seq}", "kind": "submitted", "at": noon} for seq in range(4)]
    for place, seq in enumerate(claims):
        at = noon + timedelta(seconds=10 * (place + 1))
        events.append({"id": 10 + place, "job_id": f"j{seq}", "kind": "claimed", "at": at})
    return jobs, events


def test_a_fair_order_is_told_from_an_unfair_one():
    assert find_claim_order_violations(*history(0, 2, 1, 3)) == []
    assert find_claim_order_violations(*history(2, 0, 3, 1)) == []
    assert "submitted earlier" in find_claim_order_violations(*history(1, 2, 0, 3))[0]
    assert "was claimed before j" in find_claim_order_violations(*history(0, 1, 2, 3))[0], (
        "two of one project while another has none"
    )
    assert "priority is higher" in find_claim_order_violations(*history(0, 2, 1, 3, priorities=(50, 90, 50, 50)))[0]
    assert find_claim_order_violations(*history(1, 2, 0, 3, priorities=(50, 90, 50, 50))) == []
