"""The explanation of a failed job, in its public form."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from core.formatting import MIB, format_memory
from core.jobs.explanations import OF_LOG, Explanation, explain
from core.jobs.failure_rules import CLASSES
from core.jobs.log_failures import LogFailure
from core.storage.joblogs.reader import LogLine, LogReader
from core.storage.joblogs.store import JobLogs
from service.schemas.jobs import CloneAdvice, ExplanationView, JobView, LogEvidence, PlaceView

_LAST_LINES = 300
_LAST_BYTES, _MOST_BYTES = 64 * 1024, 1024**2
_SHOWN = 1000  # characters of a line
_SHARED_MB, _ATTEMPTS = 1024, 3
_LIMIT = re.compile(r"\((([\d,.]+) (MiB|GiB))")
_MEBIBYTES = {"MiB": 1, "GiB": 1024}
_FAILED = frozenset({"Failed", "Error", "Kept"})


def explanation_of(logs: JobLogs, job: JobView) -> ExplanationView:
    """Judge a job, from its reason or from the end of its log."""
    failed = job.state in _FAILED
    lines = _last_lines(logs.reader(job.id)) if failed and job.exit_code is not None else []
    explanation = explain(job.reason, job.message, [line.message for line in lines]) if failed else Explanation(None)
    failure = explanation.failure
    shown = lines[failure.line] if failure and failure.line is not None and failure.line < len(lines) else None
    last = None if shown else next((line for line in reversed(lines) if line.message.strip()), None)
    return ExplanationView(
        id=job.id,
        state=job.state,
        cause=explanation.cause,
        meaning=_meaning(job, explanation.cause),
        source=None if explanation.cause is None else "log" if job.reason in OF_LOG else "service",
        reason=job.reason,
        message=job.message,
        evidence=LogEvidence(line=shown.line, message=failure.text[:_SHOWN]) if shown and failure else None,
        last_line=LogEvidence(line=last.line, message=last.message[:_SHOWN]) if last else None,
        place=PlaceView.of(failure.place) if failure and failure.place else None,
        remedy=_remedy(job, failure) if failure else None,
        clone=_advise(job, explanation.option),
    )


def _meaning(job: JobView, cause: str | None) -> str | None:
    limit = _LIMIT.search(job.message or "") if job.reason == "out_of_memory" else None
    return f"the job's memory limit ({limit[1]})" if limit else CLASSES[cause] if cause else None


def _last_lines(reader: LogReader) -> list[LogLine]:
    newlines = 0
    for length in (_LAST_BYTES, _MOST_BYTES):
        if newlines < _LAST_LINES:
            newlines = reader.raw(reader.size - length, length).count(b"\n")
    count = min(_LAST_LINES, max(1, newlines))
    return reader.lines(reader.tail(count, final=True), count, final=True)


def _remedy(job: JobView, failure: LogFailure) -> str | None:
    """Return what to do; the worker knows it of modules, since it has seen the workspace."""
    why, _, remedy = (failure.rule.says if failure.rule else "").partition(": ")
    if "{remedy}" in remedy:
        advice = (job.message or "").partition(f"{why.format(**failure.named)}: ")[2]
        remedy = advice.removesuffix(". See the end of its log.")
    return remedy or None


def _advise(job: JobView, option: str | None) -> CloneAdvice | None:
    """Return the change with which a clone may succeed; None: no value is known to be larger."""
    options: Any = job  # its options are fields that are made at run time
    limit = _LIMIT.search(job.message or "")
    present: Mapping[str | None, int | None] = {
        "memoryMb": options.memory_mb
        or (round(float(limit[2].replace(",", "")) * _MEBIBYTES[limit[3]]) if limit else 0),
        "sharedMemMb": options.shared_mem_mb or _SHARED_MB,
        "timeLimit": options.time_limit,
    }
    value = (
        _ATTEMPTS if option == "maxAttempts" and options.max_attempts < _ATTEMPTS else 2 * (present.get(option) or 0)
    )
    if not option or not value:
        return None
    labels = {
        "memoryMb": format_memory(value * MIB),
        "sharedMemMb": f"{format_memory(value * MIB)} of shared memory",
        "timeLimit": f"{value:,} s",
        "maxAttempts": f"{value} attempts",
    }
    query = urlencode({"from": job.id, option: value})
    url = job.url.replace(f"/ui/jobs/{job.id}", f"/ui/jobs/new?{query}")
    return CloneAdvice(option=option, value=value, label=f"Clone with {labels[option]}", url=url)
