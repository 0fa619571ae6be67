"""One attempt of one job, top to bottom: prepare, launch, watch, tear down, collect, finish.

Every step may be repeated: if a worker dies anywhere in here, another one adopts the job and resumes at the state in
its row.
"""

import errno
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import LeaseLost, StoreUnavailable
from core.formatting import MIB
from core.jobs import lifecycle, queries
from core.jobs.scheduling import claims
from core.jobs.spec.container import is_in_workspace
from core.jobs.spec.image import DOCKERFILE
from core.jobs.states import JobState
from core.jobs.transitions import note_sizes
from core.system.failpoints import failpoint
from worker.attempt.control import Detached, Signals
from worker.attempt.disk_quota import DiskQuota
from worker.attempt.launch_secrets import Grants
from worker.attempt.monitor import ArtifactSync, MetricsSync, Recorder, Watch, opened_log
from worker.attempt.outputs.build_log import build_log
from worker.attempt.outputs.collection_limits import Bounds
from worker.attempt.outputs.missing_artifacts import lost
from worker.attempt.scratch import Scratch
from worker.attempt.spans import AttemptSpans
from worker.backends import base
from worker.backends.base import Build, Exit, Handle, ImageKeeper, LaunchError, LaunchSpec, PortMap
from worker.context import Host

logger = logging.getLogger(__name__)

_DATABASE_PAUSE_SECONDS = 2.0
_TEARDOWN_PAUSE_SECONDS = 5.0
_STOPPED_COLLECT_SECONDS = 60.0
"""A user who stops the collection does not wait longer; a disk that is full for a moment costs no output even so."""
_FAILURE_PAUSE_SECONDS = 5.0
_MOST_FAILURES = 5
_FORGIVEN_SECONDS = 300.0


class _Kept(NamedTuple):
    """Stored output of an attempt: state of its artifacts, bytes of its job's log, bytes of its artifacts."""

    artifacts_state: str
    log_bytes: int | None = None
    artifact_bytes: int | None = None


