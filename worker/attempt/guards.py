"""The guards of a running job: they find that it idles, stalls, diverges or fills its disk, by what the monitor sees.

What cannot be measured counts as work: a guard that is not sure says nothing. After a change of workers, times begin
again.
"""

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from core.formatting import MIB, format_short_duration
from core.jobs.spec.guards import GUARDS, LOG_REASON, parse_guard
from core.jobs.spec.job_spec import JobSpec
from core.jobs.spec.notify import log_expressions
from core.jobs.tracking.metrics import STREAM_BYTES

SCALE = 1  # seconds of a rule in one of the clock, for tests
_BUCKET = 10  # samples whose mean counts: one may catch what every program does now and then
_BUSY_PERCENT = 5.0  # of one CPU, or of an accelerator; an idle Jupyter server takes less than one
_MAX_GAP_SECONDS = 30.0  # without a sample, after which nothing is known of the time before
_WRITTEN_BYTES = 1 << 20  # that count as work: a log grows slower
_MAX_LINE = 500  # characters of a line of the log that are told
_LEAST_PAUSE_SECONDS = 6.0  # of a program whose steps follow faster, so that ten pauses are a minute
_LEAST_STEPS = 4
_REARM = 0.9  # part of its amount under which a guard may fire again
_ACCELERATOR = re.compile(r"(?:gpu|tpu)\d+_percent\Z")
_LOSS = re.compile(r"(?:.*[/_.\- ])?loss\Z", re.IGNORECASE)
_FIRST_LOSSES = 10  # with which later ones are compared
_EXPLODED = 100  # times the greatest of the first
_IN_A_ROW = 3  # bad values of a loss: a scaler of gradients skips one


class Firing(NamedTuple):
    reason: str | None  # None: it is a note
    action: str
    evidence: str
    about: str = ""  # beginning of the evidence of which one event is enough; "": all of it


class _Loss:
    def __init__(self) -> None:
        self.first: list[float] = []
        self.bad = 0
        self.diverged = ""  # the value with which it did

    def add(self, name: str, value: float, step: float | None) -> None:
        limit = _EXPLODED * max(self.first, default=math.inf)
        is_bad = not math.isfinite(value) or (len(self.first) == _FIRST_LOSSES and abs(value) > limit > 0)
        self.bad = self.bad + 1 if is_bad else 0
        if len(self.first) < _FIRST_LOSSES and not is_bad:
            self.first.append(abs(value))
        if self.bad < _IN_A_ROW:
            self.diverged = ""
        elif not self.diverged:
            at = "" if step is None else f" at step {step:g}"
            compared = f", after at most {max(self.first):.6g} at first" if self.first else ""
            self.diverged = f"{name} is {value:.6g}{at}{compared}"


