"""One attempt of one job, top to bottom: prepare, launch, watch, tear down, collect, finish.

Every step may be repeated: if a worker dies anywhere in here, another one adopts the job and resumes at the state in
its row.
"""

import logging
import time
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import LeaseLost, StoreUnavailable
from core.jobs import kept_jobs, lifecycle
from core.jobs.costs import limits
from core.jobs.reasons import reason_message
from core.jobs.scheduling import claims, workers
from core.jobs.scheduling.nodes import PREPARED_PHASE
from core.jobs.spec.image_options import DOCKERFILE
from core.jobs.states import JobState
from core.jobs.tracking import job_notes, trackers
from core.system.failpoints import failpoint
from worker.attempt import job_environment, nodes
from worker.attempt.control import AttemptControl, Detached
from worker.attempt.disk_quota import DiskQuota, Launched
from worker.attempt.inputs import place_inputs
from worker.attempt.job_environment import LaunchSecrets
from worker.attempt.kept_jobs import keep, may_keep, wait_for_user
from worker.attempt.monitor import ArtifactSync, JobMonitor, began, database_time
from worker.attempt.outputs.collection import CollectedOutputs, Collection
from worker.attempt.outputs.recorder import EventFileReads, OutputRecorder, build_log
from worker.attempt.record import DATABASE_PAUSE_SECONDS, AttemptRecord
from worker.attempt.self_fence import contact_lost_detail
from worker.attempt.spans import AttemptSpans
from worker.backends import base
from worker.backends.base import Exit, Handle, ImageBackend, ImageBuild, JobPython, LaunchError, LaunchSpec
from worker.backends.process.isolated_programs import Limits
from worker.context import WorkerContext
from worker.environments.prepare import prepare_python
from worker.runner.control_files import may_have_launched
from worker.service_link.storage import fetch_storage

logger = logging.getLogger(__name__)

TEARDOWN_PAUSE_SECONDS = 5.0
_COLLECT_SECONDS = 900.0  # an outage of the bucket is waited for, but a machine is not held for hours
STOPPED_COLLECT_SECONDS = 60.0  # after a stop: enough for a disk that is full only for a moment to lose no output
FAILURE_PAUSE_SECONDS = 5.0
_MAX_FAILURES = 5
_FAILURE_RESET_SECONDS = 300.0
_BY_BROKEN_GPU = frozenset({"exit_nonzero", "killed", "signalled"})  # ends for which a broken GPU may be to blame


