"""A substitute for NVIDIA's driver, at its library's calls: in this process, and in others.

And one for its container toolkit: an engine that finds the toolkit's hook when it starts takes requests for GPUs, and
calls the hook for each container that has some.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

MIB = 1024**2
_FAKE_LIBRARY = Path(__file__).with_name("fake_driver")
HOOK_SCRIPT = """#!/bin/sh
# What the engine tells the toolkit: the container's own process has the request in its environment.
cat >>"{folder}/hooked"
"""


class FakeDriver:
    """A driver with some GPUs, as far as pynvml's calls ask it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
        self.memory = [0] * gpus
        self.percent = [0] * gpus
        self.pids: list[list[int]] = [[] for _ in range(gpus)]
        self.lost: set[int] = set()
        self.lost_error = pynvml.NVML_ERROR_GPU_IS_LOST
        self.ecc: dict[int, int] = {}
        self.remapped: dict[int, tuple[int, int, int, int]] = {}
        self.throttle: dict[int, int] = {}
        self._xids: dict[int, list[int]] = {}
        self.init_count = self.open = 0
        self.error: int | None = None
        given = {
            "nvmlInit": self._init,
            "nvmlShutdown": self._shut_down,
            "nvmlSystemGetDriverVersion": lambda: "550.54.15",
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 12040,
            "nvmlDeviceGetCount": lambda: len(self.memory),
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}{gpu}{gpu}",
            "nvmlDeviceGetName": lambda _: "NVIDIA Test GPU",
            "nvmlDeviceGetSerial": lambda _: self._fail(pynvml.NVML_ERROR_NOT_SUPPORTED),
            "nvmlDeviceGetMemoryInfo": self._memory_info,
            "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=self.percent[gpu], memory=0),
            "nvmlDeviceGetPowerUsage": lambda _: 65_200,
            "nvmlDeviceGetTemperature": lambda *_: 41,
            "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [SimpleNamespace(pid=pid) for pid in self.pids[gpu]],
            "nvmlDeviceGetGraphicsRunningProcesses": lambda _: [],
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: self.throttle.get(gpu, 0),
            "nvmlDeviceGetTotalEccErrors": self._ecc_errors,
            "nvmlDeviceGetRemappedRows": lambda gpu: self.remapped.get(gpu, (0, 0, 0, 0)),
            "nvmlDeviceGetRetiredPagesPendingStatus": lambda _: self._fail(pynvml.NVML_ERROR_NOT_SUPPORTED),
            "nvmlEventSetCreate": list,
            "nvmlDeviceRegisterEvents": self._register,
            "nvmlEventSetWait_v2": self._next_event,
            "nvmlEventSetFree": lambda _: None,
        }
        for name, call in given.items():
            monkeypatch.setattr(pynvml, name, call)  # refuses a name that the library does not have

    def _init(self) -> None:
        if self.error is not None:
            self._fail(self.error)
        self.init_count += 1
        self.open += 1

    def _shut_down(self) -> None:
        self.open -= 1

    def report_xids(self, gpu: int, *xids: int) -> None:
        """Report errors of a GPU to those that wait for them."""
        self._xids[gpu].extend(xids)

    def _register(self, gpu: int, kinds: int, events: list[int]) -> None:
        assert kinds == pynvml.nvmlEventTypeXidCriticalError
        self._xids[gpu] = events

    def _next_event(self, events: list[int], _milliseconds: int) -> SimpleNamespace:
        return SimpleNamespace(eventData=events.pop(0)) if events else self._fail(pynvml.NVML_ERROR_TIMEOUT)

    def _ecc_errors(self, gpu: int, kind: int, counter: int) -> int:
        assert (kind, counter) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return self.ecc.get(gpu, 0)

    def _handle(self, index: int) -> int:
        return self._fail(self.lost_error) if index in self.lost else index

    def _memory_info(self, gpu: int, version: int | None = None) -> SimpleNamespace:
        kept = 0 if version else 600 * MIB  # the first version counts what the driver keeps for itself
        return SimpleNamespace(total=16_384 * MIB, used=self.memory[gpu] + kept)

    def _fail(self, number: int):
        raise pynvml.NVMLError(number)


class FakeDriverEnvironment:
    """A driver with some GPUs, for processes that are started with its `environment`."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self._state_file = folder / "gpus.json"
        self._usage: list[tuple[int, list[int], list[int]]] = [(0, [], []) for _ in range(gpus)]
        self.environment = {"PYTHONPATH": str(_FAKE_LIBRARY), "FAKE_GPUS": str(self._state_file)}
        self._write_state()

    def use(self, gpu: int, memory_mib: int, *pids: int) -> None:
        """Simulate processes that use a GPU."""
        self._usage[gpu] = (memory_mib, list(pids), [])
        self._write_state()

    def report_xids(self, gpu: int, *xids: int) -> None:
        """Report errors of a GPU to those that wait for them."""
        self._usage[gpu][2].extend(xids)
        self._write_state()

    def _write_state(self) -> None:
        new = self._state_file.with_suffix(".new")
        new.write_text(json.dumps(self._usage))
        new.rename(self._state_file)


def install_toolkit(folder: Path) -> None:
    """Put the toolkit's hook where an engine looks for it: in a folder of its PATH."""
    hook = folder / "nvidia-container-runtime-hook"
    hook.write_text(HOOK_SCRIPT.format(folder=folder))
    hook.chmod(0o755)


def list_hooked_containers(folder: Path) -> list[str]:
    """Ids of the containers that the toolkit was called for."""
    file = folder / "hooked"
    if not file.exists():
        return []
    decoder, text, found = json.JSONDecoder(), file.read_text().strip(), []
    while text:
        state, end = decoder.raw_decode(text)
        found.append(state["id"])
        text = text[end:].strip()
    return found
