"""The TPU backend: gets a device, runs the job with it, and releases the device.

Another backend runs the job's process: in a container or, where the TPU is simulated, as a plain process. This one adds
the device, its address in the job's environment, and periodic checks of the device. It can also run the job on the TPU
VM itself: see `vm`.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from core.catalogue.backends import BACKENDS
from core.catalogue.machine_types import Catalogue
from core.settings import Settings
from worker.backends import make_backend
from worker.backends.base import (
    CloudBackend,
    Exit,
    Handle,
    LaunchError,
    LaunchSpec,
    Progress,
    handle_of,
    note_control,
    read_control,
)
from worker.backends.tpu.api import ApiError, TpuApi
from worker.backends.tpu.deletion import Removal
from worker.backends.tpu.health import Watching
from worker.backends.tpu.node_state import Trouble
from worker.backends.tpu.orphans import Owned, Strays
from worker.backends.tpu.provisioning.node_request import reachable, wish_for
from worker.backends.tpu.provisioning.provision import Device, Seeker
from worker.backends.tpu.resource_log import Entry, Ledger
from worker.backends.tpu.storage.job_storage import Homecoming, Places, buckets_of
from worker.backends.tpu.vm.client import OnVm

logger = logging.getLogger(__name__)

_TAKEN = "device_lost"
"""Control file with the reason that the job was ended: its device was lost."""


class TpuBackend(CloudBackend):
    """See the module. One instance serves all attempt threads of a worker.

    Args:
        settings: The service's.
        ledger: The record of billed resources.
    """

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self._all_settings = settings
        self._settings = settings.tpu
        self._buckets = buckets = buckets_of(settings)
        self._homecoming = Homecoming(buckets, settings)
        self._vms = OnVm(buckets, settings) if buckets is not None else None
        self._catalogue = Catalogue.load(override_path=settings.machines.file)
        self._attempts = settings.root / "attempts"
        self._ledger = ledger
        self._runner = make_backend("docker" if settings.tpu.runner == "docker" else "mock", settings)
        self._api = TpuApi(settings.tpu)
        self._removal = Removal(self._api, ledger)
        self._strays = Strays(self._api, ledger, settings.tpu)
        self._watching = Watching(self._api, ledger, settings.tpu)
        self._lock = threading.Lock()
        self._kill_at: dict[str, float] = {}
        self._refused_since: dict[int, float] = {}
        runs = self._runner.capabilities
        self.capabilities = replace(BACKENDS["tpu"].capabilities, containers=runs.containers, mounts=runs.mounts)

    def unready(self) -> str | None:
        """See `Backend.unready`."""
        if not self._settings.zones and not self._settings.pool:
            return "No TPU can be sought: set GRADIENT_TPU__ZONES, or name nodes in GRADIENT_TPU__POOL."
        try:
            self._api.connect()
        except ApiError as error:
            return (
                f"Google's TPU API cannot be used ({error}). Give this worker credentials: a service account of its "
                "machine, or GOOGLE_APPLICATION_CREDENTIALS; `gradient-server doctor --tpu` says more."
            )
        return self._runner.unready()

    def launch(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> Handle:
        """See `Backend.launch`. Nothing is billed before the lease was checked."""
        confirm()
        machine = self._catalogue.get(spec.machine_type)
        vms = self._vms_for(spec)
        wish = wish_for(spec, machine, self._settings, self._ledger.installation())
        if vms is not None:
            wish = replace(wish, startup=partial(vms.startup, spec))
        places = Places(self._buckets, spec, self._all_settings, progress)

        def say(words: str) -> None:
            progress("provisioning", words)

        def ready(zone: str) -> None:
            places.have(zone)
            if vms is not None:
                vms.stage(spec, zone, _OF_VM | spec.env | places.folders(zone))

        device = Seeker(self._api, self._ledger, self._settings, ready).seek(spec, wish, say)
        handle = _handle(spec, device, on_vm=vms is not None)
        try:
            if vms is not None:
                vms.started(spec, device.entry.zone, say, partial(self._watching.trouble, device.entry))
                return handle | {"vm": {"zone": device.entry.zone}}
            reachable(device.node, self._settings, say)
            env = _address(device) | places.environment(device.entry.zone)
            return handle | {"runner": self._runner.launch(replace(spec, env=spec.env | env), confirm, progress)}
        except LaunchError as error:
            confirm()  # only the holder of the job may remove its device
            self._give_back(device.entry, str(error))
            raise

    def poll(self, handle: Handle) -> Exit | None:
        """See `Backend.poll`. A job whose device is lost is ended: it would wait for an answer for ever."""
        vms = self._vms if "vm" in handle else None
        ended = vms.poll(_on_vm(handle)) if vms is not None else self._runner.poll(handle["runner"])
        entry = Entry(**handle["device"])
        failed = ended is not None and ended.code != 0
        trouble = _taken(handle) or self._watching.trouble(entry, last=failed)
        if trouble is None and vms is not None and ended is None:
            trouble = vms.silent(handle)
        if ended is None:
            self._homecoming.mirror(handle["job_id"], entry.zone, self._artifacts(handle))
        if trouble is None:
            return ended
        if ended is None:
            self._end(handle, trouble)
            return None
        return Exit(ended.code, trouble.reason, trouble.detail) if failed else ended

    def stop(self, handle: Handle, *, grace: bool) -> None:
        """See `Backend.stop`."""
        if self._vms is not None and "vm" in handle:
            self._vms.stop(_on_vm(handle), grace=grace)
        else:
            self._runner.stop(handle["runner"], grace=grace)

    def sample(self, handle: Handle) -> dict[str, float]:
        """See `Backend.sample`: only the host's part of the job; the usage of its device is unknown."""
        return self._runner.sample(handle["runner"]) if "runner" in handle else {}

    def layer_bytes(self, handle: Handle) -> int:
        """See `Backend.layer_bytes`."""
        return self._runner.layer_bytes(handle["runner"]) if "runner" in handle else 0

    def destroy(self, handle: Handle) -> None:
        """See `Backend.destroy`: the process first, so that nothing uses the device any more."""
        inner = handle.get("runner") or self._inner(handle["name"])
        if inner is not None:
            self._runner.destroy(inner)
        entries = self._ledger.of_attempt(handle["job_id"], handle["attempt"])
        for entry in entries:
            if not entry.over:
                self._remove(entry)
            self._watching.forget(entry)
            if self._vms is not None and handle.get("runner") is None:
                self._vms.destroy(entry.zone, handle["job_id"], handle["attempt"])
        with self._lock:
            self._kill_at.pop(handle["name"], None)
        # Last, since it may take long: the device is no longer billed.
        self._homecoming.complete(handle["job_id"], [entry.zone for entry in entries], self._artifacts(handle))

    def list_owned(self) -> list[Handle]:
        """See `Backend.list_owned`: processes, and devices that no process uses (yet)."""
        found: dict[str, Handle] = {}
        for inner in self._runner.list_owned():
            found[inner["name"]] = inner | {"runner": inner}
        for entry in self._ledger.here():
            name = f"{entry.job_id}-{entry.attempt}"
            found.setdefault(name, handle_of(entry.job_id, entry.attempt, self._attempts / name / "control"))
        return list(found.values())

    def remove_strays(self, owned: Owned, over: Callable[[str], bool]) -> int:
        """See `CloudBackend.remove_strays`."""
        return self._strays.remove(owned) + self._homecoming.remove_strays(self._settings.zones, over)

    def _vms_for(self, spec: LaunchSpec) -> OnVm | None:
        """Return the runner of this attempt on its TPU VM; None: it runs beside its TPU.

        Raises:
            LaunchError: It should run on a TPU VM, and cannot.
        """
        if not self._settings.on_vm(spec.machine_type):
            return None
        if self._settings.way_of(spec.machine_type) == "pool":
            raise LaunchError("tpu_denied", "a job runs on a TPU VM that is made for it; nodes of a pool are not")
        if spec.ports:
            raise LaunchError("option_refused", "a job on a TPU VM cannot be reached at ports of the worker's host")
        if self._vms is None:
            raise LaunchError("bucket_missing", "a job on a TPU VM needs Cloud Storage, which is not set up here")
        return self._vms

    def _artifacts(self, handle: Handle) -> Path:
        return self._attempts / str(handle["name"]) / "artifacts"

    def _inner(self, name: str) -> Handle | None:
        return next((inner for inner in self._runner.list_owned() if inner["name"] == name), None)

    def _remove(self, entry: Entry) -> None:
        """Delete a device; if that is refused for too long, leave it to the sweep: the job's outputs must not wait."""
        try:
            self._removal.remove(entry)
        except ApiError as error:
            with self._lock:
                since = self._refused_since.setdefault(entry.id, time.monotonic())
            if time.monotonic() - since < self._settings.api_retry_seconds:
                raise LaunchError("tpu_api_away", f"{entry.name} could not be deleted: {error}") from error
            logger.exception("tpu_left_to_the_sweep", extra={"resource": entry.name})
        with self._lock:
            self._refused_since.pop(entry.id, None)

    def _give_back(self, entry: Entry, why: str) -> None:
        try:
            self._removal.remove(entry, why)
        except ApiError as error:  # the teardown tries again
            logger.warning("tpu_not_deleted", extra={"resource": entry.name, "error": str(error)})

    def _end(self, handle: Handle, trouble: Trouble) -> None:
        """Ask the job to end, once; kill it when its grace period is over."""
        name = handle["name"]
        with self._lock:
            kill_at = self._kill_at.get(name)
            if kill_at is None:
                gone = "vm" in handle and trouble.reason != "tpu_unhealthy"  # then the job is gone, too
                self._kill_at[name] = time.monotonic() + (0.0 if gone else handle["stop_grace"])
        if kill_at is None:
            logger.warning("tpu_lost", extra={"reason": trouble.reason, "detail": trouble.detail})
            note_control(Path(handle["control"]), _TAKEN, trouble.reason)
            self.stop(handle, grace=True)
        elif time.monotonic() >= kill_at:
            self.stop(handle, grace=False)


