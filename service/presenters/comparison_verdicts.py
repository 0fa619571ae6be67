"""Verdicts of comparisons in the table of jobs, measured when all jobs have ended, a few at a time, and kept."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from cachetools import FIFOCache
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.models.comparisons import Comparison, ComparisonJob
from core.db.models.jobs import Job
from service.app_state import AppState
from service.presenters.comparisons import comparison_view

_MEASURED_AT_ONCE = 2  # each takes a tenth of a second; the page shows the others when it refreshes
_MOST_KEPT = 1000
_verdicts: FIFOCache[tuple[Any, ...], str] = FIFOCache(_MOST_KEPT)
_lock = threading.Lock()


class Compared(NamedTuple):
    title: str
    machine_names: str
    verdict: str  # in a sentence; empty: not measured yet


def compared(session: Session, app_state: AppState, made: Sequence[Comparison]) -> dict[str, Compared]:
    columns = Job.id, Job.machine_type, Job.state, Job.finished_at, Job.logs_removed_at
    members = select(ComparisonJob.comparison_id, *columns).join(Job, Job.id == ComparisonJob.job_id)
    wanted = members.where(ComparisonJob.comparison_id.in_([row.id for row in made]), Job.deleted_at.is_(None))
    jobs = defaultdict[str, list[tuple[Any, ...]]](list)
    for comparison_id, *job in session.execute(wanted.order_by(Job.seq)):
        jobs[comparison_id].append(tuple(job))
    shown, left = dict[str, Compared](), _MEASURED_AT_ONCE
    for row in made:
        key = (row.id, row.metric, row.goal, row.target, *jobs[row.id])
        ended = row.imported_file is None and all(finished_at for *_, finished_at, _ in jobs[row.id])
        with _lock:
            verdict = _verdicts.get(key) if ended else ""
        if verdict is None and left:
            left -= 1
            verdict = comparison_view(session, app_state, row).verdict
            with _lock:
                _verdicts[key] = verdict
        machines = ", ".join(dict.fromkeys(machine_type for _, machine_type, *_ in jobs[row.id]))
        shown[row.id] = Compared(row.name or machines or row.id, machines, verdict or "")
    return shown
