"""Starts an attempt: image, network, container; confirm; start. Waits a while for an engine that restarts."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from core.failpoints import failpoint
from core.settings import Settings
from worker.backends.base import BackendError, LaunchSpec, Progress, read_control
from worker.backends.docker.config import Options, container_config, container_name
from worker.backends.docker.engine import NOT_FOUND, ContainerState, Engine, EngineAway, EngineRefused
from worker.backends.docker.images import Images
from worker.backends.docker.network import Network

logger = logging.getLogger(__name__)

_AWAY_PAUSE_SECONDS = 1.0
_START_PAUSES = (1.0, 2.0, 4.0)
_NO_SPACE = "no space left on device"
_MIB = 1024**2
_MOST_OF_MEMORY = 0.9
"""Of the host's memory, for a job that names no limit: the host itself must live."""


class _MadeAgain(Exception):
    """The container could not be started, and is made anew."""

    passing = True

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class Launcher:
    """Starts attempts on one engine."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings.docker
        self._home = str(settings.root)
        self._images = Images(engine, settings.docker)
        self._network = Network(engine, settings)
        self._with_shell: set[str] = set()

    def launch(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> str:
        """Start the attempt once; the container's id.

        Raises:
            BackendError: It cannot be started.
        """
        give_up = time.monotonic() + self._settings.patience_seconds
        pauses = iter(_START_PAUSES)
        while True:
            try:
                return self._launch(spec, confirm, progress)
            except EngineAway as error:
                if time.monotonic() >= give_up:
                    raise BackendError("engine_away", str(error)) from error
                progress("provisioning", "waiting for the container engine to answer")
                time.sleep(_AWAY_PAUSE_SECONDS)
            except (EngineRefused, _MadeAgain) as error:
                pause = next(pauses, None) if error.passing else None
                if pause is None:
                    full = _NO_SPACE in error.detail
                    raise BackendError("disk_full" if full else "launch_failed", error.detail) from error
                logger.warning("launched_again", extra={"why": error.detail})
                progress("provisioning", "the container is made anew")
                time.sleep(pause)

    def _launch(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> str:
        state = self._engine.find(container_name(spec.name))
        if state is None:
            state = self._create(spec, progress)
        failpoint("created")
        began = read_control(spec.control, "started") is not None
        try:
            if not began:
                self._require_shell(state, spec)
            confirm()
        except BackendError:
            # Only what is given up for good: who has lost the lease leaves what is there to who holds it now, and who
            # may be starting it at this moment.
            self._discard(state)
            raise
        failpoint("confirmed")
        if not began and state.status == "created":
            self._start(state, spec)
        return state.id

    def _create(self, spec: LaunchSpec, progress: Progress) -> ContainerState:
        memory = self._look_over(spec)
        image = spec.container or self._settings.default_image
        self._images.have(image, progress)
        user = self._settings.user or f"{os.getuid()}:{os.getgid()}"
        _hand_over(spec, user)
        options = Options(
            image=image,
            home=self._home,
            user=user,
            network=self._network.have(),
            pids=self._settings.pids,
            shm_bytes=self._settings.shm_mb * _MIB,
            memory_bytes=memory,
            capabilities=tuple(self._settings.capabilities),
        )
        made = self._engine.create(container_name(spec.name), container_config(spec, options))
        state = self._engine.find(made)
        if state is None:
            raise _MadeAgain("the container was removed while it was made")
        return state

    def _look_over(self, spec: LaunchSpec) -> int:
        """What the engine can give: a limit of memory for jobs that name none; cards, if there are to be any."""
        info = self._engine.call(lambda api: api.info())
        if spec.cards and "nvidia" not in (info.get("Runtimes") or {}):
            runtimes = ", ".join(sorted(info.get("Runtimes") or {})) or "none"
            raise BackendError("no_gpu_runtime", f"its runtimes are {runtimes}")
        return int(info["MemTotal"] * _MOST_OF_MEMORY)

    def _require_shell(self, state: ContainerState, spec: LaunchSpec) -> None:
        """With an init as first process a missing shell is no error of the start, but a job that ends at once."""
        if state.image not in self._with_shell:
            if not self._engine.has_file(state.id, "/bin/sh"):
                if not self._engine.has_file(state.id, "/"):
                    raise _MadeAgain("the container was gone before it was started")
                raise BackendError("no_shell", spec.container or self._settings.default_image)
            self._with_shell.add(state.image)

    def _start(self, state: ContainerState, spec: LaunchSpec) -> None:
        try:
            self._engine.call(lambda api: api.start(state.id))
        except EngineRefused as error:
            if read_control(spec.control, "started") is not None:
                return  # it runs, or has ended already, whatever the engine says
            now = self._engine.find(state.id)
            if now is None or error.status == NOT_FOUND:
                raise _MadeAgain(f"the container was gone before it was started: {error.detail}") from error
            if now.status != "created":
                return  # somebody else started it
            # Killed while it started a container, an engine says `created` of it for ever and refuses every start.
            self._engine.remove(state.id, force=True)
            if error.passing:
                raise _MadeAgain(error.detail) from error
            raise

    def _discard(self, state: ContainerState) -> None:
        """Remove what was made and not started; what runs stays: without force the engine refuses."""
        if state.status != "created":
            return
        try:
            self._engine.remove(state.id, force=False)
        except (EngineAway, EngineRefused):
            logger.info("not_discarded", exc_info=True)  # the sweep finds it


def _hand_over(spec: LaunchSpec, user: str) -> None:
    """Give the attempt's folders to the user that the job runs as, where that is not ourselves."""
    owner, _, group = user.partition(":")
    if int(owner) == os.getuid():
        return
    for root in (spec.workspace, spec.artifacts, spec.control):
        for folder, folders, files in os.walk(root):
            for path in (Path(folder), *(Path(folder, name) for name in (*folders, *files))):
                os.chown(path, int(owner), int(group), follow_symlinks=False)
