"""Describes the node of a job, and checks that a job can reach it."""

import json
import math
import shlex
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from core.catalogue.machine_types import MachineType
from core.errors import SpecInvalid
from core.jobs.spec.data_disks import DataDisk, parse_data_disks, zones_of_disks
from core.jobs.spec.job_spec import MAX_FLEX_START_SECONDS
from core.settings.cloud import TpuSettings
from worker.backends.base import LaunchError, LaunchSpec
from worker.backends.tpu import times
from worker.backends.tpu.api import TPU_PORT, Node, NodeRequest
from worker.backends.tpu.cancellation import Check, pause, run_cancellably
from worker.backends.tpu.node_state import CAPACITY_LABEL, FLEX_START
from worker.backends.tpu.provisioning.startup_parts import node_id, resource_names, write_programs

LABEL, LABEL_JOB, LABEL_ATTEMPT = "gradient-jobs", "gradient-job", "gradient-attempt"
"""Labels of created resources: the installation, the job and the attempt."""

_STARTUP = Path(__file__).with_name("tensorflow_server.sh")
_CONNECT_SECONDS = 5.0
_RUNTIMES = {"v5litepod": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5", "v6e": "v2-alpha-tpuv6e"}
_DEFAULT_RUNTIME = "tpu-ubuntu2204-base"


def build_request(spec: LaunchSpec, machine: MachineType, settings: TpuSettings, installation: str) -> NodeRequest:
    """Describe the node for an attempt.

    Its id is that of the attempt, so that it is created once, and found again. Raises `LaunchError`: the machine type
    is not a TPU, or does not have the capacity or the disks that the job asks for.
    """
    if machine.tpu_type is None:
        raise LaunchError("tpu_denied", f"machine type {machine.name!r} has no tpu_type; name one in the catalogue")
    capacity = spec.job_spec.capacity or settings.capacity_for(machine.name)
    if spec.job_spec.capacity is not None and settings.provisioning_for(machine.name) == "pool":
        why = f"the capacity of the pool's nodes for {machine.name} is fixed; leave capacity out"
        raise LaunchError("option_refused", why)
    reservation = _reservation(machine, settings) if capacity == "reserved" else None
    flex_start = capacity == FLEX_START
    prices = {"spot": machine.spot_price_per_hour, FLEX_START: machine.flex_start_price_per_hour}
    disks, zones = _data_disks(spec, machine, settings)
    if reservation is not None and zones is not None and reservation.partition("/")[0] not in zones:
        raise LaunchError("option_refused", f"reservation {reservation} is not in a zone with the job's disks")
    return NodeRequest(
        id=node_id(spec),
        accelerator_type=machine.tpu_type,
        runtime=runtime_for(machine, settings),
        labels={LABEL: installation, LABEL_JOB: spec.job_id, LABEL_ATTEMPT: str(spec.attempt)}
        | ({CAPACITY_LABEL: FLEX_START} if flex_start else {}),
        hosts=machine.hosts,
        spot=capacity == "spot",
        run_seconds=_run_seconds(spec, machine, settings) if flex_start else None,
        price=prices.get(capacity),
        reservation=reservation,
        disks=disks,
        zones=zones,
        startup=partial(_serve_tensorflow, spec, settings),
    )


def _serve_tensorflow(spec: LaunchSpec, settings: TpuSettings, zone: str) -> str:
    """Return the start-up script of a node that serves its TPU to a job elsewhere."""
    watch = {
        "port": TPU_PORT,
        "seconds": max(times.VM_ABANDONED_SECONDS, times.PROBE_SECONDS),  # it also counts during installation
        "resources": resource_names(spec, zone, settings),
    }
    return (
        _STARTUP.read_text()
        .replace("@TENSORFLOW@", settings.tensorflow)
        .replace("@PACKAGES@", shlex.quote(settings.packages or ""))
        .replace("@WATCH@", json.dumps(watch))
        .replace("@RUNNER@", write_programs())
    )


def _data_disks(
    spec: LaunchSpec, machine: MachineType, settings: TpuSettings
) -> tuple[tuple[DataDisk, ...], frozenset[str] | None]:
    """Return the disks of a job, and the zones that have them; settings may have changed since it was submitted."""
    disks = parse_data_disks(spec.job_spec.data_disks)
    if not disks:
        return (), None
    if not settings.on_vm(by_default=machine.tpu_on_vm):
        raise LaunchError(
            "option_refused", f"only TPU VMs have data disks, and jobs on {machine.name} do not run on one"
        )
    try:
        zones = zones_of_disks(disks, settings.data_disks, machine.hosts)
    except SpecInvalid as error:
        raise LaunchError("option_refused", error.message) from error
    if not zones & set(settings.zones):
        raise LaunchError("option_refused", f"no zone in GRADIENT_TPU__ZONES has its disks: {', '.join(sorted(zones))}")
    return disks, zones


def _reservation(machine: MachineType, settings: TpuSettings) -> str:
    """Return the reservation of a machine type, after checking that it can be used."""
    provisioning, name = settings.provisioning_for(machine.name), settings.reservations.get(machine.name)
    if name is None:
        why = f"GRADIENT_TPU__RESERVATIONS names none for {machine.name}"
    elif name.partition("/")[0] not in settings.zones:
        why = f"the zone of reservation {name} is not in GRADIENT_TPU__ZONES"
    elif provisioning != "queued":
        why = f"reservation {name} needs queued resources, but GRADIENT_TPU__PROVISIONING is {provisioning}"
    else:
        return name
    raise LaunchError("option_refused", f"no reserved capacity: {why}")


def _run_seconds(spec: LaunchSpec, machine: MachineType, settings: TpuSettings) -> int:
    """Return the run duration of flex-start capacity: the longest that the job can need it, at most Google's limit."""
    if settings.simulator_address is not None:
        raise LaunchError("option_refused", "the simulated cloud has no flex-start capacity")
    provisioning = settings.provisioning_for(machine.name)
    if provisioning != "queued":
        why = f"flex-start needs queued resources, but GRADIENT_TPU__PROVISIONING is {provisioning}"
        raise LaunchError("option_refused", why)
    limit = spec.job_spec.time_limit or MAX_FLEX_START_SECONDS
    start, end = (
        times.PROBE_SECONDS + times.VM_START_SECONDS,
        spec.job_spec.stop_grace + times.VM_COLLECT_SECONDS,
    )
    return min(MAX_FLEX_START_SECONDS, math.ceil(start + limit + end))


def runtime_for(machine: MachineType, settings: TpuSettings) -> str:
    generation = (machine.tpu_type or "").partition("-")[0]
    return settings.runtimes.get(machine.name) or _RUNTIMES.get(generation, _DEFAULT_RUNTIME)


def wait_until_reachable(node: Node, settings: TpuSettings, report: Callable[[str], None], check: Check) -> None:
    """Wait until the device's ports accept connections: TensorFlow would wait for a closed one for ever.

    Raises `LaunchError`: a port stays closed.
    """
    until = time.monotonic() + times.PROBE_SECONDS
    for address, port in node.endpoints:
        while (why := run_cancellably(partial(_connect_error, address, port), check)) is not None:
            if time.monotonic() >= until:
                raise LaunchError("tpu_unreachable", f"grpc://{address}:{port}: {why}")
            report(f"{node.zone}/{node.id} is {node.state}; waiting for grpc://{address}:{port} to answer")
            pause(settings.poll_seconds, check)


def _connect_error(address: str, port: int) -> str | None:
    """Return the reason that a port does not accept connections; None if it does."""
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_SECONDS):
            return None
    except OSError as error:
        return str(error)
