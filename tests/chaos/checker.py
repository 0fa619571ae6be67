"""Invariants that must hold after the run: those of `support.faults.invariants`, and more of its jobs and clients.

I13  every job ends as its kind does: no infrastructure fault is reported as the user's, and no attempt is lost to a
     fault that a retry would have repaired
I14  what an attempt left is kept, whole
I15  a follower is sent every line of the log once, in order, over any number of connections
I16  an unavailable part is reported as such: the only status of 500 or more is 503, and no worker takes a database
     that does not answer for a fault of its own
I17  nothing is left when all is over: messages, ports, connections, locks, what the engine made
I18  no process opens more and more files, or takes more and more memory
"""

import contextlib
import hashlib
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from chaos.clients import Clients
from chaos.nemesis import RECOVERY_SECONDS, InjectedFault, Nemesis
from chaos.stack import DOCKER_TYPE, Stack
from chaos.workload import AcceptedJob
from sqlalchemy import text
from support.deployment import wait_until
from support.faults.container_jobs_deployment import ENGINE_INTERNALS, find_shims, list_engine_objects
from support.faults.invariants import LOG_GAP_PREFIX, History, collect_history, find_violations
from support.faults.job_journal import JobJournal

from core.db.models.jobs import Job, Outbox, PortAllocation
from core.jobs.lifecycle import MAX_MACHINE_FAULTS
from core.jobs.reasons import REASONS, FaultOwner
from core.jobs.states import TERMINAL

_SHELL_MESSAGES = re.compile(
    rb"Terminated|Killed|No space left on device|write error|I/O error|Hangup|sh: |tee: |bash: "
)
_WORKER_FAILURE = re.compile(
    r"^(?P<at>\d{4}-\S+Z) \[\w+ *\] (?P<event>attempt_failed|round_failed)\b.*?(?=^\d{4}-\d\d-\d\dT|\Z)",
    re.DOTALL | re.MULTILINE,
)
_DATABASE_ERROR = re.compile(r"^sqlalchemy\.exc\.(?:OperationalError|InterfaceError).*$", re.MULTILINE)
_INFRASTRUCTURE_FAULTS = {FaultOwner.MACHINE, FaultOwner.SERVICE}
_SIGNALS = {"signalled", "killed", "out_of_memory"}
_JOB_ID = re.compile(r"\bj[a-z0-9]{13}\b")


@dataclass
class Violation:
    """One violation.

    Attributes:
        words: What does not hold.
        began: When what it is about began, by the monotonic clock.
        ended: When that ended.
    """

    description: str
    began: float
    ended: float


@dataclass
class CheckResult:
    """The result of a check."""

    violations: list[Violation] = field(default_factory=list)
    checked_counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    recording_delays: list[float] = field(default_factory=list)
    """Seconds from each job's own end to its record."""