class Guards:
    """`accelerators`: whether the job has any, without whose samples it is not idle."""

    def __init__(self, spec: JobSpec, *, accelerators: bool = False) -> None:
        self._actions = {field: parse_guard(field, getattr(spec, field)) for field in GUARDS}
        self.expressions = log_expressions(spec.notify)
        self._accelerators = accelerators
        now = time.monotonic()
        self._sampled_at = self._worked_at = self._used_at = self._progress_at = self._step_at = now
        self._sums: dict[str, float] = {}
        self._count = 0
        self._highest = {"CPU": 0.0, "accelerators": 0.0}
        self._unmeasured = False
        self._written = 0
        self._step, self._steps, self._longest = -math.inf, 0, 0.0
        self._losses: dict[str, _Loss] = {}
        self._read_to: dict[int, int] = {}  # the last offset, by stream
        self._disk = 0.0, ""
        self.logged: list[Firing] = []
        self._matched: set[str] = set()
        self._fired: set[tuple[str | None, str]] = set()

        self.active = any(self._actions.values()) or bool(self.expressions)

    def read_line(self, text: str) -> None:
        """Look through a line of the log; of each expression, only the first match is told."""
        for expression, compiled in self.expressions.items():
            if expression not in self._matched and compiled.search(text):
                self._matched.add(expression)
                line, about = text.strip()[:_MAX_LINE], f"{expression}: "
                self.logged.append(Firing(LOG_REASON, "notify", about + line, about))

    def read_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take note of new values of metrics."""
        now = time.monotonic()
        for row in rows:
            if row["source"] != "job":
                continue
            step, values = row["step"], row["values"]
            if step is not None and step > self._step:
                self._step, self._steps = step, self._steps + 1
                if self._steps > 1:
                    self._longest = max(self._longest, now - self._step_at)
                self._step_at = self._progress_at = self._used_at = now
            self.read_losses(row["offset"], step, values)

    def read_losses(self, offset: int, step: float | None, values: Mapping[str, float]) -> None:
        """Take note of losses, once: what follows stored rows begins with the last of them."""
        stream = offset // STREAM_BYTES
        if offset <= self._read_to.get(stream, -1):
            return
        self._read_to[stream] = offset
        for name, value in values.items():
            if _LOSS.match(name):
                self._losses.setdefault(name, _Loss()).add(name, value, step)

    @property
    def diverged(self) -> str | None:
        """The evidence of a loss that has diverged and has not recovered; None: there is none."""
        return next((loss.diverged for loss in list(self._losses.values()) if loss.diverged), None)

    def record_output(self) -> None:
        self._progress_at = time.monotonic()

    def sample(self, values: Mapping[str, float], written: int, *, in_use: bool) -> None:
        """Take note of the usage now, of the bytes written so far, and whether somebody uses the job."""
        now = time.monotonic()
        if now - self._sampled_at > _MAX_GAP_SECONDS or "cpu_percent" not in values:
            self._worked_at = self._used_at = now
        self._sampled_at = now
        if in_use:
            self._used_at = now
        if abs(written - self._written) >= _WRITTEN_BYTES:  # less: a process has ended
            self._written, self._worked_at, self._used_at = written, now, now
        used = [value for name, value in values.items() if _ACCELERATOR.match(name)]
        means = {"CPU": values.get("cpu_percent", 0.0), "accelerators": max(used, default=0.0)}
        if self._accelerators and not used:
            self._used_at = now
            if self._actions["on_idle"] and not self._unmeasured:
                self._unmeasured = True
                self.logged.append(
                    Firing(None, "notify", "--onIdle is not applied: its accelerators are not measured.")
                )
        self._sums = {name: self._sums.get(name, 0.0) + value for name, value in means.items()}
        self._count += 1
        if self._count == _BUCKET:
            self._end_bucket(now)

    def _end_bucket(self, now: float) -> None:
        means = {name: total / self._count for name, total in self._sums.items()}
        self._sums, self._count = {}, 0
        self._highest = {name: max(mean, self._highest[name]) for name, mean in means.items()}
        if means["CPU"] >= _BUSY_PERCENT:
            self._worked_at = now
        if max(means.values()) >= _BUSY_PERCENT:
            self._used_at = now
            self._highest = dict.fromkeys(means, 0.0)

    def set_disk(self, share: float, free: int) -> None:
        """Take note of the part of its disk space that the job has used, and of the bytes that are left."""
        self._disk = 100 * share, f"{100 * share:.0f} % of the space for it is used, {free // MIB:,} MiB are left"

    def due(self) -> Iterator[Firing]:
        """Yield what is to be done now; `fired` has to be called for what was done."""
        yield from self.logged
        for field, actions in self._actions.items():
            amount, evidence = self._measure(field) if actions else (0.0, "")
            for action, limit in sorted(actions, key=lambda due: due.amount):
                fired = GUARDS[field].reason, action
                if amount >= limit and fired not in self._fired:
                    yield Firing(*fired, evidence)
                elif amount < _REARM * limit:
                    self._fired.discard(fired)

    def fired(self, firing: Firing) -> None:
        if firing in self.logged:
            self.logged.remove(firing)
        else:
            self._fired.add(firing[:2])

    def _measure(self, field: str) -> tuple[float, str]:
        now = time.monotonic()
        if field == "on_idle":
            seconds = now - self._used_at
            used = ", ".join(
                f"{name} at most {self._highest[name]:.1f} %"
                for name in self._highest
                if name == "CPU" or self._accelerators
            )
            return seconds * SCALE, f"{used} for {format_short_duration(int(seconds))}"
        if field == "on_stall":
            silent, longest = now - max(self._progress_at, self._worked_at), max(self._longest, _LEAST_PAUSE_SECONDS)
            evidence = (
                f"no step after {self._step:g}, no output and no work for {format_short_duration(int(silent))}; the "
                f"longest pause between steps was {self._longest:.1f} s"
            )
            return (silent / longest if self._steps >= _LEAST_STEPS else 0.0), evidence
        return self._disk if field == "on_disk" else (float(bool(self.diverged)), self.diverged or "")
