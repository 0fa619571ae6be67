"""The TPU backend: gets a device, runs the job with it, and releases the device.

Another backend runs the job's process: in a container or, where the TPU is simulated, as a plain process. This one adds
the device, its address in the job's environment, and periodic checks of the device. It can also run the job on the TPU
VM itself: see `vm`.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import cast

from core.catalogue.backends import BACKENDS
from core.catalogue.machine_types import Catalogue, MachineType
from core.errors import StoreUnavailable
from core.jobs.states import WAITING_PHASE
from core.settings import Settings
from worker.attempt.scratch import list_scratch_folders, read_missing, record_missing
from worker.backends import make_backend
from worker.backends.base import (
    CloudBackend,
    Exit,
    Handle,
    LaunchError,
    LaunchSpec,
    Progress,
    scratch_handle,
    write_command,
)
from worker.backends.job_exec import ExecBackend
from worker.backends.port_forwarder import PortForwarder
from worker.backends.tpu import times
from worker.backends.tpu.api import ApiError, TpuApi
from worker.backends.tpu.billing import DeletionMonitor
from worker.backends.tpu.cancellation import run_cancellably
from worker.backends.tpu.health import NodeHealthMonitor
from worker.backends.tpu.node_release import NodeDeleter
from worker.backends.tpu.node_state import NodeFailure
from worker.backends.tpu.orphans import IsOwned, OrphanSweep
from worker.backends.tpu.provisioning.node_request import build_request, wait_until_reachable
from worker.backends.tpu.provisioning.provision import Provisioner, ReservedTpu
from worker.backends.tpu.resource_inventory import POOL, ResourceEntry, ResourceInventory
from worker.backends.tpu.storage.job_storage import JobStorage, OutputCollector, make_bucket_opener
from worker.backends.tpu.storage.token_server import FIXED_TOKEN, TokenServer
from worker.backends.tpu.vm.client import SHUTDOWN, VmClient
from worker.backends.tpu.vm.follower import Follower, read_left
from worker.backends.tpu.vm.vm_sessions import connect_to_vm, run_on_vm
from worker.backends.tpu.worker_presence import WorkerPresence
from worker.runner.control_files import read_control, write_control_file
from worker.runner.streams import ExecRequest, JobStream, SocketStream

logger = logging.getLogger(__name__)

_START_SECONDS, _FOLLOW_SECONDS = 3600.0, 120.0
"""Seconds for which a worker stays connected to a node from the start of its job, and from each poll."""
_FAILURE_FILE = "device_lost"  # control file with the reason that the job was ended: its device was lost


class TpuBackend(CloudBackend):
    """See the module. One instance serves all attempt threads of a worker."""

    def __init__(self, settings: Settings, resource_inventory: ResourceInventory) -> None:
        self._settings = settings.tpu
        self.open_bucket = open_bucket = make_bucket_opener(settings)
        self.output_collector = OutputCollector(open_bucket, settings)
        self._vm_client = VmClient(open_bucket, settings) if open_bucket is not None else None
        self.catalogue = Catalogue.offered(settings)
        self._attempts = settings.root / "attempts"
        self._resource_inventory = resource_inventory
        # A job beside its device reaches it, and its tokens, by this host's network.
        process = settings.process.model_copy(update={"network": "off"})
        runs = settings.model_copy(update={"process": process})
        self._runner = make_backend("docker" if settings.tpu.runner == "docker" else "process", runs)
        self._runner.shared = lambda: self.shared()  # noqa: PLW0108 - which is set later
        self.tokens = TokenServer(open_bucket, settings, self._runner.host_address) if open_bucket is not None else None
        self.ports = PortForwarder(settings.ports.bind, connect_to_vm)
        self.presence = WorkerPresence()
        self._api = TpuApi(settings.tpu)
        deletions = DeletionMonitor(self._api, resource_inventory, settings.tpu.poll_seconds)
        self._deleter = NodeDeleter(self._api, resource_inventory, deletions)
        self._orphan_sweep = OrphanSweep(self._api, resource_inventory, settings.tpu, self._deleter)
        self._health_monitor = NodeHealthMonitor(self._api, resource_inventory, settings.tpu)
        self._lock = threading.Lock()
        self._ending: dict[str, tuple[float, NodeFailure]] = {}
        self._refused_since: dict[int, float] = {}
        can = self._runner.capabilities
        self.capabilities = replace(
            BACKENDS["tpu"].capabilities, containers=can.containers, mounts=can.mounts, own_network=can.own_network
        )

    def unavailable_reason(self) -> str | None:
        if not self._settings.zones and not self._settings.pool:
            return "No TPU can be requested: set GRADIENT_TPU__ZONES, or name nodes in GRADIENT_TPU__POOL."
        try:
            self._api.connect()
        except ApiError as error:
            return (
                f"Google's TPU API cannot be used ({error}). Give this worker credentials: a service account of its "
                "machine, or GOOGLE_APPLICATION_CREDENTIALS; run `gradient-server doctor --tpu` for details."
            )
        return None if self._only_on_vms() else self._runner.unavailable_reason()

    def launch(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> Handle:
        """See `Backend.launch`. Nothing is billed before the lease was checked."""
        if spec.job_spec.network is not None:
            raise LaunchError("option_refused", "a TPU is reached through the network")
        confirm()
        machine = self.catalogue.get(spec.machine_type)
        vm_client = self._vm_client_for(spec, machine)
        if vm_client is not None:
            self.ports.check(spec.name, spec.ports)
        request = build_request(spec, machine, self._settings, self._resource_inventory.installation())
        if vm_client is not None:
            request = replace(
                request, startup=partial(vm_client.startup, spec, in_slice=machine.hosts > 1), shutdown=SHUTDOWN
            )
        storage = JobStorage(self.open_bucket, spec, self._settings, progress, on_vm=vm_client is not None)

        report = partial(progress, "provisioning")

        def stage(zone: str) -> None:
            storage.prepare(zone)
            if vm_client is not None:
                vm_client.stage(spec, zone)

        def ready(zone: str) -> None:
            run_cancellably(partial(storage.clean_up_if_stopped, partial(stage, zone)), spec.check)

        spot_price = machine.spot_price_per_hour
        provisioner = Provisioner(self._api, self._resource_inventory, self._settings, ready, self._deleter, spot_price)
        device = provisioner.provision(spec, request, partial(progress, WAITING_PHASE), confirm)
        handle = _make_handle(spec, device, on_vm=vm_client is not None)
        try:
            if vm_client is not None:
                return handle | {"vm": self._start_on_vm(vm_client, spec, device, storage, report)}
            return self._start_beside(spec, device, storage, handle, confirm, progress)
        except LaunchError as error:
            self.presence.end(handle["name"])
            confirm()  # only the holder of the job may remove its device
            self._deleter.try_remove(device.entry, str(error))
            raise

    def _start_beside(
        self,
        spec: LaunchSpec,
        device: ReservedTpu,
        storage: JobStorage,
        handle: Handle,
        confirm: Callable[[], None],
        progress: Progress,
    ) -> Handle:
        """Start a job on this host, beside its device; return its handle."""
        wait_until_reachable(device.node, self._settings, partial(progress, "provisioning"), spec.check)
        self._stay_connected(handle, _START_SECONDS)
        # TensorFlow's own lookup of the address needs rights that the job lacks.
        env = {"TPU_NAME": device.node.id, "TPU_GRPC_URL": device.node.url} | storage.environment(device.entry.zone)
        isolated = self.catalogue.get(spec.machine_type).docker.network
        issued = None  # such a job keeps the token that it starts with
        if self.tokens is not None and not isolated:
            issued = self.tokens.issue(spec.name, spec.job_id, device.entry.zone)
        if issued is not None:
            env = {name: value for name, value in env.items() if name != FIXED_TOKEN} | issued
        return handle | {"runner": self._runner.launch(replace(spec, env=spec.env | env), confirm, progress)}

    def _start_on_vm(
        self,
        vm_client: VmClient,
        spec: LaunchSpec,
        device: ReservedTpu,
        storage: JobStorage,
        report: Callable[[str], None],
    ) -> Handle:
        zone, hosts = device.entry.zone, [address for address, _ in device.node.endpoints]
        ports = {f"GRADIENT_PORT_{port.internal}": str(port.internal) for port in spec.ports}
        if not (spec.control / "command").exists():
            write_command(spec)  # before the job can start: the files that it writes are newer
        vm_client.deliver(spec, zone, _VM_ENVIRONMENT | spec.env | ports | storage.folders(zone), hosts)
        failure = partial(self._health_monitor.failure, device.entry, hosts)
        vm: Handle = {"zone": zone, "hosts": hosts if len(hosts) > 1 else [], "address": hosts[0]}
        handle = spec.base_handle() | {"stop_grace": spec.job_spec.stop_grace} | vm
        vm["session_port"] = vm_client.wait_until_running(handle, report, failure, spec.check)
        write_control_file(spec.control, "started", "on its TPU VM")
        return vm | {"ports": [[port.external, port.internal] for port in spec.ports]}

    def ended(self, handle: Handle) -> Exit | None:
        """See `Backend.ended`. A job whose device is lost is ended: it would wait for an answer for ever."""
        vm_client = self._vm_client if "vm" in handle else None
        ended = vm_client.ended(_vm_handle(handle)) if vm_client is not None else self._runner.ended(handle["runner"])
        entry = ResourceEntry(**handle["device"])
        ended_by_us = self._read_failure(handle)
        failed = ended is not None and (ended.code != 0 or ended_by_us is not None)
        failure = ended_by_us or self._health_monitor.failure(entry, handle["allocation"]["addresses"], last=failed)
        if failure is None and vm_client is not None and ended is None:
            failure = vm_client.follower(_vm_handle(handle)).silent()
        if ended is None:
            if vm_client is not None:
                self.ports.serve(_vm_handle(handle))
            else:
                self._stay_connected(handle, _FOLLOW_SECONDS)
            if self.tokens is not None:
                self.tokens.renew(handle)
            self.output_collector.mirror(handle["job_id"], entry.zone, self._artifacts(handle))
        if failure is None or (ended is not None and ended.reason == failure.reason):
            return ended
        if ended is None:
            self._end_job(handle, failure)
            return None
        return Exit(ended.code, failure.reason, failure.detail) if failed else ended

    def signal(self, handle: Handle, *, grace: bool) -> None:
        if self._vm_client is not None and "vm" in handle:
            self._vm_client.signal(_vm_handle(handle), grace=grace)
        elif "runner" in handle:  # else there is a device only
            self._runner.signal(handle["runner"], grace=grace)

    def warn(self, handle: Handle, number: int) -> None:
        if self._vm_client is not None and "vm" in handle:
            self._vm_client.warn(handle)
        elif "runner" in handle:
            self._runner.warn(handle["runner"], number)

    def sample(self, handle: Handle) -> dict[str, float]:
        """See `Backend.sample`: the host's part of a job beside its TPU, and the chips of one on its TPU VM."""
        if (follower := self._follower(handle)) is not None:
            return follower.usage()
        return self._runner.sample(handle["runner"]) if "runner" in handle else {}

    def node_exits(self, handle: Handle) -> dict[str, int | None]:
        follower = self._follower(handle)
        return follower.node_exits() if follower is not None else {}

    def _follower(self, handle: Handle) -> Follower | None:
        """Return what is known of a job's VMs; None: it runs beside its device, or there is no device yet."""
        return self._vm_client.follower(_vm_handle(handle)) if self._vm_client is not None and "vm" in handle else None

    def run_in_job(self, handle: Handle, request: ExecRequest) -> JobStream:
        if "vm" in handle:
            return run_on_vm(_vm_handle(handle), request)
        return self._beside().run_in_job(handle["runner"], request)

    def connect_to_job(self, handle: Handle, port: int, session_id: str) -> JobStream:
        if "vm" in handle:
            return SocketStream(connect_to_vm(_vm_handle(handle), port))
        return self._beside().connect_to_job(handle["runner"], port, session_id)

    def _beside(self) -> ExecBackend:
        return cast("ExecBackend", self._runner)  # the process backend or Docker

    def layer_bytes(self, handle: Handle) -> int:
        return self._runner.layer_bytes(handle["runner"]) if "runner" in handle else 0

    def release(self, handle: Handle) -> None:
        with suppress(StoreUnavailable):
            for entry in self._resource_inventory.list_of_attempt(handle["job_id"], handle["attempt"]):
                if not entry.over and entry.kind != POOL:
                    self._deleter.try_remove(entry)

    def destroy(self, handle: Handle) -> None:
        """See `Backend.destroy`: the process first, so that nothing uses the device any more.

        Outputs stay in the bucket if the handle says that the attempt is `over`: then nobody stores them any more.
        """
        self.ports.close(handle["name"])
        self.presence.end(handle["name"])
        if self.tokens is not None:
            self.tokens.remove(handle)
        for inner in self._runs_of(handle):
            self._runner.destroy(inner)
        entries = self._resource_inventory.list_of_attempt(handle["job_id"], handle["attempt"])
        for entry in entries:
            if not entry.over:
                self._remove(entry)
            self._health_monitor.forget(entry)
            if self._vm_client is not None and handle.get("runner") is None:
                self._vm_client.destroy(entry.zone, handle["job_id"], handle["attempt"])
        with self._lock:
            self._ending.pop(handle["name"], None)
        if handle.get("over"):
            return
        if self._resource_inventory.list_of_attempt(handle["job_id"], handle["attempt"] + 1):
            return  # this host was frozen: the next attempt has the folders in the bucket now, and cleans them up
        # Last, since it may take long: the device is no longer billed.
        self.output_collector.complete(handle["job_id"], [entry.zone for entry in entries], self._artifacts(handle))
        self._record_what_the_vm_kept(handle)

    def _record_what_the_vm_kept(self, handle: Handle) -> None:
        control, artifacts = Path(handle["control"]), self._artifacts(handle)
        skipped, notes = read_left(control, len(handle.get("vm", {}).get("hosts", ())))
        if (skipped or notes) and artifacts.is_dir():
            others, _ = read_missing(artifacts)
            record_missing(artifacts, dict.fromkeys([*others, *skipped]), notes)

    def owned(self) -> list[Handle]:
        """See `Backend.owned`: processes, and devices that no process uses (yet).

        While the inventory is away, each attempt with a folder here counts as having a device. So no sweep takes one
        for destroyed, and the processes can be ended.
        """
        handles: dict[str, Handle] = {}
        for inner in self._list_runs():
            handles[inner["name"]] = inner | {"runner": inner}
        try:
            attempts = [(entry.job_id, entry.attempt) for entry in self._resource_inventory.list_on_host()]
        except StoreUnavailable:
            attempts = list_scratch_folders(self._attempts)
        for job_id, attempt in attempts:
            handle = scratch_handle(self._attempts, job_id, attempt)
            handles.setdefault(handle["name"], handle)
        return list(handles.values())

    def remove_orphans(self, is_owned: IsOwned, is_finished: Callable[[str], bool]) -> int:
        return self._orphan_sweep.remove(is_owned) + self.output_collector.remove_orphans(
            self._settings.zones, is_finished
        )

    def _only_on_vms(self) -> bool:
        """Check whether every type runs its jobs on its own VMs, so that this host needs no engine."""
        return all(self._on_vm(machine) for machine in self.catalogue if machine.backend == "tpu")

    def _on_vm(self, machine: MachineType) -> bool:
        return self._settings.on_vm(by_default=machine.tpu_on_vm)

    def _stay_connected(self, handle: Handle, seconds: float) -> None:
        """Tell a node that was made for its job that this worker follows it."""
        if handle["device"]["kind"] != POOL:
            self.presence.keep(handle["name"], handle["allocation"]["url"], seconds)

    def _vm_client_for(self, spec: LaunchSpec, machine: MachineType) -> VmClient | None:
        """Return the runner of this attempt on its TPU VM; None: the job runs on the worker's host."""
        if not self._on_vm(machine):
            if machine.hosts > 1:
                raise LaunchError("tpu_denied", _SLICE_NEEDS_VM.format(name=machine.name, count=machine.hosts))
            return None
        if self._settings.provisioning_for(spec.machine_type) == "pool":
            raise LaunchError("tpu_denied", "jobs on TPU VMs need nodes created for them, not nodes of a pool")
        if self._vm_client is None:
            raise LaunchError("bucket_missing", "jobs on TPU VMs need Cloud Storage, which is not set up here")
        return self._vm_client

    def _artifacts(self, handle: Handle) -> Path:
        return self._attempts / str(handle["name"]) / "artifacts"

    def _list_runs(self) -> list[Handle]:
        """List the runs of jobs on this host; where all jobs run on their VMs, it needs no engine."""
        idle = self._only_on_vms() and self._runner.unavailable_reason() is not None
        return [] if idle else self._runner.owned()

    def _runs_of(self, handle: Handle) -> list[Handle]:
        """Return an attempt's run on this host, if it has one."""
        if "vm" in handle or "runner" in handle:
            return [handle["runner"]] if "runner" in handle else []
        return [inner for inner in self._list_runs() if inner["name"] == handle["name"]]

    def _remove(self, entry: ResourceEntry) -> None:
        """Delete a device; if that is refused for too long, leave it to the sweep: the job's outputs must not wait."""
        try:
            self._deleter.remove(entry)
        except ApiError as error:
            with self._lock:
                since = self._refused_since.setdefault(entry.id, time.monotonic())
            if time.monotonic() - since < times.API_RETRY_SECONDS:
                raise LaunchError("tpu_api_unavailable", f"{entry.name} could not be deleted: {error}") from error
            logger.exception("tpu_left_to_the_sweep", extra={"resource": entry.name})
        with self._lock:
            self._refused_since.pop(entry.id, None)

    def _read_failure(self, handle: Handle) -> NodeFailure | None:
        """Return why this worker or an earlier one, whose words are lost, ended the job."""
        with self._lock:
            if (ending := self._ending.get(handle["name"])) is not None:
                return ending[1]
        reason = read_control(Path(handle["control"]), _FAILURE_FILE)
        if reason not in _FAILURE_REASONS:  # the job can write there, too
            return None
        follower = self._follower(handle)
        host = follower.given_up() if follower is not None else ""
        return NodeFailure(reason, f"{handle['device']['name']}{f', {host},' if host else ''} was lost")

    def _end_job(self, handle: Handle, failure: NodeFailure) -> None:
        """Ask the job to end, once; kill it when its grace period is over."""
        name = handle["name"]
        with self._lock:
            ending = self._ending.get(name)
            if ending is None:
                lost = "vm" in handle and failure.reason != "tpu_unhealthy"  # then the job is lost, too
                self._ending[name] = time.monotonic() + (0.0 if lost else handle["stop_grace"]), failure
        if ending is None:
            logger.warning("tpu_lost", extra={"reason": failure.reason, "detail": failure.detail})
            write_control_file(Path(handle["control"]), _FAILURE_FILE, failure.reason)
            self.signal(handle, grace=True)
        elif time.monotonic() >= ending[0]:
            self.signal(handle, grace=False)


_SLICE_NEEDS_VM = "{name} is a slice of {count} hosts, whose jobs run on its hosts: GRADIENT_TPU__PLACEMENT must be vm"
_FAILURE_REASONS = frozenset({"preempted", "tpu_expired", "tpu_suspended", "tpu_unhealthy", "tpu_lost"})


_VM_ENVIRONMENT = {"TPU_NAME": "local", "PJRT_DEVICE": "TPU", "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true"}
"""Variables of a job on a TPU VM, unless the job sets them itself."""


def _make_handle(spec: LaunchSpec, device: ReservedTpu, *, on_vm: bool) -> Handle:
    node = device.node
    return {
        **spec.base_handle(),
        "device": asdict(device.entry),
        "allocation": {
            "zone": node.zone,
            "name": node.id,
            "type": node.accelerator_type,
            "url": None if on_vm else node.url,
            "addresses": [address for address, _ in node.endpoints],
        },
        "stop_grace": spec.job_spec.stop_grace,
    }


def _vm_handle(handle: Handle) -> Handle:
    return {**handle, **handle["vm"]}