class AttemptRun(AttemptRecord):
    """Runs one attempt for its supervisor.

    `job`: the row as it was claimed or adopted; the attribute `job` holds its latest state.
    """

    def __init__(self, context: WorkerContext, job: Job, control: AttemptControl) -> None:
        super().__init__(context, job, control)
        self._spans = AttemptSpans(job)
        self._spec: LaunchSpec | None = None  # while the job waits elsewhere

    def run(self) -> None:
        """Run the whole attempt, starting from its current state.

        Raises:
            LeaseLost: Another worker holds the job now.
            Detached: The worker must release the job, which keeps running.
        """
        self._context.logs.notify_followers(self.job.id)
        starts = self.job.state is JobState.STARTING
        if starts:
            self.start()
        if self.job.state is JobState.RUNNING:
            self.monitor(fresh=starts)
        if self.job.state is JobState.FINISHING:
            failpoint("finishing")
            if not self._keep():
                self._close()
        if self.job.state is JobState.KEPT:
            wait_for_user(self._context, self.job, self._requests)
            with self._spans.step("tear down"):
                self._tear_down()
            self._finish(None)
        self._scratch.remove()

    def _close(self) -> None:
        with self._spans.step("tear down"):
            self._tear_down()
        failpoint("destroyed")
        with self._spans.step("collect"):
            outputs = self._collect()
        failpoint("collected")
        self._finish(outputs)
        failpoint("finished")

    def fail(self, detail: str) -> None:
        """Close an attempt that keeps failing because of an internal error, so that its job does not hang for ever."""
        if self.job.state not in {JobState.FINISHING, JobState.KEPT}:
            self._mark_finishing(Exit(None, "internal_error", detail))
        self._tear_down()
        try:
            outputs = Collection(self._context, self.job, self._scratch).store()
        except Exception:  # this may be the step that fails; what was stored before is kept
            logger.exception("abandoned_outputs_not_stored")
            outputs = CollectedOutputs("failed")
        self._finish(outputs)

    def start(self) -> None:
        try:
            if self._spec is None:
                with self._spans.step("prepare"):
                    self.prepare()
            with self._spans.step("launch"):
                handle = self.launch()
        except (LaunchError, OSError) as error:
            failure = LaunchError.of(error) if isinstance(error, OSError) else error
            self._mark_finishing(Exit(None, failure.reason, failure.detail))
            return
        if handle is None:
            self._mark_finishing(Exit(0, "built", self.job.image_digest))
            return
        self._requests.start_unrecorded = True
        self._record_launch(began() | handle)
        failpoint("running")

    def _record_launch(self, handle: Handle) -> None:
        may_have_ended, requests = self._may_have_ended(handle), self._requests
        requested = requests.stop_requested or requests.contact_lost or requests.detached
        end = self._backend.ended(handle) if may_have_ended and not requested else None
        if end is None or end.memory_bytes is not None:
            self._transition(lambda session: self._record_start(session, handle))
            return
        self._leave_unrecorded(handle, end)

    def _may_have_ended(self, handle: Handle) -> bool:
        """Return whether a command may have ended by now: one that has waited elsewhere, with one node."""
        del handle
        return self._capabilities.own_queue and self.job.spec.nodes is None

    def _record_start(self, session: Session, handle: Handle) -> Job:
        """Record that the command runs; or that it ended unrecorded, so that it is started again as any such job."""
        for text in (*handle.get("notes", ()), *nodes.notes(session, self.job)):
            job_notes.add(session, self.job, text)
        if self._requests.contact_lost:
            detail = contact_lost_detail(self._context)
            return lifecycle.mark_finishing(session, self.job, "lost_contact", detail=detail)
        return lifecycle.mark_running(session, self.job, handle, database_time(handle["began"]))

    def launch(self) -> Handle | None:
        """Start the command, or only build the image: then return None."""
        spec = self._spec or self._launch_spec()
        if spec.build is None:
            self._spec = spec if self._capabilities.own_queue else None
            return self._backend.launch(spec, self._confirm, self._report_progress)
        if not isinstance(self._backend, ImageBackend):
            raise LaunchError("image_build", "this machine has no container engine to build images")
        with build_log(self._context, self.job, self._scratch):
            if not self.job.spec.build_only:
                return self._backend.launch(spec, self._confirm, self._report_progress)
            digest = self._backend.build(spec, self._report_progress)
        self._transition(lambda session: lifecycle.set_image_digest(session, self.job, digest))
        return None

    def prepare(self) -> None:
        failpoint("claimed")
        if not may_have_launched(self._scratch.control):  # what follows may be tried again for hours
            self._check()
        self._scratch.make(self._context.artifacts)
        spec = self.job.spec
        if spec.workspace is not None:
            self._set_phase("provisioning", f"fetching {spec.redacted_workspace()}")
        context, fill = self._context, partial(place_inputs, self._context, spec, self._check, self._report_progress)
        commit = self._scratch.unpack_workspace(spec, context.workspaces, context.limits, self._fetch, fill)
        if commit is not None:
            self._set_phase("provisioning", f"workspace at commit {commit}")
        if self._capabilities.shared_storage:
            fetch_storage(self._context, self.job, self._check, self._report_progress)
        failpoint("prepared")

    def _fetch(self, folder: Path) -> str:
        job, limits = self.job, Limits.of(self._scratch.name, self.job.spec)
        url, login = job.spec.workspace or "", self._secrets().git_login()
        fetched = self._context.fetcher.fetch(url, login, folder, self._check, job.project_id, limits)
        for text in fetched.notes:
            self._context.write(partial(job_notes.add, job=self.job, text=text))
        return fetched.commit

    def _secrets(self) -> LaunchSecrets:
        return LaunchSecrets(self._context.settings, self._context.database, self.job, self._context.link)

    def _check(self) -> None:
        """Raise if the start must be aborted."""
        self._requests.check()
        if self._requests.stop_requested:
            raise LaunchError("stopped_by_user", "before it was started")
        if self._requests.node_failure is not None:
            raise LaunchError("node_failed", self._requests.node_failure)
        if self._context.link is not None and not may_have_launched(self._scratch.control):
            self._context.link.check_silence()

    def _confirm(self) -> None:
        self._check()
        if self.job.nodes is not None and not may_have_launched(self._scratch.control):
            prepared = partial(self._set_phase, PREPARED_PHASE)
            nodes.wait_until_all_may_launch(self._context, self.job, self._requests, self._check, prepared)
        if not self._context.is_held_afresh(self.job):
            self._transition(lambda session: lifecycle.confirm(session, self.job))

    def _report_progress(self, phase: str, detail: str | None) -> None:
        self._check()
        self._set_phase(phase, detail)

    def monitor(self, *, fresh: bool = False) -> None:
        with OutputRecorder(self._context, self.job, self._scratch) as recorder:
            recorder.ship()  # at once: a user may be waiting for the first line of output
            handle = self._scratch.own_handle(self.job.handle)
            launched = Launched(self.job, self._scratch, self._backend, handle)
            quota = DiskQuota(self._context, launched, fresh=fresh)
            tasks = ArtifactSync(self._context, self.job, self._scratch), EventFileReads(self.job, recorder), quota
            monitor = JobMonitor(self._context, launched, self._requests, recorder, quota, fresh=fresh)
            try:
                for task in tasks:
                    task.start(self._context.schedule)
                with self._context.disk_reserve.watching(quota):
                    end = monitor.run()
                failpoint("exited")
                monitor.correct_record()
                self._mark_finishing(end, monitor.ended_at)
                self._backend.release(handle)  # a copy in progress may take long
            finally:
                for task in tasks:
                    task.end()

    def _mark_finishing(self, end: Exit, ended_at: float | None = None) -> None:
        gpus = self._gpus()
        broken = self._backend.broken_gpus(gpus) if gpus else {}

        def mark(session: Session) -> Job:
            reason, detail = end.reason or "process_lost", end.detail
            new = workers.add_gpu_faults(session, self._context.worker_name, broken) if broken else {}
            if new and reason in _BY_BROKEN_GPU:
                gpus = "; ".join(f"GPU {gpu} of {self._context.hostname}: {why}" for gpu, why in new.items())
                reason, detail = "gpu_fault", f"{gpus}. {reason_message(reason, detail)}"
            at = database_time(ended_at, Job.started_at)
            return lifecycle.mark_finishing(session, self.job, reason, detail=detail, exit_code=end.code, ended_at=at)

        self._transition(mark)
        if self.job.nodes is not None:
            self._context.notify_host()  # the others may have to end, too

    def _finish(self, outputs: CollectedOutputs | None) -> None:
        """Close the attempt; `outputs`: None: those of a kept job, which are recorded already."""
        ended = self.job
        settles = self._context.link is None  # else the service does, once it is told

        def close(session: Session) -> Job:
            if outputs is None:
                return kept_jobs.end(session, ended, settles=settles)
            outputs.record(session, ended)
            return lifecycle.finish(session, ended, artifacts_state=outputs.artifacts_state, settles=settles)

        with self._spans.step("finish"):
            self._transition(close)
        self._spans.emit_run(ended, reason := ended.reason or "internal_error")
        logger.info("attempt_closed", extra={"reason": reason, "exit_code": ended.exit_code, "state": self.job.state})

    def _tear_down(self) -> None:
        """Remove what the backend created, before collecting outputs: nothing may write to them any more.

        Of nodes only when the commands of all have ended, since that of rank 0 has their network.
        """
        if self.job.nodes is not None:
            nodes.wait_until_all_ended(self._context, self.job, self._requests)
        while True:
            try:
                handle = self._scratch.own_handle(self.job.handle) or next(
                    (owned for owned in self._backend.owned() if owned["name"] == self._scratch.name), {}
                )
                if handle:
                    self._backend.destroy(handle)
                return  # noqa: TRY300 - in a loop
            except LaunchError as error:
                logger.warning("teardown_failed", extra={"error": str(error)})
                self._set_phase("tearing down", error.detail)
                self._requests.pause(TEARDOWN_PAUSE_SECONDS)

    def _collect(self) -> CollectedOutputs:
        """Collect output, metrics and artifacts. A failure here does not change the reason that the job ended for."""
        collection = Collection(self._context, self.job, self._scratch)
        until = time.monotonic() + _COLLECT_SECONDS
        while True:
            try:
                return collection.store(unchanged=self._is_workspace_unchanged())
            except (OSError, StoreUnavailable) as error:
                logger.warning("collect_failed", exc_info=True)
                now = time.monotonic()
                if collection.stopped():
                    until = min(until, now + STOPPED_COLLECT_SECONDS)
                if now > until:
                    return CollectedOutputs("failed")
                self._set_phase("collecting", f"trying again: {error}")
                self._requests.pause(TEARDOWN_PAUSE_SECONDS)

    def _is_workspace_unchanged(self) -> bool:
        """Return whether the job has certainly left nothing in its workspace."""
        return False

    def _keep(self) -> bool:
        """Store the outputs of a job that failed, and only then let its user look; return whether it is kept."""
        if not may_keep(self._context, self.job):
            return False
        outputs = self._collect()
        self._transition(lambda session: keep(session, self.job, outputs))
        return True

    def _gpus(self) -> tuple[str, ...]:
        if not self.job.gpus:
            return ()
        with self._context.database.read() as session:
            return claims.gpus_of(session, self.job)

    def _launch_spec(self) -> LaunchSpec:
        spec, scratch, gpus, capabilities = limits.limited(self.job), self._scratch, self._gpus(), self._capabilities
        secrets, places = self._secrets(), nodes.find_places(self._context, self.job)
        ports, dockerfile = secrets.ports(), spec.rel_dockerfile_path or DOCKERFILE
        storage = self._context.storage.project_folder(self.job.project_id, mounted=self._backend.capabilities.mounts)
        return LaunchSpec(
            name=scratch.name,
            job_id=self.job.id,
            attempt=self.job.attempt,
            project_id=self.job.project_id,
            machine_type=self.job.machine_type,
            job_spec=spec,
            container=self.job.image or (spec.container if capabilities.containers else None),
            env=job_environment.default_environment(capabilities, storage)
            | nodes.node_environment(self.job, places.addresses)
            | trackers.variables(self._context.database, self.job)
            | secrets.environment()
            | job_environment.service_environment(self.job, scratch, capabilities, gpus, storage, ports)
            | ({"GRADIENT_NODE_ADDRESSES": ",".join(places.addresses)} if places.addresses else {}),
            workspace=scratch.workspace,
            artifacts=scratch.artifacts,
            storage=storage,
            datasets=self._context.storage.datasets,
            control=scratch.control,
            gpus=gpus,
            working_dir=job_environment.working_dir(spec, scratch, capabilities),
            build=ImageBuild(dockerfile, spec.registry_target) if spec.use_dockerfile else None,
            ports=ports,
            login=secrets.login,
            rank=self.job.rank,
            is_first_node=self.job.nodes is not None and self.job.rank == 0 and not places.several_hosts,
            first_node=places.first,
            host_network=places.several_hosts,
            python=self._prepare_python(),
            check=self._check,
            resume=self._requests.resume,
            together=self._requests.together,
        )

    def _prepare_python(self) -> JobPython | None:
        if self._capabilities.containers:
            return None  # it comes with the image
        variables, check, confirm = self._secrets().environment, self._check, self._confirm
        progress = self._report_progress
        return prepare_python(self._context, self.job, self._scratch, variables, check, confirm, progress)

    def _set_phase(self, phase: str, detail: str | None = None) -> None:
        self._transition(lambda session: lifecycle.set_phase(session, self.job, phase, detail))


