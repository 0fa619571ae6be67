"""A worker's main loop: claims jobs, runs each attempt in a thread, adopts on start, sends heartbeats."""

import fcntl
import logging
import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from core.db.models.jobs import Job
from core.errors import GradientError, StoreUnavailable
from core.jobs import lifecycle
from core.jobs.scheduling import claims, workers
from core.monitoring.logging import bind
from core.notify.local_notifier import Bell
from core.system.inotify import FileWatch
from worker.attempt.control import Signals
from worker.attempt.pipeline import run_attempt
from worker.attempt.self_fence import Fence
from worker.backends.processes import boot_id
from worker.context import Host
from worker.maintenance.jobs import Sweep
from worker.statsd.listener import Listener

logger = logging.getLogger(__name__)

_DATABASE_PAUSE_SECONDS = 2.0
_FAILURE_PAUSE_SECONDS = 5.0
_LET_GO_SECONDS = 20.0
_FENCE_SECONDS = 5.0
_TOLD_AGAIN_SECONDS = 10.0


class WorkerNameTaken(GradientError):
    """Another living worker on this host has the same name."""


@dataclass(slots=True)
class _Running:
    job: Job
    """The row as it was claimed or adopted."""
    signals: Signals
    thread: threading.Thread
    ended: threading.Event


