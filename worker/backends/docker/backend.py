"""The Docker backend: runs each attempt in a container of its own.

The container is named after job and attempt, created before the lease is checked again, and started by its id. Output
and exit code are in files that the wrapper writes, so neither a restart of the worker nor one of the engine (with
`live-restore`) loses any of it. While the engine is away nothing is concluded: an exit file proves the end, a missing
one proves nothing.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.catalogue.backends import BACKENDS
from core.settings import Settings
from core.system.failpoints import failpoint
from worker.backends.base import (
    STOPPING,
    Backend,
    Exit,
    Handle,
    LaunchError,
    LaunchSpec,
    Progress,
    Unused,
    handle_of,
    note_control,
    read_control,
    read_exit_code,
)
from worker.backends.docker.container.config import LABEL_ATTEMPT, LABEL_HOME, LABEL_JOB, container_name
from worker.backends.docker.container.exit_status import verdict
from worker.backends.docker.container.launcher import Launcher
from worker.backends.docker.engine.client import (
    OLDEST_API,
    ContainerState,
    Engine,
    EngineAway,
    EngineError,
    EngineRefused,
)
from worker.backends.docker.engine.stats import Sampler
from worker.backends.docker.gpu.monitor import Gpus
from worker.backends.docker.images.cache import Shelf
from worker.backends.processes import Members, boot_id

logger = logging.getLogger(__name__)

KILLED, TERMINATED = 137, 143
_LOOK_SECONDS = 1.0
_ENDING_LOOK_SECONDS = 0.1
_AWAY_SECONDS = 2.0
_LOOK_TIMEOUT_SECONDS = 5.0
"""Polling delays the job's output: an engine that hangs must not do so for long."""
_AWAY_SHARE = 5
_STARTS_WITHIN_SECONDS = 15.0

# Every process except the init, the wrapper, which forwards a signal and records the exit code, and this shell.
_ASK_ALL = """
for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}
    case $pid in 1 | $$ | "$1") ;; *) kill -TERM "$pid" 2>/dev/null ;; esac
done
"""


@dataclass(frozen=True, slots=True)
class _Look:
    """Result of inspecting a container; state None: there is none."""

    at: float
    state: ContainerState | None


