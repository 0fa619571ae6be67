"""Queries GPUs through NVIDIA's management library."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import pynvml

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CUDA_MAJOR, _CUDA_MINOR = 1000, 10
_MILLI = 1000


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


@dataclass(frozen=True, slots=True)
class GpuSample:
    gpu: Gpu
    use: GpuUsage

    def is_named(self, name: str) -> bool:
        """Return whether this GPU has that index or UUID."""
        return name in {self.gpu.index, self.gpu.uuid}


def read_gpus() -> tuple[GpuSample, ...]:
    """Query every GPU that answers, in the driver's order; empty if no driver reports any."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.debug("no_gpu_driver", extra={"error": str(error)})
        return ()
    try:
        driver, cuda = pynvml.nvmlSystemGetDriverVersion(), _query_or_none(_cuda)
        samples = (_read_gpu(index, driver, cuda) for index in range(pynvml.nvmlDeviceGetCount()))
        return tuple(sample for sample in samples if sample is not None)
    except pynvml.NVMLError as error:
        logger.debug("no_gpu_driver", extra={"error": str(error)})
        return ()
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _read_gpu(index: int, driver: str, cuda: str | None) -> GpuSample | None:
    """Query one GPU; None if it fell off the bus, which does not affect the others."""
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
        return None
    use = GpuUsage(
        memory=used,
        percent=_query_or_none(lambda: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        watts=_query_or_none(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / _MILLI),
        celsius=_query_or_none(lambda: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))),
        pids=_pids(handle),
    )
    return GpuSample(gpu, use)


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
