"""Checks by the recorded events that jobs were claimed in the promised order.

Among the jobs that wait: the highest priority; then the project with the fewest jobs under way; then the one that was
submitted first, within its project.
"""

from collections import Counter
from datetime import timedelta
from typing import Any

ORDER_TOLERANCE = timedelta(seconds=2)
"""Uncertainty of the order of events of different transactions: a younger event may not have been visible."""


def find_claim_order_violations(jobs: list[dict[str, Any]], events: list[dict[str, Any]]) -> list[str]:
    """List every claim that passed over a job that certainly waited and certainly came first.

    Args:
        jobs: Rows of jobs that any worker could run: what does not fit may be passed over.
        events: Rows of their events.
    """
    jobs_by_id = {job["id"]: job for job in jobs}
    ordered = sorted((event for event in events if event["job_id"] in jobs_by_id), key=lambda event: event["id"])
    finished_at = {event["job_id"]: event["at"] for event in ordered if event["kind"] == "finished"}
    waiting: dict[str, Any] = {}
    claimed: dict[str, Any] = {}
    found = []
    for event in ordered:
        if event["kind"] == "submitted":
            waiting[event["job_id"]] = event["at"]
        if event["kind"] != "claimed":
            continue
        taken, at = jobs_by_id[event["job_id"]], event["at"]
        waiting.pop(taken["id"], None)
        certainly_waiting = [jobs_by_id[job_id] for job_id, since in waiting.items() if since < at - ORDER_TOLERANCE]
        found += _passed_over(taken, certainly_waiting)
        most, least = _count_running(jobs_by_id, claimed, finished_at, at)
        found += [
            f"{taken['id']} of {taken['project_id']} was claimed before {other['id']} of {other['project_id']}"
            for other in {
                job["project_id"]: job for job in certainly_waiting if job["priority"] == taken["priority"]
            }.values()
            if most[other["project_id"]] < least[taken["project_id"]]
        ]
        claimed[taken["id"]] = at
    return found


def _passed_over(taken: dict[str, Any], certainly_waiting: list[dict[str, Any]]) -> list[str]:
    more = [job["id"] for job in certainly_waiting if job["priority"] > taken["priority"]]
    same = [
        job
        for job in certainly_waiting
        if (job["project_id"], job["priority"]) == (taken["project_id"], taken["priority"])
    ]
    older = [job["id"] for job in same if job["seq"] < taken["seq"]]
    found = [f"{taken['id']} was claimed before {other}, whose priority is higher" for other in more]
    return found + [f"{taken['id']} was claimed before {other}, which was submitted earlier" for other in older]


def _count_running(
    jobs_by_id: dict[str, dict[str, Any]], claimed: dict[str, Any], finished_at: dict[str, Any], at: Any
) -> tuple[Counter[str], Counter[str]]:
    """Jobs under way of each project, at most and at least, as far as a claim at this time can have known."""
    most: Counter[str] = Counter()
    least: Counter[str] = Counter()
    for job_id in list(claimed):
        over = finished_at.get(job_id)
        if over is not None and over < at - ORDER_TOLERANCE:
            del claimed[job_id]
            continue
        most[jobs_by_id[job_id]["project_id"]] += 1
        least[jobs_by_id[job_id]["project_id"]] += over is None or over > at + ORDER_TOLERANCE
    return most, least