def run_attempt(
    context: WorkerContext, job: Job, control: AttemptControl, attempt: AttemptRun | None = None
) -> AttemptRun | None:
    """Run an attempt until it ends, has to be released, or waits elsewhere: then return it. Raises nothing."""
    logger.info("attempt_opened", extra={"state": job.state, "machine_type": job.machine_type})
    failures = 0
    while True:
        began = time.monotonic()
        try:
            attempt = attempt or AttemptRun(context, job, control)
            attempt.run()
        except base.WaitsElsewhere:
            return attempt
        except (LeaseLost, Detached) as error:
            logger.info("attempt_released", extra={"why": str(error) or "the worker is shutting down"})
        except StoreUnavailable:
            if control.may_retry(DATABASE_PAUSE_SECONDS):
                continue
        except Exception as error:  # the job must not be left unwatched
            logger.exception("attempt_failed")
            # Failures that lie days apart must not add up and end a job that runs for weeks.
            failures = 1 if time.monotonic() - began > _FAILURE_RESET_SECONDS else failures + 1
            if failures >= _MAX_FAILURES:
                _fail_attempt(attempt, error)
            elif control.may_retry(FAILURE_PAUSE_SECONDS):
                continue
        return None


def _fail_attempt(attempt: AttemptRun | None, error: Exception) -> None:
    if attempt is None:
        return  # its backend cannot be used here
    try:
        attempt.fail(f"{type(error).__name__}: {error}")
    except Exception:  # this worker, or another one of this host, adopts the job soon and tries again
        logger.exception("abandon_failed")
