"""Queries GPUs through NVIDIA's management library."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import pynvml

from core.formatting import format_moment

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CUDA_MAJOR, _CUDA_MINOR = 1000, 10
_MILLI = 1000
_XIDS = {
    48: "an ECC error that cannot be corrected",
    63: "its memory was repaired, and it has to be reset",
    64: "its memory could not be repaired",
    74: "an NVLink error",
    79: "it fell off the bus",
    92: "many ECC errors",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "its firmware (GSP) does not answer",
    120: "its firmware (GSP) failed",
}
"""Xid errors of broken GPUs, as NVIDIA's list of them says; most others, such as 13, 31 and 43, are of programs."""
_UNUSABLE = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "it fell off the bus",
    pynvml.NVML_ERROR_RESET_REQUIRED: "it has to be reset",
}
_SLOWDOWNS = {
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "it is too hot",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "it gets too little power",
}
_MAX_EVENTS, _EVENT_MS = 100, 100


@dataclass(frozen=True, slots=True)
class Gpu:
    index: str
    uuid: str
    name: str
    memory: int  # bytes
    serial: str | None  # None if the GPU has none (most consumer GPUs)
    driver: str
    cuda: str | None  # the newest CUDA version that the driver supports; None if unknown

    def facts(self) -> dict[str, Any]:
        """Return the properties as stored for an attempt."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class GpuUsage:
    memory: int  # bytes in use, without the driver's own
    percent: float | None  # utilization in the last moments; None if unknown
    watts: float | None  # None if unknown
    celsius: float | None  # None if unknown
    pids: tuple[int, ...]
    slowdown: str | None  # why the hardware itself slows it down; None: it does not


@dataclass(frozen=True, slots=True)
class GpuSample:
    gpu: Gpu
    use: GpuUsage

    def is_named(self, name: str) -> bool:
        """Return whether this GPU has that index or UUID."""
        return name in {self.gpu.index, self.gpu.uuid}


@dataclass(frozen=True, slots=True)
class Reading:
    samples: tuple[GpuSample, ...] = ()  # of every GPU that answers, in the driver's order
    faults: dict[str, str] = field(default_factory=dict)  # how it shows that a GPU is broken, by index


def read_gpus() -> Reading:
    """Query every GPU; empty if no driver reports any."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.debug("no_gpu_driver", extra={"error": str(error)})
        return Reading()
    faults: dict[str, str] = {}
    try:
        driver, cuda = pynvml.nvmlSystemGetDriverVersion(), _query_or_none(_cuda)
        samples = [_read_gpu(index, driver, cuda, faults) for index in range(pynvml.nvmlDeviceGetCount())]
        return Reading(tuple(sample for sample in samples if sample is not None), faults)
    except pynvml.NVMLError as error:
        logger.debug("no_gpu_driver", extra={"error": str(error)})
        return Reading()
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _read_gpu(index: int, driver: str, cuda: str | None, faults: dict[str, str]) -> GpuSample | None:
    """Query one GPU, and add its fault; None if it fell off the bus, which does not affect the others."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        total, used = _memory(handle)
        gpu = Gpu(
            index=str(index),
            uuid=pynvml.nvmlDeviceGetUUID(handle),
            name=pynvml.nvmlDeviceGetName(handle),
            memory=total,
            serial=_query_or_none(lambda: str(pynvml.nvmlDeviceGetSerial(handle))),
            driver=driver,
            cuda=cuda,
        )
    except pynvml.NVMLError as error:
        logger.warning("gpu_does_not_answer", extra={"gpu": index, "error": str(error)})
        if error.value in _UNUSABLE:
            faults[str(index)] = _UNUSABLE[error.value]
        return None
    if fault := _find_fault(handle):
        faults[gpu.index] = fault
    use = GpuUsage(
        memory=used,
        percent=_query_or_none(lambda: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        watts=_query_or_none(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / _MILLI),
        celsius=_query_or_none(lambda: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))),
        pids=_pids(handle),
        slowdown=_find_slowdown(handle),
    )
    return GpuSample(gpu, use)


def _find_slowdown(handle: Any) -> str | None:  # noqa: ANN401 - a pointer of the library's
    reasons = _query_or_none(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
    return next((why for reason, why in _SLOWDOWNS.items() if reasons & reason), None)


def _find_fault(handle: Any) -> str | None:  # noqa: ANN401 - a pointer of the library's
    """Describe what will fail jobs until the GPU is reset or replaced; its repaired errors are none of that."""
    kind, since_reset = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    errors = _query_or_none(lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, since_reset))
    *_, pending, failed = _query_or_none(lambda: pynvml.nvmlDeviceGetRemappedRows(handle)) or (0, 0)
    retiring = _query_or_none(lambda: pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))  # before Ampere
    faults = {
        "rows of its memory could not be replaced": failed,
        "parts of its memory are replaced when it is reset": pending or retiring,
        f"{errors} ECC errors since its last reset could not be corrected": errors,
    }
    return "; ".join(fault for fault, is_there in faults.items() if is_there) or None


class XidWatch:
    """Collects a GPU's Xid errors until `end`. It holds the library meanwhile. Raises `NVMLError`."""

    def __init__(self, name: str) -> None:
        with contextlib.ExitStack() as stack:
            pynvml.nvmlInit()
            stack.callback(pynvml.nvmlShutdown)
            find = pynvml.nvmlDeviceGetHandleByIndex if name.isdecimal() else pynvml.nvmlDeviceGetHandleByUUID
            handle = find(int(name) if name.isdecimal() else name)
            self._events = pynvml.nvmlEventSetCreate()
            stack.callback(pynvml.nvmlEventSetFree, self._events)
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
            self._open = stack.pop_all()

    def end(self) -> str | None:
        """Return the first error of those that only broken GPUs have; None: there was none."""
        fault = None
        with contextlib.suppress(pynvml.NVMLError), self._open:  # as the timeout when there are no more
            for _ in range(_MAX_EVENTS):
                xid = int(pynvml.nvmlEventSetWait_v2(self._events, _EVENT_MS).eventData)
                if xid in _XIDS and fault is None:
                    fault = f"Xid {xid} by {format_moment(datetime.now(UTC))}: {_XIDS[xid]}"
        return fault


def _memory(handle: Any) -> tuple[int, int]:  # noqa: ANN401 - a pointer of the library's
    """Return total and used bytes. The first version of the call counts the driver's own memory as used."""
    try:
        reported = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:  # a driver before 510
        reported = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return int(reported.total), int(reported.used)


def _pids(handle: Any) -> tuple[int, ...]:  # noqa: ANN401 - a pointer of the library's
    computing = _query_or_none(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
    drawing = _query_or_none(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or ()
    return tuple(sorted({process.pid for process in (*computing, *drawing)}))


def _cuda() -> str:
    number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    return f"{number // _CUDA_MAJOR}.{number % _CUDA_MAJOR // _CUDA_MINOR}"


def _query_or_none(query: Callable[[], T]) -> T | None:
    try:
        return query()
    except pynvml.NVMLError:
        return None