class AttemptRun:
    """Runs one attempt for its supervisor.

    Args:
        host: The stores and backends.
        job: The row as it was claimed or adopted; the attribute `job` holds its latest state.
        signals: Stop and detach requests from the supervisor.
    """

    def __init__(self, host: Host, job: Job, signals: Signals) -> None:
        self.job = job
        self._host = host
        self._signals = signals
        self._scratch: Scratch = host.scratch(job.id, job.attempt)
        self._backend = host.backend(job.backend)
        self._spans = AttemptSpans(job)

    def run(self) -> None:
        """Run the whole attempt, starting from its current state.

        Raises:
            LeaseLost: Another worker holds the job now.
            Detached: The worker must release the job, which keeps running.
        """
        self._host.logs.nudge(self.job.id)
        if self.job.state is JobState.STARTING:
            self._start()
        if self.job.state is JobState.RUNNING:
            self._watch()
        if self.job.state is JobState.FINISHING:
            failpoint("finishing")
            with self._spans.step("tear down"):
                self._tear_down()
            failpoint("destroyed")
            with self._spans.step("collect"):
                kept = self._collect()
            failpoint("collected")
            self._close(kept)
            failpoint("finished")
        if not self._host.settings.worker.keep_scratch:
            self._scratch.remove()

    def abandon(self, why: str) -> None:
        """Close an attempt that keeps failing because of an internal error, so that its job does not hang for ever.

        Raises:
            LeaseLost: Another worker holds the job now.
        """
        if self.job.state is not JobState.FINISHING:
            self._end(Exit(None, "internal_error", why))
        self._tear_down()
        try:
            kept = self._store(Bounds(self._host, self.job))
        except Exception:  # this may be the step that fails; what was stored before is kept
            logger.exception("abandoned_outputs_not_stored")
            kept = _Kept("failed")
        self._close(kept)

    def _start(self) -> None:
        try:
            with self._spans.step("prepare"):
                self._prepare()
            with self._spans.step("launch"):
                handle = self._launch()
        except LaunchError as error:
            self._end(Exit(None, error.reason, error.detail))
            return
        except OSError as error:
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            self._end(Exit(None, "disk_full" if full else "launch_failed", str(error)))
            return
        if handle is None:
            self._end(Exit(0, "built", self.job.image_digest))
            return
        self._move(lambda session: lifecycle.started(session, self.job, handle))
        failpoint("running")

    def _launch(self) -> Handle | None:
        """Start the command, or only build the image: then return None."""
        spec = self._launch_spec()
        if spec.build is None:
            return self._backend.launch(spec, self._confirm, self._progress)
        if not isinstance(self._backend, ImageKeeper):
            raise LaunchError("image_build", "this machine has no engine that builds images")
        with build_log(self._host, self.job, self._scratch):
            if not self.job.spec.build_only:
                return self._backend.launch(spec, self._confirm, self._progress)
            digest = self._backend.build(spec, self._progress)
        self._move(lambda session: lifecycle.note_image(session, self.job, digest))
        return None

    def _prepare(self) -> None:
        failpoint("claimed")
        self._scratch.make(self._host.artifacts)
        spec = self.job.spec
        if spec.workspace is not None:
            self._phase("provisioning", f"fetching {spec.shown_workspace()}")
        commit = self._scratch.fill(spec, self._host.workspaces, self._host.limits, self._fetch)
        if commit is not None:
            self._phase("provisioning", f"workspace at commit {commit}")
        failpoint("prepared")

    def _fetch(self, folder: Path) -> str:
        url = self.job.spec.workspace or ""
        login = Grants(self._host.settings, self._host.database, self.job).git_login()
        return self._host.fetcher.fetch(url, login, folder, self._check)

    def _check(self) -> None:
        """Raise if the start must be aborted."""
        self._signals.check()
        if self._signals.stop_requested:
            raise LaunchError("stopped_by_user", "before it was started")

    def _confirm(self) -> None:
        self._check()
        self._move(lambda session: lifecycle.confirm(session, self.job))

    def _progress(self, phase: str, detail: str | None) -> None:
        self._check()
        self._phase(phase, detail)

    def _watch(self) -> None:
        with Recorder(self._host, self.job, self._scratch) as recorder:
            recorder.ship()  # at once: a user may be waiting for the first line of output
            quota = DiskQuota(self._host, self.job, self._scratch)
            watch = Watch(self._host, self.job, self._scratch, self._signals, recorder, quota)
            syncs = ArtifactSync(self._host, self.job, self._scratch), MetricsSync(recorder, self.job), quota
            for sync in syncs:
                sync.start()
            try:
                end = watch.run()
            finally:
                for sync in syncs:
                    sync.end()
        failpoint("exited")
        self._end(end)

    def _end(self, end: Exit) -> None:
        reason = end.reason or "vanished"
        self._move(lambda session: lifecycle.ended(session, self.job, reason, detail=end.detail, exit_code=end.code))

    def _close(self, kept: _Kept) -> None:
        over = self.job

        def close(session: Session) -> Job:
            closed = lifecycle.finish(session, over, artifacts_state=kept.artifacts_state)
            note_sizes(session, closed, log_bytes=kept.log_bytes, artifact_bytes=kept.artifact_bytes)
            return closed

        with self._spans.step("finish"):
            self._move(close)
        reason = over.reason or "internal_error"
        self._spans.closed(over, reason)
        logger.info("attempt_closed", extra={"reason": reason, "exit_code": over.exit_code, "state": self.job.state})

    def _tear_down(self) -> None:
        """Remove what the backend created, before collecting outputs: nothing may write to them any more."""
        while True:
            try:
                handle = self.job.handle or self._found()
                if handle is not None:
                    self._backend.destroy(handle)
            except LaunchError as error:
                logger.warning("teardown_failed", extra={"error": str(error)})
                self._phase("tearing down", error.detail)
                self._signals.pause(_TEARDOWN_PAUSE_SECONDS)
                continue
            return

    def _found(self) -> Handle | None:
        """Find what a launch created if its handle was never stored."""
        return next((h for h in self._backend.list_owned() if h["name"] == self._scratch.name), None)

    def _collect(self) -> _Kept:
        """Collect output, metrics and artifacts. A failure here does not change the reason that the job ended for."""
        bounds = Bounds(self._host, self.job)
        until = time.monotonic() + self._host.settings.worker.collect_seconds
        while True:
            try:
                return self._store(bounds)
            except (OSError, StoreUnavailable) as error:
                logger.warning("collect_failed", exc_info=True)
                now = time.monotonic()
                if bounds.stopped():
                    until = min(until, now + _STOPPED_COLLECT_SECONDS)
                if now > until:
                    return _Kept("failed")
                self._phase("collecting", f"trying again: {error}")
                self._signals.pause(_TEARDOWN_PAUSE_SECONDS)

    def _store(self, bounds: Bounds) -> _Kept:
        """Store the rest of output and metrics, and the artifacts."""
        if not self._scratch.control.is_dir():
            return _Kept(self.job.artifacts_state)
        with Recorder(self._host, self.job, self._scratch) as recorder:
            recorder.finish()
        log_bytes = self._host.logs.reader(self.job.id).size
        began = base.read_control(self._scratch.control, "started") is not None
        if not (began or self._scratch.artifacts.is_dir()):
            return _Kept(
                self.job.artifacts_state, log_bytes
            )  # the command never started: artifacts of an earlier attempt are still the latest
        left = self._scratch.artifacts
        most = bounds.max_bytes()
        manifest = self._host.artifacts.close(
            self.job.id, self.job.attempt, left, lost=lost(left), max_bytes=most, stopped=bounds.stopped
        )
        state = manifest.state if manifest.files or manifest.skipped else "none"
        return _Kept(state, log_bytes, manifest.bytes)

    def _gpus(self) -> tuple[str, ...]:
        if not self.job.gpus:
            return ()
        with self._host.database.read() as session:
            return claims.gpus_of(session, self.job)

    def _launch_spec(self) -> LaunchSpec:
        spec, scratch, gpus = self.job.spec, self._scratch, self._gpus()
        grants = Grants(self._host.settings, self._host.database, self.job)
        ports = grants.ports()
        storage = self._host.storage.of(self.job.project_id, mounted=self._backend.capabilities.mounts)
        return LaunchSpec(
            name=scratch.name,
            job_id=self.job.id,
            attempt=self.job.attempt,
            project_id=self.job.project_id,
            machine_type=self.job.machine_type,
            command=spec.command,
            container=self.job.image or spec.container,
            env=grants.environment() | self._service_env(gpus, storage) | self._port_env(ports),
            workspace=scratch.workspace,
            artifacts=scratch.artifacts,
            storage=storage,
            datasets=self._host.storage.datasets,
            control=scratch.control,
            gpus=gpus,
            cpus=spec.cpus,
            memory_bytes=spec.memory_mb * MIB if spec.memory_mb is not None else None,
            stop_grace=spec.stop_grace,
            shared_mem_bytes=spec.shared_mem_mb * MIB if spec.shared_mem_mb is not None else None,
            working_dir=self._working_dir(),
            user=spec.user,
            pull_policy=spec.image_pull_policy,
            build=Build(spec.rel_dockerfile_path or DOCKERFILE, spec.registry_target) if spec.use_dockerfile else None,
            ports=ports,
            login=grants.login,
        )

    def _working_dir(self) -> str | None:
        """Return the folder that the command starts in, as the job sees it; None if it is the workspace itself."""
        asked = self.job.spec.working_dir
        if asked is None:
            return None
        if not is_in_workspace(asked):
            return asked  # a folder of the container
        within = str(PurePosixPath(base.WORKSPACE, asked).relative_to(base.WORKSPACE))
        if base.read_control(self._scratch.control, "started") is None:  # once started, the job may remove the folder
            within = str(self._scratch.folder(within).relative_to(self._scratch.workspace.resolve()))
        workspace = base.WORKSPACE if self._backend.capabilities.mounts else self._scratch.workspace
        return str(Path(workspace, within))

    def _port_env(self, ports: tuple[PortMap, ...]) -> dict[str, str]:
        """Build the environment variables that name the ports to listen on.

        These are the job's own ports in a container, else the host's allocated ports.
        """
        contained = self._backend.capabilities.containers
        return {f"GRADIENT_PORT_{port.internal}": str(port.internal if contained else port.external) for port in ports}

    def _service_env(self, gpus: tuple[str, ...], shared: Path) -> dict[str, str]:
        """Build the environment variables that every backend gives to a job."""
        scratch, mounted = self._scratch, self._backend.capabilities.mounts
        workspace = Path(base.WORKSPACE) if mounted else scratch.workspace
        artifacts = Path(base.ARTIFACTS) if mounted else scratch.artifacts
        storage = Path(base.STORAGE) if mounted else shared
        control = Path(base.CONTROL) if mounted else scratch.control
        return {
            "GRADIENT_JOB_ID": self.job.id,
            "GRADIENT_ATTEMPT": str(self.job.attempt),
            "GRADIENT_MACHINE_TYPE": self.job.machine_type,
            **({"GRADIENT_GPUS": ",".join(gpus)} if gpus else {}),
            "GRADIENT_WORKSPACE_DIR": str(workspace),
            "GRADIENT_ARTIFACTS_DIR": str(artifacts),
            "GRADIENT_STORAGE_DIR": str(storage),
            "GRADIENT_METRICS_FILE": str(control / "metrics.jsonl"),
            "PS_JOB_ID": self.job.id,
            "PS_JOBSPACE": str(workspace),
            "PS_MODEL_PATH": str(artifacts),
            "PS_HOSTNAME": os.uname().nodename,
            "PYTHONUNBUFFERED": "1",
        }

    def _phase(self, phase: str, detail: str | None = None) -> None:
        self.job = self._retried(lambda session: lifecycle.set_phase(session, self.job, phase, detail))

    def _move(self, action: Callable[[Session], Job]) -> None:
        self.job = self._retried(action)

    def _retried(self, action: Callable[[Session], Job]) -> Job:
        """Retry one write until the database answers; the job and its files go on meanwhile.

        Raises:
            LeaseLost: Another worker holds the job now.
            Detached: The worker must release the job.
        """
        unsure = False
        while True:
            try:
                job = self._host.write(action)
            except LeaseLost:
                done = self._done_before(unsure=unsure)
                if done is None:
                    raise
                return done
            except StoreUnavailable:
                unsure = True
                self._keep_output()
                self._signals.pause(_DATABASE_PAUSE_SECONDS)
            else:
                self._host.logs.nudge(job.id)
                return job

    def _keep_output(self) -> None:
        """Store the output so far: this host may be declared lost before the database is back."""
        if (self._scratch.control / "log").exists():
            with suppress(OSError, LeaseLost), opened_log(self._host, self.job, self._scratch) as log:
                log.ship()

    def _done_before(self, *, unsure: bool) -> Job | None:
        """Return the row if our write was applied although its answer was lost; else None."""
        if not unsure:
            return None
        with self._host.database.read() as session:
            row = queries.row(session, self.job.id)
        ours = row is not None and row.lease == self.job.lease and row.state is not self.job.state
        return row if ours else None


