"""A worker's main loop: claims jobs, runs each attempt in a thread, adopts on start, sends heartbeats."""

import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from sqlalchemy.orm import Session

from core.catalogue.backends import capabilities_of
from core.db.models.jobs import Job
from core.errors import GradientError, StoreUnavailable, WorkerNameTaken, WorkerNotFound
from core.jobs import lifecycle
from core.jobs.scheduling import claims, workers
from core.monitoring.logging import bind
from core.notify.wakeup_file import WakeupFile
from core.system.inotify import FileWatcher
from core.system.untrusted_folders import remove_tree
from worker.array_members import ArraySlot, MemberRun, ShortArrays, slots_folder
from worker.attempt.control import AttemptControl
from worker.attempt.pipeline import run_attempt
from worker.attempt.self_fence import SelfFence
from worker.context import WorkerContext
from worker.exec.listener import ExecListener
from worker.home import close_job_folders, lock_worker_name
from worker.maintenance.job_sweep import Sweep
from worker.registration import Registration
from worker.running_attempts import RunningAttempt, apply_heartbeat, bind_members
from worker.service_link.link import Refused, TokenRefused
from worker.statsd.listener import Listener
from worker.usable_gpus import UsableGpus

logger = logging.getLogger(__name__)

DATABASE_PAUSE_SECONDS = 2.0
FAILURE_PAUSE_SECONDS = 5.0
_DETACH_SECONDS = 20.0
_FENCE_CHECK_SECONDS = 5.0
_LEASES_SECONDS = 0.1  # between two reads of all leases: each submission on this host notifies its workers, too
_QUEUE_SECONDS = 0.1  # between looks at a queue without a job to claim: whatever ends or waits elsewhere wakes the loop
_DISK_SECONDS = 1.0
MAX_WAITING = 16  # jobs that may wait for a TPU without a slot: each has a thread here, and asks Google