class DockerBackend(Backend):
    """See the module. One instance serves all attempt threads of a worker."""

    capabilities = BACKENDS["docker"].capabilities

    def __init__(self, settings: Settings) -> None:
        self._root = settings.root
        self._engine = Engine(settings.docker)
        self._watched = self._engine.hasty(_LOOK_TIMEOUT_SECONDS)
        self._gpus = Gpus(settings.docker)
        self._launcher = Launcher(self._engine, settings, self._gpus)
        self._shelf = Shelf(self._engine, self._launcher.images, settings)
        self._sampler = Sampler(self._engine, self._gpus)
        self._lock = threading.Lock()
        self._looks: dict[str, _Look] = {}
        self._away_until = 0.0
        self._warned = False

    def unready(self) -> str | None:
        """See `Backend.unready`."""
        try:
            info, version = self._watched.info(), self._watched.call(lambda api: api.api_version)
        except EngineAway as error:
            return f"The Docker engine does not answer ({error}). Start it, or mend GRADIENT_DOCKER__URL."
        except EngineRefused as error:
            return f"The Docker engine refuses to tell about itself: {error.detail}"
        if tuple(int(part) for part in version.split(".")) < OLDEST_API:
            return f"The Docker engine speaks API {version}; 1.41 (Docker 20.10) or later is needed."
        self._warn(info)
        return None

    def gpus(self) -> tuple[str, ...] | None:
        """See `Backend.gpus`."""
        return self._gpus.indices()

    def taken_gpus(self, gpus: Collection[str]) -> dict[str, str]:
        """See `Backend.taken_gpus`."""
        return self._gpus.taken(gpus)

    def launch(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> Handle:
        """See `Backend.launch`."""
        started = self._launcher.launch(spec, confirm, progress)
        failpoint("launched")
        with self._lock:
            self._looks.pop(spec.name, None)
        return {
            **handle_of(spec.job_id, spec.attempt, spec.control),
            "container": started.container,
            "image": started.image,
            "boot_id": boot_id(),
            "launched_at": time.time(),
            "memory_bytes": started.memory_bytes,
            **({"gpus": self._gpus.facts(spec.gpus)} if spec.gpus else {}),
        }

    def build(self, spec: LaunchSpec, progress: Progress) -> str:
        """See `ImageKeeper.build`."""
        return self._launcher.build(spec, progress).digest

    def images(self) -> tuple[str, ...] | None:
        """See `ImageKeeper.images`."""
        try:
            return self._shelf.references()
        except EngineError as error:
            logger.warning("images_not_listed", extra={"error": str(error)})
            return None

    def prune_images(self, *, everything: bool, dry_run: bool = False) -> list[Unused]:
        """See `ImageKeeper.prune_images`."""
        try:
            return self._shelf.prune(everything=everything, dry_run=dry_run)
        except EngineError as error:
            raise LaunchError("engine_away", str(error)) from error

    def poll(self, handle: Handle) -> Exit | None:
        """See `Backend.poll`."""
        control = Path(handle["control"])
        code = read_exit_code(control)
        stopping = read_control(control, STOPPING) is not None
        if code not in {None, KILLED, TERMINATED} and not stopping:
            return Exit(code)
        # Otherwise the engine must be asked: did memory run out, has the job that was asked to end finished?
        look = self._look(handle["name"], _LOOK_SECONDS if code is None else _ENDING_LOOK_SECONDS)
        if look is None or (look.state is not None and not self._over(handle, look.state, code)):
            return None
        if code == TERMINATED and not stopping:
            return self._terminated(handle)
        return verdict(handle, look.state, read_exit_code(control))

    def stop(self, handle: Handle, *, grace: bool) -> None:
        """See `Backend.stop`."""
        name = container_name(handle["name"])
        if grace:
            note_control(Path(handle["control"]), STOPPING, "asked to end")
        try:
            if grace:
                self._ask_all(name, read_control(Path(handle["control"]), "started") or "1")
            else:
                self._engine.call(lambda api: api.kill(name))
        except EngineRefused as error:  # it has ended, or cannot start one more process, or the engine is in trouble
            logger.info("signal_refused", extra={"error": error.detail})
            reached = error.passing and _ask_kernel(handle, grace=grace)
            if grace and not reached:
                self._signal_first(name)
        except EngineAway:
            _ask_kernel(handle, grace=grace)
        with self._lock:
            self._looks.pop(handle["name"], None)

    def sample(self, handle: Handle) -> dict[str, float]:
        """See `Backend.sample`."""
        gpus = tuple(one["index"] for one in handle.get("gpus", ()))
        return self._sampler.sample(container_name(handle["name"]), gpus)

    def layer_bytes(self, handle: Handle) -> int:
        """See `Backend.layer_bytes`: the engine scans the container's own files for it."""
        filters = {"name": [f"^/{container_name(handle['name'])}$"]}
        try:
            found = self._engine.call(lambda api: api.containers(all=True, size=True, filters=filters))
        except EngineError as error:
            raise LaunchError("engine_away", str(error)) from error
        return sum(one.get("SizeRw") or 0 for one in found)

    def data_folder(self) -> Path | None:
        """See `ImageKeeper.data_folder`."""
        try:
            folder = Path(self._watched.lasting_info().get("DockerRootDir") or "")
        except EngineError:
            return None
        return folder if folder.is_absolute() and folder.is_dir() else None

    def destroy(self, handle: Handle) -> None:
        """See `Backend.destroy`."""
        name = container_name(handle["name"])
        try:
            state = self._engine.find(name)
            if state is not None:
                self._engine.remove(name, force=True)
        except EngineAway as error:
            raise LaunchError("engine_away", str(error)) from error
        except EngineRefused as error:
            raise LaunchError("launch_failed", f"the container could not be removed: {error.detail}") from error
        if state is not None and state.status == "created":
            _members(handle).kill(spare_leader=False)  # an engine killed at that moment forgets what it started
        self._sampler.forget(name)
        with self._lock:
            self._looks.pop(handle["name"], None)

    def list_owned(self) -> list[Handle]:
        """See `Backend.list_owned`.

        Raises:
            LaunchError: The engine does not answer.
        """
        filters = {"label": [f"{LABEL_HOME}={self._root}"]}
        try:
            found = self._engine.call(lambda api: api.containers(all=True, filters=filters))
        except EngineError as error:
            raise LaunchError("engine_away", str(error)) from error
        return [self._handle(container) for container in found]

    def _handle(self, listed: dict[str, Any]) -> Handle:
        job_id, attempt = listed["Labels"][LABEL_JOB], int(listed["Labels"][LABEL_ATTEMPT])
        return handle_of(job_id, attempt, self._root / "attempts" / f"{job_id}-{attempt}" / "control")

    def _look(self, name: str, seconds: float) -> _Look | None:
        """Inspect a container, at most once in so many seconds; None: nothing is known now."""
        now = time.monotonic()
        with self._lock:
            look = self._looks.get(name)
        if look is not None and now - look.at < seconds:
            return look
        if now < self._away_until:
            return None
        try:
            look = _Look(now, self._watched.find(container_name(name)))
        except EngineError as error:
            logger.info("engine_not_answering", extra={"error": str(error)})
            self._away_until = now + max(_AWAY_SECONDS, _AWAY_SHARE * (time.monotonic() - now))
            return None
        with self._lock:
            self._looks[name] = look
        return look

    def _over(self, handle: Handle, state: ContainerState, code: int | None) -> bool:
        """Return whether nothing of the job runs any more."""
        if state.status != "created":
            return state.ended
        # Between start and running; or for ever, if the engine was killed at that moment and forgot the start.
        if time.time() - handle["launched_at"] < _STARTS_WITHIN_SECONDS and code is None:
            return False
        return not any(_members(handle).all())

    def _terminated(self, handle: Handle) -> Exit | None:
        """Return how a job ended that got a SIGTERM not sent by this worker; None while the engine does not answer.

        Without `live-restore` an engine that stops or restarts sends its containers SIGTERM. The present setting is no
        evidence: the same restart may have changed it.
        """
        ended = (Path(handle["control"]) / "exit").stat().st_mtime
        try:
            # On a new connection: an engine that stops accepts none, but still answers on those that it has.
            restarted = self._engine.hasty(_LOOK_TIMEOUT_SECONDS).ended_by_restart(
                container_name(handle["name"]), ended
            )
        except EngineError as error:
            logger.info("engine_not_answering", extra={"error": str(error)})
            return None
        return Exit(TERMINATED, "engine_restarted" if restarted else None)

    def _ask_all(self, name: str, wrapper: str) -> None:
        command = ["/bin/sh", "-c", _ASK_ALL, "sh", wrapper if wrapper.isdecimal() else "1"]
        made = self._engine.call(lambda api: api.exec_create(name, command))
        self._engine.call(lambda api: api.exec_start(made["Id"]))
        if self._engine.call(lambda api: api.exec_inspect(made["Id"]))["ExitCode"] not in {0, 1}:
            self._signal_first(name)

    def _signal_first(self, name: str) -> None:
        """Send SIGTERM to the container's first process, which forwards it to the wrapper, and that to the command."""
        try:
            self._engine.call(lambda api: api.kill(name, "SIGTERM"))
        except EngineError as error:
            logger.info("signal_refused", extra={"error": str(error)})

    def _warn(self, info: dict[str, Any]) -> None:
        if not self._warned and not info.get("LiveRestoreEnabled"):
            logger.warning(
                "live_restore_off: a restart of the Docker engine ends every job on this host. Put "
                '{"live-restore": true} into /etc/docker/daemon.json and reload it (systemctl reload docker)'
            )
        self._warned = True


def _ask_kernel(handle: Handle, *, grace: bool) -> bool:
    """Signal the job through the kernel when the engine cannot; return whether any process was reached."""
    return _members(handle).signal(signal.SIGTERM if grace else signal.SIGKILL, spare_leader=False) > 0


def _members(handle: Handle) -> Members:
    # The wrapper's pid is from the container's own namespace, and means nothing here.
    return Members(handle["job_id"], handle["attempt"], None)
