"""Follows all jobs of a worker in Slurm by one query at a time, however many there are."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from worker.backends.slurm.commands import Commands, SlurmError
from worker.backends.slurm.reasons import waiting_sentence
from worker.backends.slurm.text import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    SlurmJob,
    parse_sacct,
    parse_squeue,
)
from worker.runner.control_files import read_control

logger = logging.getLogger(__name__)

PENDING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
_EMPTY_ANSWERS = 3  # after which a job that nobody knows may be gone
_REST_FACTOR = 10  # of the time that a query took, until the next one
_MAX_PAUSE_SECONDS = 60.0
_MAX_LOOKUPS = 20  # of single jobs, after each query for all
_START_SECONDS = 0.25  # between looks at the files of waiting jobs, which tell that a command has begun
_MAX_CHECKS = 200  # at once, on a file system of the network; of others, the next answer tells
_ACCOUNTING_DAYS = 30  # sacct alone looks no further back than midnight


@dataclass(slots=True)
class _Followed:
    key: str
    job_id: str | None
    job: SlurmJob | None = None  # as last seen
    missing: int = 0  # answers in a row without it

    @property
    def is_ended(self) -> bool:
        return self.job is not None and self.job.state not in PENDING | RUNNING


@dataclass(slots=True)
class _Waiting:
    """A job in Slurm's queue, for which no thread waits.

    `report`: called with the reason that it waits for; raises if its start must be aborted. `resume`: called once.
    """

    control: Path
    report: Callable[[str], None]
    resume: Callable[[], None]
    sentence: str | None = None


class Follower:
    """One query in `poll_seconds` while there are jobs to follow, and none without."""

    def __init__(self, commands: Commands, poll_seconds: float) -> None:
        self._commands = commands
        self._poll_seconds = poll_seconds
        self._jobs: dict[str, _Followed] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._turn = 0  # answered queries
        self._next_at = 0.0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.problem: str | None = None  # why Slurm did not answer last

    def follow(self, name: str, key: str, job_id: str | None) -> None:
        """Follow an attempt, which Slurm knows by this key (see `SlurmJob.key`)."""
        with self._changed:
            followed = self._jobs.setdefault(name, _Followed(key, job_id))
            followed.key, followed.job_id = key, job_id or followed.job_id
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="slurm", daemon=True)
                self._thread.start()

    def follows(self, name: str) -> bool:
        return name in self._jobs

    def await_start(self, name: str, control: Path, report: Callable[[str], None], resume: Callable[[], None]) -> None:
        """Call `resume` when a job that is followed no longer waits in Slurm's queue, or its start is to be aborted."""
        self._waiting[name] = _Waiting(control, report, resume)

    def forget(self, name: str) -> None:
        with self._changed:
            self._jobs.pop(name, None)
            self._waiting.pop(name, None)

    def job(self, name: str) -> SlurmJob | None:
        """Return a job as it was last seen; None: it has not been seen yet."""
        followed = self._jobs.get(name)
        return followed.job if followed is not None else None

    def is_missing(self, name: str, answers: int = _EMPTY_ANSWERS) -> bool:
        """Return whether a job was in none of so many last answers."""
        followed = self._jobs.get(name)
        return followed is not None and followed.missing >= answers

    def wait_for_answer(self, seconds: float) -> None:
        """Wait for the next answer, at most this long."""
        with self._changed:
            turn = self._turn
            self._changed.wait_for(lambda: self._turn > turn, seconds)

    def list_jobs(self) -> list[SlurmJob]:
        """Query now for all jobs of this user, with those that ended in the last minutes. Raises `SlurmError`."""
        return parse_squeue(
            self._commands.run("squeue", "-h", "-a", "-r", "-u", self._commands.user, "-t", "all", "-o", SQUEUE_FORMAT)
        )

    def _run(self) -> None:
        while True:
            self._rest()
            began = time.monotonic()
            with self._changed:
                if not self._jobs:
                    self._thread = None
                    return
            try:
                self._take_turn()
            except SlurmError as error:
                if str(error) != self.problem:
                    logger.warning("slurm_not_answering", extra={"why": str(error)})
                self.problem = str(error)
                self._report_reasons()
            except Exception:  # the next query may succeed
                logger.exception("slurm_query_failed")
            took = time.monotonic() - began
            self._next_at = began + took + min(max(self._poll_seconds - took, _REST_FACTOR * took), _MAX_PAUSE_SECONDS)

    def _take_turn(self) -> None:
        jobs, lookups = dict(self._jobs), 0
        listed: defaultdict[str, list[SlurmJob]] = defaultdict(list)
        for seen in self.list_jobs():
            listed[seen.key].append(seen)
        answers: dict[str, SlurmJob | None] = {}
        for name, followed in jobs.items():
            if followed.key in listed:
                answers[name] = choose(listed[followed.key])
            elif not followed.is_ended and lookups < _MAX_LOOKUPS:
                lookups += followed.job_id is not None
                answers[name] = self._query_one(followed)
        with self._changed:
            self.problem, self._turn = None, self._turn + 1
            for name, job in answers.items():
                followed = jobs[name]
                followed.missing = 0 if job is not None else followed.missing + 1
                followed.job = replace(job, name=name) if job is not None else followed.job
            self._changed.notify_all()
        self._report_reasons()

    def _rest(self) -> None:
        """Wait for the next query; see meanwhile which commands have begun."""
        while (pause := self._next_at - time.monotonic()) > 0:
            time.sleep(min(pause, _START_SECONDS))
            for name, waiting in islice(list(self._waiting.items()), _MAX_CHECKS):
                if is_started(waiting.control):
                    self._resume(name)

    def _report_reasons(self) -> None:
        for name, waiting in list(self._waiting.items()):
            job = self.job(name)
            if self.is_missing(name) or (job is not None and job.state not in PENDING):
                self._resume(name)
                continue
            problem = f"Slurm does not answer: {self.problem}" if self.problem is not None else None
            sentence = problem or (waiting_sentence(job) if job is not None else None)
            if sentence is not None and sentence != waiting.sentence:
                waiting.sentence = sentence
                try:
                    waiting.report(sentence)
                except Exception:  # noqa: BLE001 - what has to happen then is done by the job's own thread
                    self._resume(name)

    def _resume(self, name: str) -> None:
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            try:
                waiting.resume()
            except RuntimeError:  # too many threads; the job is adopted later
                logger.exception("job_not_resumed")

    def _query_one(self, followed: _Followed) -> SlurmJob | None:
        """Ask accounting for a job that the controller no longer lists; None: it does not know it either."""
        return query_accounting(self._commands, followed.job_id, followed.key) if followed.job_id is not None else None


def query_accounting(commands: Commands, job_id: str, key: str) -> SlurmJob | None:
    """Return what accounting has of a job; None: there is no accounting, or it does not answer now.

    A cluster that has lost its state counts from 1 again, so that a number may be that of several jobs.
    """
    options = ("--noheader", "--parsable2", "--allocations", f"--starttime=now-{_ACCOUNTING_DAYS}days")
    with suppress(SlurmError):
        for job in parse_sacct(commands.run("sacct", *options, f"--format={SACCT_FORMAT}", f"--jobs={job_id}")):
            if job.key == key:
                return job
    return None


def is_started(control: Path) -> bool:
    return read_control(control, "started") is not None


def choose(jobs: list[SlurmJob]) -> SlurmJob | None:
    """Return the one of several submissions of an attempt that has the command; the wrapper refuses the others."""
    return max(jobs, key=lambda job: (job.state in RUNNING, job.state in PENDING), default=None)
