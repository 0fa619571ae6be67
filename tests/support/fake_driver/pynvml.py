# ruff: noqa: N802, N816 - the names are those of the library
"""A substitute for NVIDIA's library, for processes that find it first on their PYTHONPATH.

The file that FAKE_GPUS names lists for each GPU the MiB in use, the pids that use it, and its Xid errors.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace

NVML_TEMPERATURE_GPU = nvmlMemory_v2 = NVML_VOLATILE_ECC = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED = 15, 16
nvmlClocksThrottleReasonHwThermalSlowdown, nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x40, 0x80
nvmlEventTypeXidCriticalError = 8
_MIB = 1024**2


class NVMLError(Exception):
    pass


def _gpus():
    return json.loads(Path(os.environ["FAKE_GPUS"]).read_text())


def nvmlInit():
    pass


def nvmlShutdown():
    pass


def nvmlSystemGetDriverVersion():
    return "550.54.15"


def nvmlSystemGetCudaDriverVersion_v2():
    return 12040


def nvmlDeviceGetCount():
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetUUID(gpu):
    return f"GPU-{gpu}{gpu}{gpu}"


def nvmlDeviceGetName(_):
    return "NVIDIA Test GPU"


def nvmlDeviceGetSerial(_):
    raise NVMLError


def nvmlDeviceGetMemoryInfo(gpu, version):
    del version
    return SimpleNamespace(total=16_384 * _MIB, used=_gpus()[gpu][0] * _MIB)


def nvmlDeviceGetUtilizationRates(_):
    return SimpleNamespace(gpu=0, memory=0)


def nvmlDeviceGetPowerUsage(_):
    return 65_200


def nvmlDeviceGetTemperature(*_):
    return 41


def nvmlDeviceGetComputeRunningProcesses(gpu):
    return [SimpleNamespace(pid=pid) for pid in _gpus()[gpu][1]]


def nvmlDeviceGetGraphicsRunningProcesses(_):
    return []


def nvmlDeviceGetCurrentClocksThrottleReasons(_):
    return 0


def nvmlDeviceGetTotalEccErrors(*_):
    return 0


def nvmlDeviceGetRemappedRows(_):
    return 0, 0, 0, 0


def nvmlDeviceGetRetiredPagesPendingStatus(_):
    raise NVMLError


def nvmlEventSetCreate():
    return []


def nvmlDeviceRegisterEvents(gpu, _kinds, events):
    events.append((gpu, len(_gpus()[gpu][2])))


def nvmlEventSetWait_v2(events, _milliseconds):
    gpu, seen = events.pop()
    xids = _gpus()[gpu][2]
    if seen == len(xids):
        raise NVMLError
    events.append((gpu, seen + 1))
    return SimpleNamespace(eventData=xids[seen])


def nvmlEventSetFree(_):
    pass