class Supervisor:
    """Runs the jobs of one worker.

    Args:
        host: The stores and backends.
        bell: Rung when there may be work.

    Raises:
        WorkerNameTaken: The name is in use on this host.
    """

    def __init__(self, host: Host, bell: Bell) -> None:
        self._host = host
        self._worker = host.settings.worker
        self._slots = self._worker.most_slots
        self._lock = _lock_name(host.settings.root / "workers" / f"{host.name}.lock", host.name)
        self._watch = FileWatch(bell.path)
        self._running: dict[str, _Running] = {}
        self._stopping = threading.Event()
        self._offer = host.offer()
        _ = host.fetcher  # created now, to log a missing sandbox at the start, not at the first job
        self._sweep = Sweep(host)
        # In its own thread: a slow delete must not delay heartbeats.
        self._sweeper = threading.Thread(target=self._sweep_on, name="sweep", daemon=True)
        self._fence = Fence(host)
        # Likewise: a database that accepts a query and never answers blocks the loop.
        self._fencer = threading.Thread(target=self._fence_on, name="fence", daemon=True)
        self._statsd = Listener(host)
        self._beat_at = self._adopt_at = self._told_at = 0.0
        self._registered = False
        self._taken: dict[str, str] = {}
        self._short: str | None = None

    def run(self) -> None:
        """Work until `stop` is called, then release all attempts; their jobs keep running."""
        self._sweeper.start()
        self._fencer.start()
        self._statsd.start()
        rang = True
        while not self._stopping.is_set():
            try:
                self._round(rang=rang)
            except StoreUnavailable:
                self._sweep.database_was_away()
                self._stopping.wait(_DATABASE_PAUSE_SECONDS)
                continue
            except Exception:  # the loop must survive: it sends the heartbeats and claims jobs
                logger.exception("round_failed")
                self._stopping.wait(_FAILURE_PAUSE_SECONDS)
                continue
            rang = self._watch.wait(self._pause())
        self._let_go()

    def stop(self) -> None:
        """Make `run` return; safe to call from any thread and from a signal handler."""
        self._stopping.set()
        self._watch.wake()

    def _sweep_on(self) -> None:
        while not self._stopping.wait(self._worker.sweep_seconds):
            try:
                self._sweep.run(set(self._running))
            except StoreUnavailable:
                self._sweep.database_was_away()
            except Exception:  # the next sweep may succeed
                logger.exception("sweep_failed")

    def _fence_on(self) -> None:
        while not self._stopping.wait(min(_FENCE_SECONDS, self._worker.cut_off_seconds / 10)):
            try:
                self._fence.look([(one.job, one.signals) for one in list(self._running.values())])
            except Exception:  # the next check may succeed
                logger.exception("fence_failed")

    def _round(self, *, rang: bool) -> None:
        if not self._registered:
            self._register()
        self._forget_ended()
        # Waiting jobs come first: a heartbeat is a commit of its own.
        while len(self._running) < self._slots and not self._stopping.is_set():
            if not self._claim():
                break
        if time.monotonic() >= self._beat_at:
            self._beat()
        elif rang and self._running:
            self._heed(self._hearts())
        if time.monotonic() >= self._adopt_at:
            self._offer_anew()
            self._adopt()

    def _offer_anew(self) -> None:
        """Update the offer: a backend's engine may have stopped or returned. Jobs on it are watched all the same."""
        offer = self._host.offer()
        if offer != self._offer:
            self._offer = offer
            self._registered = False
        elif self._taken:
            self._offer_without_taken_gpus()  # the processes that used them may have ended

    def _pause(self) -> float:
        poll = self._worker.poll_seconds
        return max(0.0, min(poll, self._beat_at - time.monotonic())) if self._running else poll

    def _register(self) -> None:
        self._host.write(lambda session: workers.register(session, self._offer, boot_id=boot_id(), slots=self._slots))
        self._taken, self._short = {}, None
        self._adopt()
        self._registered = True

    def _adopt(self) -> None:
        """Adopt jobs on this machine that no living worker runs, except those that this process runs."""
        self._adopt_at = time.monotonic() + self._worker.sweep_seconds
        held = set(self._running)
        stale = self._worker.lease_seconds
        jobs = self._host.write(
            lambda session: lifecycle.adopt(
                session,
                self._host.name,
                self._host.host,
                backends=self._host.offered,
                stale_seconds=stale,
                held=held,
            )
        )
        for job in jobs:
            logger.info("job_adopted", extra=job.log_context())
            self._begin(job)

    def _claim(self) -> bool:
        if not self._anything_waits(self._offer) or self._short_of_disk():
            return False
        offer = self._offer_without_taken_gpus()
        if offer.gpus != self._offer.gpus and not self._anything_waits(offer):
            return False
        job = self._host.write(lambda session: claims.claim(session, offer))
        if job is not None:
            self._begin(job)
        return job is not None

    def _short_of_disk(self) -> bool:
        """Return whether disk space is too low for another job; record it, so that waiting jobs show it."""
        short = self._host.shortage()
        if (short is None) != (self._short is None):
            logger.warning("disk_low" if short else "disk_enough", extra={"why": short})
            self._host.write(lambda session: workers.note_low_disk(session, self._host.name, short))
            self._short = short
        return short is not None

    def _anything_waits(self, offer: claims.Offer) -> bool:
        with self._host.database.read() as session:
            return claims.anything_waits(session, offer)

    def _offer_without_taken_gpus(self) -> claims.Offer:
        """Return the offer without GPUs that something else uses; called when a job is waiting."""
        if not self._offer.gpus:
            return self._offer
        with self._host.database.read() as session:
            free = claims.free_gpus(session, self._offer)
        taken = self._host.taken_gpus(free) if free else {}
        changed = taken.keys() != self._taken.keys()
        if changed:
            logger.warning("gpus_taken" if taken else "gpus_free", extra={"taken": taken})
        # A GPU's usage changes all the time, and not every change is worth a write.
        if changed or (taken != self._taken and time.monotonic() >= self._told_at + _TOLD_AGAIN_SECONDS):
            self._host.write(lambda session: workers.note_taken_gpus(session, self._host.name, taken))
            self._taken, self._told_at = taken, time.monotonic()
        return replace(self._offer, gpus=tuple(gpu for gpu in self._offer.gpus if gpu not in taken))

    def _begin(self, job: Job) -> None:
        signals = Signals(stop_requested=job.stop_requested_at is not None)
        ended = threading.Event()
        thread = threading.Thread(target=self._attempt, args=(job, signals, ended), name=f"job-{job.id}", daemon=True)
        self._running[job.id] = _Running(job, signals, thread, ended)
        thread.start()

    def _attempt(self, job: Job, signals: Signals, ended: threading.Event) -> None:
        bind(**job.log_context())
        try:
            run_attempt(self._host, job, signals)
        finally:
            # The thread is still alive when the loop wakes, but its slot is free.
            ended.set()
            self._watch.wake()

    def _forget_ended(self) -> None:
        for job_id, one in list(self._running.items()):
            if one.ended.is_set():
                del self._running[job_id]

    def _beat(self) -> None:
        """Send one heartbeat for all jobs."""
        asked_at = time.monotonic()
        hearts = self._host.write(lambda session: workers.beat(session, self._host.name, self._host.host))
        self._fence.in_contact(asked_at)
        self._beat_at = time.monotonic() + self._worker.heartbeat_seconds
        self._heed(hearts)

    def _hearts(self) -> dict[str, workers.Heart]:
        with self._host.database.read() as session:
            return workers.hearts(session, self._host.name, self._host.host)

    def _heed(self, hearts: dict[str, workers.Heart]) -> None:
        """Release the jobs that were lost, and stop those that should stop."""
        for job_id, one in self._running.items():
            heart = hearts.get(job_id)
            # Missing: its thread has just closed it, or another worker took it over. A watch does not use its lease
            # while the job runs, and two watches must not write one log.
            if heart is None or heart.lease != one.job.lease:
                one.signals.detach()
            elif heart.stop_requested:
                one.signals.request_stop()

    def _let_go(self) -> None:
        for one in self._running.values():
            one.signals.detach()
        deadline = time.monotonic() + _LET_GO_SECONDS
        for one in self._running.values():
            one.thread.join(max(0.0, deadline - time.monotonic()))
        self._sweeper.join(max(0.0, deadline - time.monotonic()))
        self._statsd.stop()
        self._watch.close()
        os.close(self._lock)


def _lock_name(path: Path, name: str) -> int:
    """Lock the worker's name on this host; the kernel releases the lock when this process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise WorkerNameTaken(
            f"A worker named {name!r} is running on this machine already. Stop it first, or give this one another "
            "name with --name."
        ) from error
    return descriptor