class Checker:
    """Compares what clients, jobs and the harness know with what the service says.

    Args:
        stack: The service; its API has to answer.
        clients: Who used it.
        nemesis: What was done to it.
        before: What the engine had before the first job.
    """

    def __init__(self, stack: Stack, clients: Clients, nemesis: Nemesis, before: Counter[tuple[str, str]]) -> None:
        self._stack, self._clients, self._nemesis, self._engine_objects_before = stack, clients, nemesis, before
        self._monotonic_epoch = datetime.now(UTC) - timedelta(seconds=time.monotonic())
        self.outcome = CheckResult()

    def check(self) -> None:
        """Everything that needs the service to run."""
        self._wait_ended()
        self._wait_clean()
        history = collect_history(self._stack)
        rows = {row["id"]: row for row in history.jobs}
        self.outcome.checked_counts["jobs"] = len(rows)
        self.outcome.checked_counts["executions"] = len(history.journals)
        self.outcome.checked_counts["answers"] = self._clients.answers
        self._add(self._check_history(history, rows), rows)
        for job_id, one in self._clients.accepted.items():
            if job_id in rows:
                truths = {number: each for (owner, number), each in history.journals.items() if owner == job_id}
                words = [
                    *self._check_end(one, rows[job_id], truths, history),
                    *self._check_artifacts(one, rows[job_id], truths),
                ]
                self._add(words, rows)
        self._add(self._check_followers(history), rows)
        for at, words in self._clients.violations:
            self.outcome.violations.append(Violation(f"I16 {words}", at - 1, at))
        self._check_worker_logs()
        self._check_recoveries()
        self._check_database_leftovers()

    # ---- Jobs

    def _wait_ended(self) -> None:
        """Every job ends soon after the last fault, or after its own end."""
        with contextlib.suppress(AssertionError):
            self._stack.wait_all_ended(RECOVERY_SECONDS)
        rows = {row["id"]: row for row in self._stack.rows(Job)[0]}
        for job_id in self._clients.accepted:
            if job_id in rows and rows[job_id]["state"] not in TERMINAL:
                self._add([f"I1 {job_id} has not ended {RECOVERY_SECONDS} s after the last fault"], rows)

    def _wait_clean(self) -> None:
        """Wait a moment for the remains of ended jobs to go."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not (self._stack.containers() or self._stack.scratch() or self._stack.running()), "it")

    def _check_history(self, history: History, rows: dict[str, dict[str, Any]]) -> Iterator[str]:
        """The invariants of every fault test, less what jobs on a full disk could not print."""
        history.stop_seconds = None  # something was broken at the time
        deleted = {job_id for job_id, one in self._clients.accepted.items() if one.deleted}
        for words in find_violations(history):
            job_id = next(iter(_JOB_ID.findall(words)), "")
            if "its log is not what it printed" in words:
                truths = [one for (owner, _), one in sorted(history.journals.items()) if owner == job_id]
                if difference := log_difference(history.served[job_id].raw, truths):
                    yield f"I6 {job_id}: {difference}"
            elif not (job_id in deleted and job_id not in rows):
                yield words
        self.outcome.checked_counts["logs"] = len(history.served)
        self.outcome.checked_counts["log bytes"] = sum(len(one.raw) for one in history.served.values())

    def _check_end(
        self, one: AcceptedJob, row: dict[str, Any], truths: dict[int, JobJournal], history: History
    ) -> Iterator[str]:
        """I13."""
        if row["state"] not in TERMINAL:
            return
        said = f"{one.job_id} ({one.kind}, {row['backend']}) is {row['state']} by {row['reason']}: "
        lost = self._lost_container(one, row)
        wanted = {one.expected.reason} | ({"stopped_by_user"} if one.stop_requested else set())
        if one.stop_requested and one.kind == "flaky":  # a job that is asked to stop is not repeated
            wanted.add("exit_nonzero")
        allowed = is_documented_end(
            row, began=bool(truths), lost=lost, stopped=row["state"] == "cancelled" and one.stop_requested
        )
        if row["reason"] not in wanted and not allowed:
            began = "its command had begun" if truths else "no command of it ever began"
            yield f"I13 {said}{row['reason_detail']}; wanted {sorted(wanted)}; {began}{self._describe_exits(truths)}"
        elif row["reason"] == one.expected.reason and one.expected.code not in {None, row["exit_code"]}:
            yield f"I13 {said}exit code {row['exit_code']}, wanted {one.expected.code}"
        elif row["reason"] == one.expected.reason and one.kind == "flaky" and len(truths) != 3 and not lost:
            yield f"I13 {said}it succeeded after {len(truths)} starts"
        for attempt in (each for each in history.attempts if each["job_id"] == one.job_id):
            signalled = attempt["reason"] in _SIGNALS and attempt["reason"] != one.expected.reason
            if signalled and not one.stop_requested and attempt["attempt"] != row["attempt"]:
                yield f"I13 {said}attempt {attempt['attempt']} ended by {attempt['reason']}, nobody had signalled it"
        own = truths.get(row["attempt"])
        if own is not None and own.ended_at is not None and row["finished_at"] is not None:
            self.outcome.recording_delays.append(row["finished_at"].timestamp() - own.ended_at)

    @staticmethod
    def _describe_exits(truths: dict[int, JobJournal]) -> str:
        ends = {number: one.exit for number, one in sorted(truths.items()) if one.exit is not None}
        return f"; by its own record attempts ended with {ends}" if ends else ""

    def _lost_container(self, one: AcceptedJob, row: dict[str, Any]) -> bool:
        """Return whether a fault that is documented to end containers overlapped the job's life."""
        if one.machine_type != DOCKER_TYPE:
            return False
        began, ended = self._job_lifetime(row)
        faults = [each for each in self._nemesis.injected if each.fault.ends_containers]
        return any(each.began <= ended and (each.ended or ended) + 15 >= began for each in faults)

    def _check_artifacts(self, one: AcceptedJob, row: dict[str, Any], truths: dict[int, JobJournal]) -> Iterator[str]:
        """I14; the content is compared by I7."""
        own = truths.get(row["attempt"])
        if row["state"] not in TERMINAL or own is None or one.deleted:
            return
        self.outcome.checked_counts["artifacts"] += len(own.artifacts)
        # Who asks for a stop after the command has ended gives up what is not stored by then.
        enough = {"complete", "partial"} if one.stop_requested else {"complete"}
        if own.artifacts and row["artifacts_state"] not in enough:
            yield f"I14 {one.job_id}: its artifacts are {row['artifacts_state']}"

    def _check_followers(self, history: History) -> Iterator[str]:
        """I15."""
        for one in self._clients.followed:
            served = history.served.get(one.job_id)
            if served is None or self._clients.accepted[one.job_id].deleted:
                continue
            self.outcome.checked_counts["followers"] += 1
            self.outcome.checked_counts["followers' connections"] += one.connections
            self.outcome.checked_counts["followed lines"] += one.last
            raw = served.raw if served.raw.endswith(b"\n") or not served.raw else served.raw + b"\n"
            if not one.complete:
                yield f"I15 {one.job_id}: its follower never came to the end, but to line {one.last}"
            elif one.text.digest() != hashlib.sha256(raw).digest():
                yield f"I15 {one.job_id}: a follower was sent {one.last} lines, which are not the log's"

    # ---- The rest

    def _check_worker_logs(self) -> None:
        """I16, by what the workers said."""
        for log in self._stack.logs:
            for said in _WORKER_FAILURE.finditer(log.read_text(errors="replace")):
                at = (datetime.fromisoformat(said["at"]) - self._monotonic_epoch).total_seconds()
                if errors := _DATABASE_ERROR.findall(said[0]):
                    words = f"I16 {log.name}: {said['event']} at {said['at']}: {errors[-1][:160]}"
                    self.outcome.violations.append(Violation(words, at - 1, at))
                else:
                    self.outcome.notes.append(f"{log.name} says {said['event']} at {said['at']}")

    def _check_recoveries(self) -> None:
        for one in self._nemesis.injected:
            for machine_type, seconds in one.recovered.items():
                if seconds is None and not self._nemesis.aborted.is_set():
                    words = f"I1 no canary ({machine_type}) succeeded {RECOVERY_SECONDS} s after {one.fault.name}"
                    self.outcome.violations.append(
                        Violation(words, one.began, (one.ended or one.began) + RECOVERY_SECONDS)
                    )
        if "deadlock detected" in self._stack.postgres.read_log():
            self._add_now("I17 PostgreSQL's log tells of a deadlock")

    def _check_database_leftovers(self) -> None:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self._stack.rows(Outbox)[0], "the messages to go")
        for table in (Outbox, PortAllocation):
            if left := self._stack.rows(table)[0]:
                self._add_now(f"I17 {len(left)} rows are left in {table.__tablename__}: {left[:3]}")

    def check_leftovers(self) -> None:
        """Check what is left when the service has ended."""
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        others = text("SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL AND pid <> pg_backend_pid()")
        with self._stack.database() as database, database.engine.connect() as connection:

            def count(query: Any) -> int:
                connection.rollback()
                return connection.scalar(query) or 0

            with contextlib.suppress(AssertionError):
                wait_until(lambda: not count(others), "connections to end", 20)
            for query, what in ((others, "connections to PostgreSQL"), (waiting, "locks that are waited for")):
                if left := count(query):
                    self._add_now(f"I17 {left} {what} are left")
        kept = list_engine_objects(self._stack.server) - self._engine_objects_before
        self._add(
            [f"I17 {kind} {name} is left in the engine" for kind, name in kept if kind not in ENGINE_INTERNALS], {}
        )
        own = [
            f"{number} x {kind}"
            for kind, number in Counter(kind for kind, _ in kept if kind in ENGINE_INTERNALS).items()
        ]
        if own or find_shims(self._stack.server):
            forgotten = ", ".join([f"{len(find_shims(self._stack.server))} shims", *own])
            self.outcome.notes.append(f"Docker's own, forgotten by a killed engine: {forgotten}")

    def _add(self, words: Any, rows: dict[str, dict[str, Any]]) -> None:
        for one in words:
            row = rows.get(next(iter(_JOB_ID.findall(one)), ""))
            began, ended = self._job_lifetime(row) if row else (time.monotonic(), time.monotonic())
            self.outcome.violations.append(Violation(one, began, ended))

    def _add_now(self, words: str) -> None:
        self.outcome.violations.append(Violation(words, time.monotonic(), time.monotonic()))

    def _job_lifetime(self, row: dict[str, Any]) -> tuple[float, float]:
        """A job's life by the monotonic clock."""
        ended = row["finished_at"] or datetime.now(UTC)
        return (row["created_at"] - self._monotonic_epoch).total_seconds(), (
            ended - self._monotonic_epoch
        ).total_seconds()