class Supervisor:
    def __init__(self, context: WorkerContext, notifier: WakeupFile) -> None:
        self._context = context
        context.notify_host = notifier.notify
        self._worker_settings = context.settings.worker
        self._slots = self._worker_settings.max_slots
        self._lock = lock_worker_name(
            context.settings.root / "workers" / f"{context.worker_name}.lock", context.worker_name
        )
        self._registration = Registration(context, self._slots)
        self._watcher = FileWatcher(notifier.path)
        self._running: dict[str, RunningAttempt] = {}
        self._unstarted: deque[RunningAttempt] = deque()  # those of them that a slot has to be free for
        self._stopping = threading.Event()
        self._offer = context.build_offer()
        _ = context.fetcher  # created now, to log a missing sandbox at the start, not at the first job
        self._sweep = Sweep(context)
        # In its own thread: a slow delete must not delay heartbeats.
        self._sweep_thread = threading.Thread(target=self._sweep_loop, name="sweep", daemon=True)
        self._fence = SelfFence(context)
        # Likewise: a database that accepts a query and never answers blocks the loop.
        self._fence_thread = threading.Thread(target=self._fence_loop, name="fence", daemon=True)
        self._statsd = Listener(context)
        self._exec = ExecListener(context)
        self._heartbeat_at = self._adopt_at = self._leases_at = self._queue_at = 0.0
        self._registered = self._expects_job = self._leases_unread = self._queue_unread = False
        self._gpus = UsableGpus(context)
        self._short_arrays = ShortArrays()
        self._disk_shortage: str | None = None
        self._claim_failure: str | None = None
        self._disk_until, self._lacked_disk = 0.0, False
        self._claiming = threading.Lock()  # held while jobs are adopted, or claimed by threads through the service
        self.refusal: GradientError | None = None  # why this process ends itself

    def run(self) -> None:
        """Work until `stop` is called, then release all attempts; their jobs keep running."""
        close_job_folders(self._context.settings.root)
        remove_tree(slots_folder(self._context))  # of a worker that was killed
        self._sweep_thread.start()
        self._fence_thread.start()
        self._statsd.start()
        backends = map(self._context.backend, self._context.enabled_backends)
        if not all(backend.capabilities.containers for backend in backends):
            self._context.default_environment.start()
        self._exec.start()
        notified = True
        while not self._stopping.is_set():
            try:
                self._tick(notified=notified)
            except StoreUnavailable:
                self._sweep.defer_lost_detection()
                self._stopping.wait(DATABASE_PAUSE_SECONDS)
                continue
            except Exception:  # the loop must survive: it sends the heartbeats and claims jobs
                logger.exception("round_failed")
                self._stopping.wait(FAILURE_PAUSE_SECONDS)
                continue
            self._watcher.wait(self._pause())
            notified = self._watcher.changed  # not only that an attempt has ended
        self._context.default_environment.stop()
        self._unstarted.clear()
        threads = [(attempt, thread) for attempt in list(self._running.values()) if (thread := attempt.thread)]
        for attempt, _ in threads:
            attempt.control.detach()
        deadline = time.monotonic() + _DETACH_SECONDS
        for _, thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._sweep_thread.join(max(0.0, deadline - time.monotonic()))
        self._statsd.stop()
        self._exec.stop()
        self._watcher.close()
        os.close(self._lock)

    def stop(self) -> None:
        """Make `run` return; safe to call from any thread and from a signal handler."""
        self._stopping.set()
        self._watcher.wake()

    def _sweep_loop(self) -> None:
        while not self._stopping.wait(self._worker_settings.sweep_seconds):
            try:
                self._sweep.run({(job_id, attempt.job.attempt) for job_id, attempt in list(self._running.items())})
            except StoreUnavailable:
                self._sweep.defer_lost_detection()
            except Exception:  # the next sweep may succeed
                logger.exception("sweep_failed")

    def _fence_loop(self) -> None:
        while not self._stopping.wait(min(_FENCE_CHECK_SECONDS, self._worker_settings.self_fence_seconds / 10)):
            try:
                self._fence.check([(attempt.job, attempt.control) for attempt in list(self._running.values())])
                self._leave_if_revoked()
            except Exception:  # the next check may succeed
                logger.exception("fence_failed")

    def _leave_if_revoked(self) -> None:
        """End this process once its token is revoked.

        Its jobs keep running: a worker that starts here with another token adopts them, and if none does in time, this
        host counts as lost.
        """
        link = self._context.link
        try:
            if link is not None and self.refusal is None:
                link.identify()
        except TokenRefused as error:
            self._leave(error)
        except StoreUnavailable:
            return  # a service that does not answer refuses nobody

    def _leave(self, error: GradientError) -> None:
        logger.error("worker_refused", extra={"why": error.message})
        self.refusal = error
        os.kill(os.getpid(), signal.SIGTERM)  # as from outside: Celery ends, too

    def _tick(self, *, notified: bool) -> None:
        if not self._registered:
            try:
                self._registration.register(self._offer)
            except WorkerNameTaken as error:
                if self._registration.is_refused_for_good:
                    self._leave(error)
                return
            self._gpus.taken, self._disk_shortage = {}, None
            self._adopt()
            self._registered = True
        if notified:
            self._queue_at = 0.0
        # A wake-up means that there is likely a job; on SQLite, of one host, a claim for nothing disturbs nobody.
        self._expects_job = self._expects_job or (notified and self._context.database.is_sqlite)
        self._claim_jobs()  # waiting jobs come first: a heartbeat is a commit of its own
        if time.monotonic() >= self._heartbeat_at:
            self._send_heartbeat()
        elif notified or self._leases_unread:
            self._check_leases()
        if time.monotonic() >= self._adopt_at:
            self._refresh_offer()
            self._adopt()

    def _claim_jobs(self) -> None:
        """Fill the free slots; a worker that cannot claim says why with its heartbeats."""
        link, failure, self._queue_unread = self._context.link, None, False
        try:
            while self._has_free_slot() and not self._stopping.is_set() and (link is None or link.problem is None):
                if not self._start_next() and not self._claim():
                    break
        except Refused as error:
            failure = error.message
        except StoreUnavailable:
            if link is None or link.problem is None:
                raise
            self._adopt_at = 0.0  # only the answer may be lost
        except Exception as error:  # it must not make the jobs here look lost
            logger.exception("claim_failed")
            failure = f"It cannot claim jobs: {type(error).__name__}: {error}"
        if link is not None and link.problem is not None:
            failure = f"It cannot fetch what jobs need: {link.problem}"
        if failure != self._claim_failure:
            logger.warning("claims_refused" if failure else "claims_go_on", extra={"why": failure})
            self._claim_failure, self._heartbeat_at = failure, 0.0

    def _has_free_slot(self) -> bool:
        """Return whether another job may be claimed; of those that wait for a cloud, a limited number has none."""
        running = [attempt for attempt in list(self._running.values()) if attempt.thread is not None]
        waiting = [capabilities_of(attempt.job.backend) for attempt in running if attempt.control.waiting]
        elsewhere = sum(backend.own_queue for backend in waiting)
        return len({attempt.thread for attempt in running}) - min(len(waiting), elsewhere + MAX_WAITING) < self._slots

    def _refresh_offer(self) -> None:
        """Update the offer: a backend's engine may have stopped or returned. Its jobs are still watched."""
        offer = self._context.build_offer()
        if offer != self._offer:
            self._offer = offer
            self._registered = False
        elif self._gpus.taken:
            self._gpus.select(self._offer)  # the processes that used them may have ended

    def _pause(self) -> float:
        due = [self._heartbeat_at] if self._running or self._leases_unread else []
        due += [self._leases_at] if self._leases_unread else []
        due += [self._queue_at] if self._queue_unread else []
        return max(0.0, min([self._worker_settings.poll_seconds, *(at - time.monotonic() for at in due)]))

    def _adopt(self) -> None:
        """Adopt jobs on this machine that no living worker runs, except those that this process runs."""
        self._adopt_at = time.monotonic() + self._worker_settings.sweep_seconds

        def adopt(session: Session) -> list[Job]:
            if self._context.link is None:
                claims.take_turn(session)  # a thread that claims another member of an array holds that one first
            return lifecycle.adopt(
                session,
                self._context.worker_name,
                self._context.hostname,
                backends=self._context.enabled_backends if self._context.link is None else (),
                stale_seconds=self._worker_settings.lease_seconds,
                held=set(self._running),
            )

        with self._claiming:
            jobs = self._context.write(adopt)
            for job in jobs:
                logger.info("job_adopted", extra=job.log_context())
            self._start_attempts(jobs)

    def _claim(self) -> bool:
        # After a claim there are likely more jobs, too: the check without the lock would be made for nothing.
        self._queue_unread = not self._expects_job and time.monotonic() < self._queue_at
        if self._queue_unread:
            return False
        claimable, self._expects_job = self._expects_job or self._has_claimable_job(self._offer), False
        if not claimable:
            self._queue_at = time.monotonic() + _QUEUE_SECONDS
        if not claimable or self._is_disk_low():
            return False
        if not self._context.is_still_ready(self._offer):
            self._refresh_offer()
            return False
        offer = self._gpus.select(self._offer)
        if offer.gpus != self._offer.gpus and not self._has_claimable_job(offer):
            return False
        job = self._context.claim(offer)
        if job is not None:
            self._start_attempts([job, *self._context.claimed_with(job, self._running)])
            self._expects_job = True
            if job.nodes is not None:
                self._context.notify_host()  # other nodes may be this worker's, or those of others
        return job is not None

    def _is_disk_low(self) -> bool:
        """Return whether disk space is too low for another job; record it, so that waiting jobs show it."""
        shortage = self._context.disk_shortage()
        if (shortage is None) != (self._disk_shortage is None):
            logger.warning("disk_low" if shortage else "disk_enough", extra={"why": shortage})
            self._context.write(lambda session: workers.set_low_disk(session, self._context.worker_name, shortage))
            self._disk_shortage = shortage
        return shortage is not None

    def _lacks_disk(self) -> bool:
        """Return whether disk space was too low within the last second, for the many claims of short members."""
        if (now := time.monotonic()) > self._disk_until:
            self._disk_until, self._lacked_disk = now + _DISK_SECONDS, self._context.disk_shortage() is not None
        return self._lacked_disk

    def _has_claimable_job(self, offer: claims.WorkerOffer) -> bool:
        with self._context.database.read() as session:
            return claims.has_claimable_job(session, offer)

    def _start_attempts(self, jobs: Sequence[Job]) -> None:
        """Start attempts at once, and those that will wait elsewhere as slots are free."""
        attempts = [self._keep(job) for job in jobs]
        wait = [attempt for attempt in attempts if attempt.will_wait]
        bind_members(wait, self._context)
        self._unstarted.extend(wait)
        for attempt in attempts:
            if not attempt.will_wait:
                self._begin(attempt)
        self._start_next()

    def _start_next(self) -> bool:
        with suppress(IndexError):
            self._begin(self._unstarted.popleft())
            return True
        return False

    def _begin(self, attempt: RunningAttempt) -> None:
        """Start a thread for an attempt, or for one that no longer waits elsewhere."""
        job_id = attempt.job.id
        attempt.thread = threading.Thread(target=self._run_attempts, args=(attempt,), name=f"job-{job_id}", daemon=True)
        try:
            attempt.thread.start()
        except BaseException:  # as with too many threads; the job is adopted later
            self._release(attempt)
            raise

    def _keep(self, job: Job, thread: threading.Thread | None = None) -> RunningAttempt:
        """Add a job to those that run here; with a thread, next in this one, once its claim is recorded."""
        control = AttemptControl(stop_requested=job.stop_requested_at is not None, on_slot_free=self._watcher.wake)
        self._running[job.id] = attempt = RunningAttempt(job, control, thread, claimed=thread is None)
        return attempt

    def _release(self, attempt: RunningAttempt) -> None:
        if self._running.get(attempt.job.id) is attempt:
            del self._running[attempt.job.id]

    def _run_attempts(self, attempt: RunningAttempt | None) -> None:
        """Run a job and, after a short member of an array, those that were claimed as it ended."""
        slot = ArraySlot(self._context, None)
        while attempt is not None:
            bind(**attempt.job.log_context())
            if slot.array_id != attempt.job.array_id:
                slot.close()
                slot = ArraySlot(self._context, attempt.job.array_id)
            began, following = time.monotonic(), None
            try:
                following = self._run_attempt(attempt, slot)
            finally:
                if attempt.run is None:
                    self._short_arrays.remember(attempt.job, time.monotonic() - began)
                    self._release(attempt)
                attempt.settle()
                attempt = following or self._next_unstarted()
        self._watcher.wake()  # the thread is still alive when the loop wakes, but its slot is free
        slot.close()

    def _next_unstarted(self) -> RunningAttempt | None:
        with suppress(IndexError):
            if self._unstarted and self._has_free_slot():
                attempt = self._unstarted.popleft()
                attempt.thread = threading.current_thread()
                return attempt
        return None

    def _run_attempt(self, attempt: RunningAttempt, slot: ArraySlot) -> RunningAttempt | None:
        """Run a job; return the one that is to be run next, which was claimed, or no longer waits elsewhere."""
        if not self._short_arrays.have(attempt.job):
            attempt.run = run_attempt(self._context, attempt.job, attempt.control, attempt.run)
            return attempt if attempt.run is not None and not attempt.park(self._begin) else None
        claimed: list[RunningAttempt] = []

        def claim(session: Session | None) -> Job | None:
            if self._stopping.is_set() or not self._registered or self._offer.gpus or self._lacks_disk():
                return None
            if session is None:
                with self._claiming, suppress(StoreUnavailable):  # until it is kept, it looks like one to adopt
                    return keep(self._context.claim(self._offer))
                return None
            return keep(claims.claim(session, self._offer))

        def keep(job: Job | None) -> Job | None:
            if job is not None:
                claimed.append(self._keep(job, threading.current_thread()))
            return job

        run = MemberRun(self._context, attempt.job, attempt.control, slot, claim)
        run_attempt(self._context, attempt.job, attempt.control, run)
        following = claimed.pop() if run.next is not None else None
        for failed in claimed:
            self._release(failed)
        if following is not None:
            following.claimed = True
            if self._stopping.is_set():
                following.control.detach()
        return following

    def _send_heartbeat(self) -> None:
        requested_at, running, offer = time.monotonic(), self._claimed(), self._offer
        if self._claim_failure is not None:
            offer = replace(offer, backends=(), refusal=self._claim_failure)
        try:
            heartbeats = self._registration.send_heartbeat(offer)
        except WorkerNotFound:
            self._registered = False
            return
        self._fence.record_contact(requested_at)
        self._heartbeat_at = time.monotonic() + self._worker_settings.heartbeat_seconds
        apply_heartbeat(running, heartbeats)
        self._start_new_nodes(heartbeats)

    def _check_leases(self) -> None:
        """Look for stop requests, now or in a moment."""
        self._leases_unread = time.monotonic() < self._leases_at
        if self._leases_unread:
            return
        self._leases_at, running = time.monotonic() + _LEASES_SECONDS, self._claimed()
        with self._context.database.read() as session:
            leases = workers.current_leases(session, self._context.worker_name, self._context.hostname)
        apply_heartbeat(running, leases)
        self._start_new_nodes(leases)

    def _start_new_nodes(self, heartbeats: dict[str, workers.HeartbeatResult]) -> None:
        """Start nodes that another worker of this host has claimed for this one, or this one with that of rank 0."""
        if not any(heartbeat.is_new_node for job_id, heartbeat in heartbeats.items() if job_id not in self._running):
            return
        with self._context.database.read() as session:
            name, host = self._context.worker_name, self._context.hostname
            nodes = workers.starting(session, name, host, Job.nodes.is_not(None))
        self._start_attempts([job for job in nodes if job.id not in self._running])

    def _claimed(self) -> list[RunningAttempt]:
        return [attempt for attempt in list(self._running.values()) if attempt.claimed]
