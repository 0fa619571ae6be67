"""Starts an attempt: image, network, container; confirm; start. Waits a while for an engine that restarts."""

import logging
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from core.catalogue.container_privileges import ContainerPolicy
from core.formatting import MIB
from core.settings import Settings
from core.system.failpoints import failpoint
from core.system.filesystem import write_atomically
from worker.backends.base import (
    DEFAULT_SHM_BYTES,
    Handle,
    LaunchError,
    LaunchSpec,
    Progress,
    mark_launched,
    write_command,
)
from worker.backends.docker.container import image_settings
from worker.backends.docker.container.config import (
    ContainerOptions,
    container_config,
    container_name,
    first_container,
    place_scripts,
)
from worker.backends.docker.container.granted_privileges import PolicyByMachineType
from worker.backends.docker.container.users import ContainerUser, chown_folders, passwd_with, resolve_user
from worker.backends.docker.engine.client import (
    NOT_FOUND,
    SERVER_ERROR,
    ContainerState,
    Engine,
    EngineError,
    EngineRefused,
    EngineUnavailable,
)
from worker.backends.docker.gpu import device_requests
from worker.backends.docker.gpu.host_gpus import GpuMonitor
from worker.backends.docker.images.build import ImageBuilder
from worker.backends.docker.images.pull import Image, ImageStore
from worker.backends.docker.network import HOST, NONE, Network
from worker.backends.port_check import check_ports_free
from worker.backends.registry_logins import find_push_auth, pull_auth
from worker.runner.control_files import may_have_launched, read_control
from worker.runner.stop_signal import signal_number

logger = logging.getLogger(__name__)

T = TypeVar("T")

_UNAVAILABLE_PAUSE_SECONDS = 1.0
ENGINE_RETRY_SECONDS = 60.0  # an engine restarts within some seconds
_START_PAUSES = (1.0, 2.0, 4.0)
_LIST_OF_USERS = "/etc/passwd"
_NO_SPACE = "no space left on device"
_NO_QUOTA_SUPPORT = ("storage-opt", "enabled quotas")  # of overlay2 and vfs
_MAX_MEMORY_SHARE = 0.9  # share of the host's memory for all jobs without a limit together


