"""A stand-in for NVIDIA's driver, at the two places where it is asked: its library's calls, and its program.

And one for its container toolkit: an engine that finds the toolkit's hook when it starts takes requests for cards, and
calls the hook for each container that has some.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

MIB = 1024**2
HOOK = """#!/bin/sh
# What the engine tells the toolkit: the container's own process has the request in its environment.
cat >>"{folder}/hooked"
"""


class Driver:
    """A driver with some cards, as far as pynvml's calls ask it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cards: int) -> None:
        self.memory = [0] * cards
        self.percent = [0] * cards
        self.pids: list[list[int]] = [[] for _ in range(cards)]
        self.lost: set[int] = set()
        self.asked = self.open = 0
        self.error: int | None = None
        given = {
            "nvmlInit": self._init,
            "nvmlShutdown": self._shut_down,
            "nvmlSystemGetDriverVersion": lambda: "550.54.15",
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 12040,
            "nvmlDeviceGetCount": lambda: len(self.memory),
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetUUID": lambda card: f"GPU-{card}{card}{card}",
            "nvmlDeviceGetName": lambda _: "NVIDIA Test Card",
            "nvmlDeviceGetSerial": lambda _: self._fail(pynvml.NVML_ERROR_NOT_SUPPORTED),
            "nvmlDeviceGetMemoryInfo": self._memory_info,
            "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=self.percent[card], memory=0),
            "nvmlDeviceGetPowerUsage": lambda _: 65_200,
            "nvmlDeviceGetTemperature": lambda *_: 41,
            "nvmlDeviceGetComputeRunningProcesses": lambda card: [SimpleNamespace(pid=pid) for pid in self.pids[card]],
            "nvmlDeviceGetGraphicsRunningProcesses": lambda _: [],
        }
        for name, call in given.items():
            monkeypatch.setattr(pynvml, name, call)  # refuses a name that the library does not have

    def _init(self) -> None:
        if self.error is not None:
            self._fail(self.error)
        self.asked += 1
        self.open += 1

    def _shut_down(self) -> None:
        self.open -= 1

    def _handle(self, index: int) -> int:
        return self._fail(pynvml.NVML_ERROR_GPU_IS_LOST) if index in self.lost else index

    def _memory_info(self, card: int, version: int | None = None) -> SimpleNamespace:
        kept = 0 if version else 600 * MIB  # the first version counts what the driver keeps for itself
        return SimpleNamespace(total=16_384 * MIB, used=self.memory[card] + kept)

    def _fail(self, number: int):
        raise pynvml.NVMLError(number)


class SmiDriver:
    """A host whose `nvidia-smi` tells of some cards, for processes that find it on their PATH."""

    def __init__(self, folder: Path, cards: int) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._use: list[tuple[int, list[int]]] = [(0, [])] * cards
        program = folder / "nvidia-smi"
        program.write_text(f'#!/bin/sh\n[ "$*" = "-q -x" ] || exit 2\ncat "{folder}/told.xml"\n')
        program.chmod(0o755)
        self._tell()

    def use(self, card: int, memory_mib: int, *pids: int) -> None:
        """Simulate processes that use a card."""
        self._use[card] = (memory_mib, list(pids))
        self._tell()

    def _tell(self) -> None:
        cards = "".join(_gpu(index, *use) for index, use in enumerate(self._use))
        told = self.folder / "told.new"
        told.write_text(_LOG.format(count=len(self._use), cards=cards))
        told.rename(self.folder / "told.xml")


def install_toolkit(folder: Path) -> None:
    """Put the toolkit's hook where an engine looks for it: in a folder of its PATH."""
    hook = folder / "nvidia-container-runtime-hook"
    hook.write_text(HOOK.format(folder=folder))
    hook.chmod(0o755)


def hooked(folder: Path) -> list[str]:
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


_LOG = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <timestamp>Sat Nov 21 09:00:00 2026</timestamp>
  <driver_version>550.54.15</driver_version>
  <cuda_version>12.4</cuda_version>
  <attached_gpus>{count}</attached_gpus>
{cards}</nvidia_smi_log>
"""


def _gpu(index: int, memory_mib: int, pids: list[int]) -> str:
    processes = "".join(
        f"<process_info><pid>{pid}</pid><type>C</type><process_name>x</process_name>"
        "<used_memory>10 MiB</used_memory></process_info>"
        for pid in pids
    )
    return f"""  <gpu id="00000000:0{index}:00.0">
    <product_name>NVIDIA Test Card</product_name>
    <serial>N/A</serial>
    <uuid>GPU-{index}{index}{index}</uuid>
    <fb_memory_usage>
      <total>16384 MiB</total><reserved>300 MiB</reserved><used>{memory_mib} MiB</used><free>1 MiB</free>
    </fb_memory_usage>
    <utilization><gpu_util>0 %</gpu_util><memory_util>0 %</memory_util></utilization>
    <temperature><gpu_temp>41 C</gpu_temp></temperature>
    <gpu_power_readings><power_draw>65.20 W</power_draw></gpu_power_readings>
    <processes>{processes}</processes>
  </gpu>
"""
