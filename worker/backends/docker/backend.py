"""The Docker backend: runs each attempt in a container of its own.

The container is named after job and attempt, created before the lease is checked again, and started by its id. Output
and exit code are in files that the wrapper writes, so neither a restart of the worker nor one of the engine (with
`live-restore`) loses any of it. While the engine is away nothing is concluded: an exit file proves the end, a missing
one proves nothing.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from docker.api.client import APIClient

from core.catalogue.backends import BACKENDS
from core.formatting import format_memory
from core.settings import Settings
from core.system.failpoints import failpoint
from core.system.untrusted_folders import measure_used_bytes
from worker.backends.base import (
    Backend,
    Exit,
    Handle,
    LaunchError,
    LaunchSpec,
    Progress,
    UnusedImage,
    scratch_handle,
)
from worker.backends.docker.container.config import LABEL_ATTEMPT, LABEL_HOME, LABEL_JOB, container_name
from worker.backends.docker.container.container_exec import ContainerStream, connect_to_container, run_in_container
from worker.backends.docker.container.launcher import Launcher
from worker.backends.docker.engine.client import (
    OLDEST_API,
    ContainerState,
    Engine,
    EngineError,
    EngineRefused,
    EngineUnavailable,
)
from worker.backends.docker.engine.stats import ContainerSampler
from worker.backends.docker.gpu.host_gpus import GpuMonitor
from worker.backends.docker.images.cache import ImageCache
from worker.backends.job_processes import JobProcesses, boot_id
from worker.runner.control_files import STOPPING_FILE, read_control, read_exit_code, write_control_file
from worker.runner.streams import ExecRequest

logger = logging.getLogger(__name__)

KILLED, TERMINATED = 137, 143
_INSPECT_SECONDS = 1.0
_ENDING_INSPECT_SECONDS = 0.1
_OOM_EVENT_SECONDS = 0.5
_BACKOFF_SECONDS = 2.0
_INSPECT_TIMEOUT_SECONDS = 5.0  # polling delays the job's output: an engine that hangs must not do so for long
_BACKOFF_FACTOR = 5
_START_SECONDS = 15.0

_KILLED, _REFUSED, _UNKNOWN = 137, 97, 255
_VOLUME = "volume"


def determine_exit(handle: Handle, state: ContainerState | None, code: int | None) -> Exit:
    """Return how the job ended.

    The exit file takes precedence over the engine, which has been seen to be wrong after a crash.

    Args:
        state: Its ended container; None: the container no longer exists.
        code: The code in the exit file; None: there is no file.
    """
    if state is not None and state.oom_killed and code in {None, _KILLED}:
        limit: int | None = handle.get("memory_bytes")
        reason, detail = ("out_of_memory", format_memory(limit)) if limit else ("machine_memory", None)
        return Exit(_KILLED, reason, detail, limit or None, state.finished_at)
    if code is not None:
        return Exit(code)
    if handle["boot_id"] != boot_id():
        return Exit(None, "host_restarted")
    began = read_control(Path(handle["control"]), "started") is not None
    if state is None:
        return Exit(None, "process_lost" if began else "never_started", "its container is gone")
    return replace(_exit_without_file(state, began=began), at=state.finished_at)


def _exit_without_file(state: ContainerState, *, began: bool) -> Exit:
    code = state.exit_code
    if not began:
        return Exit(None, "never_started", state.error or f"its container ended with exit code {code}")
    if code in {_REFUSED, _UNKNOWN}:  # started twice by an engine that crashed; or ended with its host
        return Exit(None, "process_lost", f"its container ended with exit code {code}")
    if code == _KILLED:
        return Exit(_KILLED, "process_lost", "its container was killed")
    return Exit(code)  # the wrapper could not write the file, for example on a full disk


@dataclass(frozen=True, slots=True)
class _Inspection:
    at: float
    state: ContainerState | None


class DockerBackend(Backend):
    """See the module. One instance serves all attempt threads of a worker."""

    capabilities = BACKENDS["docker"].capabilities

    def __init__(self, settings: Settings) -> None:
        self._root = settings.root
        self._engine = Engine(settings.docker)
        self._polling_engine = self._engine.with_timeout(_INSPECT_TIMEOUT_SECONDS)
        self._gpus = GpuMonitor()
        self.launcher = Launcher(self._engine, settings, self._gpus)
        self._image_cache = ImageCache(self._engine, self.launcher.images, settings)
        self._sampler = ContainerSampler(self._engine, self._gpus)
        self._lock = threading.Lock()
        self._inspections: dict[str, _Inspection] = {}
        self._unavailable_until = 0.0
        self._warned = False

    def unavailable_reason(self) -> str | None:
        try:
            info, version = self._polling_engine.info(), self._polling_engine.call(lambda api: api.api_version)
        except EngineUnavailable as error:
            return f"The Docker engine does not answer ({error}). Start it, or correct GRADIENT_DOCKER__URL."
        except EngineRefused as error:
            return f"The Docker engine does not report its version: {error.detail}"
        if tuple(int(part) for part in version.split(".")) < OLDEST_API:
            return f"The Docker engine has API version {version}; 1.41 (Docker 20.10) or later is required."
        if not self._warned and not info.get("LiveRestoreEnabled"):
            logger.warning(
                "live_restore_off: a restart of the Docker engine ends every job on this host. Put "
                '{"live-restore": true} into /etc/docker/daemon.json and reload it (systemctl reload docker)'
            )
        self._warned = True
        return None

    def gpus(self) -> tuple[str, ...] | None:
        return self._gpus.indices()

    def taken_gpus(self, gpus: Collection[str]) -> dict[str, str]:
        return self._gpus.taken(gpus)

    def broken_gpus(self, gpus: Collection[str]) -> dict[str, str]:
        return self._gpus.faults(gpus)

    def launch(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> Handle:
        started = self.launcher.launch(spec, confirm, progress)
        failpoint("launched")
        with self._lock:
            self._inspections.pop(spec.name, None)
        return {
            **spec.base_handle(),
            **started,
            "boot_id": boot_id(),
            "launched_at": time.time(),
            **({"gpus": self._gpus.facts(spec.gpus)} if spec.gpus else {}),
        }

    def build(self, spec: LaunchSpec, progress: Progress) -> str:
        return self.launcher.build(spec, progress).digest

    def prune_images(self, *, everything: bool, dry_run: bool = False) -> list[UnusedImage]:
        try:
            return self._image_cache.prune(everything=everything, dry_run=dry_run)
        except EngineError as error:
            raise LaunchError("engine_unavailable", str(error)) from error

    def ended(self, handle: Handle) -> Exit | None:
        control = Path(handle["control"])
        code = read_exit_code(control)
        stopping = read_control(control, STOPPING_FILE) is not None
        if code not in {None, KILLED, TERMINATED} and not stopping:
            return Exit(code)
        # Otherwise only the engine knows if memory ran out, or if a job that got a stop request has finished.
        inspection = self._inspect(handle["name"], _INSPECT_SECONDS if code is None else _ENDING_INSPECT_SECONDS)
        if inspection is None or (inspection.state is not None and not self._has_ended(handle, inspection.state, code)):
            return None
        code = read_exit_code(control)  # written, perhaps, while the engine took its time to answer
        if code == TERMINATED and not stopping:
            return self._terminated_exit(handle)
        state = inspection.state
        if code == KILLED and not stopping and state is not None and not state.oom_killed:
            state = self._find_late_oom(handle["name"]) or state
        return determine_exit(handle, state, code)

    def _find_late_oom(self, name: str) -> ContainerState | None:
        """Inspect a killed container again: the engine may learn that memory ran out after the container's end."""
        time.sleep(_OOM_EVENT_SECONDS)
        with self._lock:
            self._inspections.pop(name, None)
        inspection = self._inspect(name, _INSPECT_SECONDS)
        return inspection.state if inspection else None

    def signal(self, handle: Handle, *, grace: bool) -> None:
        """See `Backend.signal`.

        No program is started in the container for it: the image decides what that does, and the job may suspend it.
        The wrapper passes SIGTERM on: to the programs that handle it first, at last to every process.
        """
        if grace:
            write_control_file(Path(handle["control"]), STOPPING_FILE, "asked to end")
        name, number = container_name(handle["name"]), "SIGTERM" if grace else "SIGKILL"
        try:
            self._polling_engine.call(lambda api: api.kill(name, number))
        except EngineRefused as error:  # it has ended, or the engine fails
            logger.info("signal_refused", extra={"error": error.detail})
            if error.transient:
                _signal_processes(handle, grace=grace)
        except EngineUnavailable as error:  # also while the job suspends a command that is just being started in it
            logger.info("engine_not_answering", extra={"error": str(error)})
            _signal_processes(handle, grace=grace)
        with self._lock:
            self._inspections.pop(handle["name"], None)

    def warn(self, handle: Handle, number: int) -> None:
        """See `Backend.warn`; the wrapper knows the signal."""
        del number
        with suppress(EngineError):
            self._polling_engine.call(lambda api: api.kill(container_name(handle["name"]), "SIGUSR1"))

    def sample(self, handle: Handle) -> dict[str, float]:
        gpus = tuple(gpu["index"] for gpu in handle.get("gpus", ()))
        self.launcher.network.renew()
        return self._sampler.sample(container_name(handle["name"]), gpus)

    def host_address(self) -> str | None:
        try:
            return self.launcher.network.gateway()
        except (EngineError, LaunchError) as error:
            logger.info("no_gateway", extra={"error": str(error)})
            return None

    def layer_bytes(self, handle: Handle) -> int:
        """See `Backend.layer_bytes`: the engine scans the container's own files, this worker its volumes."""
        filters = {"name": [f"^/{container_name(handle['name'])}$"]}
        try:
            containers = self._engine.call(lambda api: api.containers(all=True, size=True, filters=filters))
            folders = volume_folders(self._engine, containers)
        except EngineError as error:
            raise LaunchError("engine_unavailable", str(error)) from error
        size = sum(container.get("SizeRw") or 0 for container in containers)
        readable = [Path(folder) for folder in folders if _is_readable(folder)]
        used = measure_used_bytes(readable, lambda: self._is_gone(handle["name"])) if readable else None
        return size + (used or 0)

    def written_bytes(self, handle: Handle) -> int:
        return _job_processes(handle).written_bytes()

    def run_in_job(self, handle: Handle, request: ExecRequest) -> ContainerStream:
        return run_in_container(self._engine, handle, request)

    def connect_to_job(self, handle: Handle, port: int, session_id: str) -> ContainerStream:
        return connect_to_container(self._engine, handle, port, session_id)

    def data_folder(self) -> Path | None:
        try:
            folder = Path(self._polling_engine.cached_info().get("DockerRootDir") or "")
        except EngineError:
            return None
        return folder if folder.is_absolute() and folder.is_dir() else None

    def destroy(self, handle: Handle) -> None:
        name = container_name(handle["name"])
        try:
            state = self._engine.find(name)
            if state is not None:
                self._engine.remove(name, force=True)
        except EngineUnavailable as error:
            raise LaunchError("engine_unavailable", str(error)) from error
        except EngineRefused as error:
            raise LaunchError("launch_failed", f"the container could not be removed: {error.detail}") from error
        if state is not None and state.status == "created":
            _job_processes(handle).kill(spare_leader=False)  # an engine killed at that moment forgets what it started
        self._sampler.forget(name)
        with self._lock:
            self._inspections.pop(handle["name"], None)

    def owned(self) -> list[Handle]:
        """See `Backend.owned`. Raises `LaunchError`: the engine does not answer."""
        filters = {"label": [f"{LABEL_HOME}={self._root}"]}
        try:
            containers = self._engine.call(lambda api: api.containers(all=True, filters=filters))
        except EngineError as error:
            raise LaunchError("engine_unavailable", str(error)) from error
        return [self._handle(container) for container in containers]

    def _handle(self, listed: dict[str, Any]) -> Handle:
        job_id, attempt = listed["Labels"][LABEL_JOB], int(listed["Labels"][LABEL_ATTEMPT])
        return scratch_handle(self._root / "attempts", job_id, attempt)

    def _inspect(self, name: str, seconds: float) -> _Inspection | None:
        """Inspect a container, at most once every few seconds; None: its state is unknown now."""
        now = time.monotonic()
        with self._lock:
            inspection = self._inspections.get(name)
        if inspection is not None and now - inspection.at < seconds:
            return inspection
        if now < self._unavailable_until:
            return None
        try:
            inspection = _Inspection(now, self._polling_engine.find(container_name(name)))
        except EngineError as error:
            logger.info("engine_not_answering", extra={"error": str(error)})
            self._unavailable_until = now + max(_BACKOFF_SECONDS, _BACKOFF_FACTOR * (time.monotonic() - now))
            return None
        with self._lock:
            self._inspections[name] = inspection
        return inspection

    def _has_ended(self, handle: Handle, state: ContainerState, code: int | None) -> bool:
        """Return whether nothing of the job runs any more."""
        if state.status != "created":
            return state.ended
        # Between start and running; or for ever, if the engine was killed at that moment and forgot the start.
        if time.time() - handle["launched_at"] < _START_SECONDS and code is None:
            return False
        return not any(_job_processes(handle).all())

    def _is_gone(self, name: str) -> bool:
        """Return whether a container is known to have ended."""
        inspection = self._inspect(name, _INSPECT_SECONDS)
        return inspection is not None and (inspection.state is None or inspection.state.ended)

    def _terminated_exit(self, handle: Handle) -> Exit | None:
        """Return how a job ended that got a SIGTERM not sent by this worker; None while the engine does not answer.

        Without `live-restore` an engine that stops or restarts sends its containers SIGTERM. The present setting is no
        evidence: the same restart may have changed it.
        """
        ended = (Path(handle["control"]) / "exit").stat().st_mtime
        try:
            # On a new connection: an engine that stops accepts none, but still answers on those that it has.
            restarted = self._engine.with_timeout(_INSPECT_TIMEOUT_SECONDS).ended_by_restart(
                container_name(handle["name"]), ended
            )
        except EngineError as error:
            logger.info("engine_not_answering", extra={"error": str(error)})
            return None
        return Exit(TERMINATED, "engine_restarted" if restarted else None)


