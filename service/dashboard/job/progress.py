"""The progress of a running job, as it says itself: by a bar or counts in its log, or by the steps of its metrics."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.db.models.metrics import Metric
from core.jobs.costs import limits
from core.jobs.spec.params import Value
from core.jobs.states import JobState
from service.app_state import AppState
from service.dashboard.rendering import strip_colours

_LINES = 200
_CHARACTERS = 500  # of a line, its last ones
_ROWS = 50  # last rows of metrics that are read: rows of single epochs may be among those of steps
_FEWEST_LEFT = 8  # with fewer it matters whether a count is of what begins or of what has ended
_MINUTES_FROM, _HOURS_FROM = 100.0, 6000.0  # seconds
_COUNT = re.compile(
    r"\b(epoch|step|iter(?:ation)?|update|round|trial|episode)s?\b[\s:=#\[(]{0,5}(\d[\d,]{0,14})\s?(?:/|of)\s?(\d[\d,]{0,14})(?![\d,]|[/.]\d)",
    re.IGNORECASE,
)
_OF_A_PART = re.compile(r"\b(?:eval|valid|val\b|test|warm|download|load)", re.IGNORECASE)
_EPOCH = re.compile(r"\bepoch", re.IGNORECASE)
# A bar of tqdm without a description, or with one that says that it is of the training.
_BAR = re.compile(
    r"^\s*(?:(?:train\w*|steps?|progress)\s*:)?\s*\d+%\|[^|]*\|\s*(\d+)/(\d+) \[([\d:]+)<([\d:?]+),", re.IGNORECASE
)
_TOTALS = re.compile(r"(?:(?:max|total)_)?(?:(?:train|training)_)?(?:steps|timesteps|iters|iterations)\Z")


class Progress(NamedTuple):
    text: str  # such as `step 400/4000`
    share: float
    seconds_left: float | None  # None: unknown

    @property
    def left(self) -> str:
        """The time left as an estimate is told, without more digits than it has."""
        seconds = self.seconds_left or 0.0
        if seconds < _MINUTES_FROM:
            return f"{seconds:.0f} s"
        return f"{seconds / 60:.0f} min" if seconds < _HOURS_FROM else f"{seconds / 3600:.1f} h"


class _Count(NamedTuple):
    unit: str
    done: int
    total: int
    at: float  # Unix time


def read_progress(
    session: Session, app_state: AppState, job: Job, params: Mapping[str, Value]
) -> tuple[Progress | None, float | None]:
    """Return the progress of a running job, if its log or metrics tell it, and the seconds left by a limit."""
    if job.state is not JobState.RUNNING:
        return None, None
    current = datetime.now(UTC)
    lines = _last_lines(app_state, job, current.timestamp())
    ran = (current - job.started_at).total_seconds() if job.started_at else 0.0
    counts = list(_counts(lines)) or list(_steps(session, job, params))
    progress = _of_bar(lines[-1][1], ran) or (_of_counts(counts, current.timestamp()) if counts else None)
    limit = limits.deadline(job)
    return progress, None if limit is None else max(0.0, limit.seconds - ran)


def _last_lines(app_state: AppState, job: Job, current: float) -> list[tuple[float, str]]:
    """Return the last lines of the attempt with their Unix times; the last one is unfinished, and may be empty."""
    reader = app_state.logs.reader(job.id)
    first = reader.first_line(job.attempt)
    if first is None:
        return [(current, "")]
    section = reader.section(max(first - 1, reader.tail(_LINES, final=False)), _LINES, final=False)
    texts = [(line.time_ms / 1000, line.message) for line in section.lines] + [(current, section.partial)]
    return [(at, strip_colours(text[-_CHARACTERS:])) for at, text in texts]


def _of_bar(line: str, ran: float) -> Progress | None:
    """Return the progress by the bar that a line is, if the bar is of most of the time that the job ran."""
    match = _BAR.search(line)
    if match is None or 2 * _seconds(match[3]) < ran or not 0 < int(match[2]) >= int(match[1]):
        return None
    done, total = int(match[1]), int(match[2])
    left = None if "?" in match[4] else float(_seconds(match[4]))
    return Progress(f"step {done}/{total}", done / total, left)


def _seconds(clock: str) -> int:
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part or 0)
    return seconds


def _counts(lines: list[tuple[float, str]]) -> Iterator[_Count]:
    """Yield the counts that lines have, of epochs alone if a line speaks of epochs: steps may be those of one."""
    epochs = any(_EPOCH.search(text) for _, text in lines)
    for at, text in lines:
        for match in _COUNT.finditer(text):
            unit, (done, total) = match[1].lower(), (int(match[group].replace(",", "")) for group in (2, 3))
            of_part = _OF_A_PART.search(text, 0, match.start()) or epochs != (unit == "epoch")
            if not of_part and 0 < total >= done:
                yield _Count(unit, done, total, at)


def _steps(session: Session, job: Job, params: Mapping[str, Value]) -> Iterator[_Count]:
    """Yield the first and the last step of the metrics, if a parameter names their number."""
    totals = {
        int(value)
        for name, value in params.items()
        if isinstance(value, int | float)
        and _TOTALS.match(name.replace("-", "_").lower())
        and (name.lower().startswith(("max", "total")) or not any("epoch" in other.lower() for other in params))
        and 1 <= value < 2**53
    }
    of_job = Metric.job_id == job.id, Metric.attempt == job.attempt, Metric.source == "job", Metric.step.is_not(None)
    rows = select(Metric.step, Metric.at).where(*of_job)
    last = session.execute(rows.order_by(Metric.offset.desc()).limit(_ROWS)).all() if len(totals) == 1 else []
    if not last:
        return
    first = session.execute(rows.order_by(Metric.offset).limit(1)).one()
    [total] = totals
    highest = max(last, key=lambda row: (row.step, row.at))
    if 0 <= first.step <= highest.step <= total:
        yield from (_Count("step", int(row.step), total, row.at.timestamp()) for row in (first, highest))


def _of_counts(counts: list[_Count], current: float) -> Progress:
    last = counts[-1]
    text, share, rest = f"{last.unit} {last.done}/{last.total}", last.done / last.total, last.total - last.done
    alike = (count for count in counts if (count.unit, count.total) == (last.unit, last.total))
    first = next((count for count in alike if count.done < last.done and count.at < last.at), None)
    if first is None or rest < _FEWEST_LEFT:
        return Progress(text, share, None)
    left = rest * (last.at - first.at) / (last.done - first.done) - (current - last.at)
    return Progress(text, share, left if left > 0 else None)