def overlapping_faults(found: Violation, injected: list[InjectedFault]) -> list[InjectedFault]:
    """Faults that overlapped what a violation is about."""
    return [one for one in injected if one.began <= found.ended and (one.ended or found.ended) + 5 >= found.began]


def is_documented_end(row: dict[str, Any], *, began: bool, lost: bool, stopped: bool = False) -> bool:
    """Return whether an infrastructure fault may end the job for good.

    Args:
        row: The job's row.
        began: Whether its command ran, by its own record.
        lost: Whether its container was ended with its engine, as it is without live-restore.
        stopped: Whether it was cancelled, and somebody had asked for that.
    """
    reason = REASONS.get(row["reason"])
    if reason is None or reason.fault not in _INFRASTRUCTURE_FAULTS or reason.name == "internal_error":
        return False
    return stopped or (lost if began else row["machine_faults"] >= MAX_MACHINE_FAULTS)


def log_difference(raw: bytes, attempts: list[JobJournal]) -> str:
    """Describe the first difference between a log and what the attempts printed; empty if there is none.

    A shell's own messages are ignored. A line that an attempt could not print, for want of room, may be missing, and an
    attempt that was ended may have printed lines that it could no longer record.
    """
    wanted = [(number, line) for number, one in enumerate(attempts) for line in (one.out or b"").splitlines()]
    place = 0
    for count, line in enumerate(raw.splitlines(), 1):
        if place < len(wanted) and line == wanted[place][1]:
            place += 1
        elif not (_SHELL_MESSAGES.search(line) or line.startswith(LOG_GAP_PREFIX)):
            attempt = wanted[place][0] if place < len(wanted) else len(attempts) - 1
            ended = [one for one in attempts[max(attempt - 1, 0) : attempt + 1] if one.exit is None or one.unsaid]
            if not ended:
                return f"line {count} is {line[:80]!r}, printed was {wanted[place : place + 1]!r}"
    if place < len(wanted) and not any(one.unsaid for one in attempts):
        return f"of {len(wanted)} lines that were printed, those from {place + 1} on are not in it"
    return ""