def _signal_processes(handle: Handle, *, grace: bool) -> None:
    """Signal the job through the kernel when the engine cannot."""
    processes = _job_processes(handle)
    if grace:
        processes.terminate(
            spare_leader=False, choose=lambda processes: (dict.fromkeys(processes[:1], signal.SIGTERM), set())
        )  # the first passes it on
    else:
        processes.kill(spare_leader=False)


def _job_processes(handle: Handle) -> JobProcesses:
    # The wrapper's pid is from the container's own namespace, and means nothing here.
    return JobProcesses(handle["job_id"], handle["attempt"], None)


def volume_folders(engine: Engine, listed: Iterable[dict[str, Any]]) -> list[str]:
    """Return the host folders of the volumes that images declare (VOLUME), which the engine does not count.

    `listed`: containers as the engine lists them, which names their volumes without the folders.
    """
    folders = set()
    for container in listed:
        if any(mount["Type"] == _VOLUME for mount in container.get("Mounts") or ()):
            inspected = engine.call(partial(APIClient.inspect_container, container=container["Id"]))
            folders |= {mount["Source"] for mount in inspected["Mounts"] if mount["Type"] == _VOLUME}
    return sorted(folders)


def _is_readable(folder: str) -> bool:
    readable = os.access(folder, os.R_OK | os.X_OK)
    if not readable:
        _warn_unreadable(folder)
    return readable


@lru_cache  # once for each folder
def _warn_unreadable(folder: str) -> None:
    logger.warning("volume_not_measured: this worker cannot read the engine's folder", extra={"folder": folder})