def run_attempt(host: Host, job: Job, signals: Signals) -> None:
    """Run an attempt to its end, or until this worker must release it. Raises nothing."""
    logger.info("attempt_taken_up", extra={"state": job.state, "machine_type": job.machine_type})
    attempt = AttemptRun(host, job, signals)
    failures = 0
    while True:
        began = time.monotonic()
        try:
            attempt.run()
        except (LeaseLost, Detached) as error:
            logger.info("attempt_let_go", extra={"why": str(error) or "the worker is going away"})
        except StoreUnavailable:
            if _paused(signals, _DATABASE_PAUSE_SECONDS):
                continue
        except Exception as error:  # the job must not be left unwatched
            logger.exception("attempt_failed")
            # Failures that lie days apart must not add up and end a job that runs for weeks.
            failures = 1 if time.monotonic() - began > _FORGIVEN_SECONDS else failures + 1
            if failures >= _MOST_FAILURES:
                _abandon(attempt, error)
            elif _paused(signals, _FAILURE_PAUSE_SECONDS):
                continue
        return


def _paused(signals: Signals, seconds: float) -> bool:
    """Wait before the next try; return False if the worker must release the job instead."""
    try:
        signals.pause(seconds)
    except Detached:
        return False
    return True


def _abandon(attempt: AttemptRun, error: Exception) -> None:
    try:
        attempt.abandon(f"{type(error).__name__}: {error}")
    except Exception:  # the job keeps its heartbeat; the next worker to start here adopts it and tries again
        logger.exception("abandon_failed")