_LOST = frozenset({"preempted", "tpu_suspended", "tpu_unhealthy", "tpu_lost"})


def _taken(handle: Handle) -> Trouble | None:
    """Read why an earlier worker ended the job; the job can write there too, so only known reasons are believed."""
    reason = read_control(Path(handle["control"]), _TAKEN)
    return Trouble(reason, f"{handle['device']['name']} was lost") if reason in _LOST else None


_OF_VM = {"TPU_NAME": "local", "PJRT_DEVICE": "TPU", "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true"}
"""Variables of a job on a TPU VM, unless the job sets them itself."""


def _handle(spec: LaunchSpec, device: Device, *, on_vm: bool) -> Handle:
    node = device.node
    return {
        **handle_of(spec.job_id, spec.attempt, spec.control),
        "device": asdict(device.entry),
        "tpu": {
            "zone": node.zone,
            "name": node.id,
            "type": node.accelerator_type,
            "url": None if on_vm else node.url,
        },
        "stop_grace": spec.stop_grace,
    }


def _on_vm(handle: Handle) -> Handle:
    return {**handle, **handle["vm"]}


def _address(device: Device) -> dict[str, str]:
    """Build the variables with the device's address: TensorFlow's own lookup needs rights that the job lacks."""
    return {"TPU_NAME": device.node.id, "TPU_GRPC_URL": device.node.url}