class Launcher:
    def __init__(self, engine: Engine, settings: Settings, gpus: GpuMonitor) -> None:
        self._engine = engine
        self._gpus = gpus
        self._policies = PolicyByMachineType(settings)
        self._settings = settings.docker
        self._worker = settings.worker
        self._layer_mb = settings.disk.job_mb
        self._home = str(settings.root)
        self.images = ImageStore(engine, settings)
        self._builder = ImageBuilder(engine, self.images, settings)
        self._bind = settings.ports.bind
        self.network = Network(engine, settings)
        self._with_shell: set[str] = set()

    def launch(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> Handle:
        """Start the attempt once; return what its handle has of its container.

        Raises `LaunchError`: the attempt cannot be started.
        """
        return self._with_retry(lambda: self._launch(spec, confirm, progress), progress)

    def build(self, spec: LaunchSpec, progress: Progress) -> Image:
        """Build the attempt's image, push it if it has a target, and start nothing."""
        return self._with_retry(lambda: self._prepare_image(spec, progress, self._engine_info(spec)), progress)

    def _with_retry(self, action: Callable[[], T], progress: Progress) -> T:
        """Run an action, and retry it while the engine restarts."""
        give_up = time.monotonic() + ENGINE_RETRY_SECONDS
        pauses = iter(_START_PAUSES)
        while True:
            try:
                return action()
            except EngineUnavailable as error:
                if time.monotonic() >= give_up:
                    raise LaunchError("engine_unavailable", str(error)) from error
                progress("provisioning", "waiting for the container engine to answer")
                time.sleep(_UNAVAILABLE_PAUSE_SECONDS)
            except EngineRefused as error:
                may_pass = error.transient and device_requests.NO_DRIVER_MESSAGE not in error.detail
                pause = next(pauses, None) if may_pass else None
                if pause is None:
                    raise LaunchError(_failure_reason(error.detail), error.detail) from error
                logger.warning("launched_again", extra={"why": error.detail})
                progress("provisioning", "the container is created again")
                time.sleep(pause)

    def _launch(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> Handle:
        state, image = self._engine.find(container_name(spec.name)), None
        if state is None:
            state, image = self._create(spec, confirm, progress)
        failpoint("created")
        began = read_control(spec.control, "started") is not None
        try:
            if not began:
                self._check_shell(state, spec)
                self._check_working_dir(state, spec)
                self._require_free_gpus(spec)
                self._name_user(state, spec)
            # Another worker may have created it meanwhile, from an older or newer image of that name.
            if image is None or image.id != state.image:
                image = self.images.of_container(state.image, spec.container)
            user = resolve_user(spec, self._policies.for_type(spec.machine_type), self._settings)
            # The wrapper runs the image's ENTRYPOINT before the command.
            entrypoint = image_settings.find_entrypoint(
                image.config, lambda path: self._engine.read_file(state.id, path, most_bytes=MIB)
            )
            if entrypoint and not spec.job_spec.ignore_entrypoint and not may_have_launched(spec.control):
                line = f"{shlex.join(entrypoint)}\n".encode()
                write_atomically(spec.control / image_settings.ENTRYPOINT_FILE, line, durable=False, mode=0o644)
            notes = image_settings.describe_rest(image.config, spec, str(user), entrypoint)
            confirm()
            mark_launched(spec)
        except LaunchError:
            # Only on permanent failure. After losing the lease, leave the container to the new holder, who may be
            # starting it at this moment.
            self._discard(state)
            raise
        failpoint("confirmed")
        if not began and state.status == "created":
            self._start(state, spec)
        memory = spec.memory_bytes or self._default_memory(self._engine.cached_info())
        return {"container": state.id, "image": image.digest, "memory_bytes": memory, "notes": notes}

    def _create(
        self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress
    ) -> tuple[ContainerState, Image]:
        policy = self._policies.for_type(spec.machine_type)
        user = resolve_user(spec, policy, self._settings)
        info = self._engine_info(spec)
        image = self._prepare_image(spec, progress, info)
        self._check_ports(spec)
        if not may_have_launched(spec.control):
            _prepare_folders(spec, user)
        if spec.first_node is not None:
            confirm()  # until it runs
        options = ContainerOptions(
            image=image.id,  # not its name, which may refer to another image by now
            home=self._home,
            user=str(user),
            groups=user.groups,
            network=self._network_of(spec, policy),
            pids=policy.pids or self._settings.pids,
            shm_bytes=DEFAULT_SHM_BYTES,
            memory_bytes=self._default_memory(info),
            capabilities=policy.capabilities,
            devices=policy.devices,
            folders=tuple(policy.mounts.items()),
            cdi=device_requests.cdi_names(spec.gpus, info),
            layer_mb=self._layer_mb,
            bind=self._bind,
            image_variables=image.variables,
            stop_signal=signal_number(spec.job_spec.stop_signal or image.config.get("StopSignal")),
        )
        try:
            return self._create_container(spec, options), image
        except EngineRefused as error:
            self._require_first_node(spec)
            if error.status == NOT_FOUND:
                raise EngineRefused(SERVER_ERROR, f"its image was removed just then: {error.detail}") from error
            raise

    def _network_of(self, spec: LaunchSpec, policy: ContainerPolicy) -> str:
        if spec.host_network:
            if policy.network not in {None, HOST}:
                raise LaunchError(
                    "option_refused",
                    "its nodes are on several machines and would have to share their networks, but containers of "
                    f"{spec.machine_type} have the network {policy.network!r} here. Request only as many nodes as "
                    "one machine has room for.",
                )
            return HOST
        first = first_container(spec)
        return f"container:{first}" if first else spec.job_spec.network or self.network.ensure(policy.network)

    def _check_ports(self, spec: LaunchSpec) -> None:
        if spec.ports and NONE in {self._settings.network, spec.job_spec.network}:
            raise LaunchError(
                "launch_failed",
                "the job has no network (--network none, or GRADIENT_DOCKER__NETWORK=none), so its ports cannot be "
                "reached",
            )
        check_ports_free(self._bind, spec.ports)

    def _create_container(self, spec: LaunchSpec, options: ContainerOptions) -> ContainerState:
        """Create the container, with a quota for its own files if the engine's disk supports one."""
        name = container_name(spec.name)
        try:
            return self._engine.create(name, container_config(spec, options))
        except EngineRefused as error:
            if not options.layer_mb or not any(text in error.detail for text in _NO_QUOTA_SUPPORT):
                raise
            logger.info("layers_without_quota", extra={"why": error.detail})
            self._layer_mb = 0  # they are measured periodically instead
            return self._engine.create(name, container_config(spec, replace(options, layer_mb=0)))

    def _engine_info(self, spec: LaunchSpec) -> dict[str, Any]:
        """Return the engine's description of itself, after checking that it can hand over the GPUs, if any."""
        if not spec.gpus:
            return self._engine.cached_info()
        info = self._engine.info()  # its runtimes may have changed just now
        device_requests.check_supported(spec.gpus, info)
        return info

    def _prepare_image(self, spec: LaunchSpec, progress: Progress, info: dict[str, Any]) -> Image:
        if spec.build is None:
            reference = spec.container or self._settings.default_image
            with pull_auth(spec.login, reference) as auth:
                return self.images.ensure(reference, progress, policy=spec.job_spec.image_pull_policy, auth=auth)
        return self._builder.build(
            spec,
            progress,
            network=self.network.ensure(),
            memory_bytes=self._default_memory(info),
            push_auth=find_push_auth(spec.login, spec.build.target),
        )

    def _default_memory(self, info: dict[str, Any]) -> int:
        """Return the memory limit in bytes of jobs that name none: the host must survive with all slots taken."""
        return int(info["MemTotal"] * _MAX_MEMORY_SHARE) // self._worker.max_slots

    def _require_free_gpus(self, spec: LaunchSpec) -> None:
        """Check the GPUs again: the claim did too, but preparing the image takes time."""
        taken = self._gpus.taken(spec.gpus) if spec.gpus else {}
        if taken:
            taken_gpus = "; ".join(f"GPU {gpu}: {why}" for gpu, why in taken.items())
            raise LaunchError("gpu_in_use", taken_gpus)
        self._gpus.watch(spec.gpus)

    def _check_working_dir(self, state: ContainerState, spec: LaunchSpec) -> None:
        """Check the working folder: the engine would create a missing one as root, even in folders that jobs share."""
        if spec.working_dir is not None and not self._engine.has_file(state.id, spec.working_dir):
            raise LaunchError("no_working_dir", spec.working_dir)

    def _check_shell(self, state: ContainerState, spec: LaunchSpec) -> None:
        """Check that the image has a shell.

        With an init as first process, a missing shell would not fail the start, but end the job at once.
        """
        if state.image not in self._with_shell:
            if not self._engine.has_file(state.id, "/bin/sh"):
                if not self._engine.has_file(state.id, "/"):
                    raise EngineRefused(SERVER_ERROR, "the container disappeared before it was started")
                built = f"built from {spec.build.dockerfile}" if spec.build else None
                raise LaunchError("no_shell", built or spec.container or self._settings.default_image)
            self._with_shell.add(state.image)

    def _name_user(self, state: ContainerState, spec: LaunchSpec) -> None:
        user = resolve_user(spec, self._policies.for_type(spec.machine_type), self._settings)
        if user.uid == 0 or state.status != "created":
            return
        try:
            accounts = self._engine.read_file(state.id, _LIST_OF_USERS)
            named = None if accounts is None else passwd_with(user, accounts)
            if named is not None:
                self._engine.write_file(state.id, _LIST_OF_USERS, named)
        except EngineRefused:  # it cannot be changed: the job runs without a name
            logger.info("user_not_named", exc_info=True)

    def _start(self, state: ContainerState, spec: LaunchSpec) -> None:
        try:
            self._engine.call(lambda api: api.start(state.id))
        except EngineRefused as error:
            if read_control(spec.control, "started") is not None:
                return  # it runs, or has ended already, whatever the engine reports
            self._require_first_node(spec)
            now = self._engine.find(state.id)
            if now is None or error.status == NOT_FOUND:
                raise EngineRefused(
                    SERVER_ERROR, f"the container disappeared before it was started: {error.detail}"
                ) from error
            if now.status != "created":
                return  # another worker started it
            # An engine killed while it started a container reports `created` for ever and refuses every start.
            self._engine.remove(state.id, force=True)
            raise

    def _require_first_node(self, spec: LaunchSpec) -> None:
        """Check that the container whose network could not be joined runs: its end is the reason, if it does not."""
        first = first_container(spec)
        state = self._engine.find(first) if first is not None else None
        if first is not None and (state is None or state.ended):
            raise LaunchError("node_failed", "Rank 0 ended before this node had started.")

    def _discard(self, state: ContainerState) -> None:
        """Remove a container that was created but not started; without force the engine keeps a running one."""
        if state.status != "created":
            return
        try:
            self._engine.remove(state.id, force=False)
        except EngineError:
            logger.info("not_discarded", exc_info=True)  # the sweep removes it


def _prepare_folders(spec: LaunchSpec, user: ContainerUser) -> None:
    write_command(spec)
    place_scripts(spec)
    chown_folders(spec, user)


def _failure_reason(detail: str) -> str:
    """Map the engine's error message to the reason of a failed start."""
    if device_requests.NO_DRIVER_MESSAGE in detail:
        return "no_gpu_runtime"
    return "disk_full" if _NO_SPACE in detail else "launch_failed"
