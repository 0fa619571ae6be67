"""Checks of the GPUs themselves: the driver's record of their faults, and 20 seconds of work."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

from gradient_server.checks.finding import Finding, ok, problem, warning
from worker.backends.docker.gpu.host_gpus import DriverTimeout, GpuMonitor

_SECONDS = 20
_MOST_SECONDS = 120.0  # with the load of the library
_MULTIPLY = """
import sys, time, torch
left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
product, count, wrong, end = left @ right, 0, 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    wrong += not torch.equal(left @ right, product)
    count += 1
print(count, wrong)
"""


def check() -> Iterator[Finding]:
    """Let each free GPU multiply matrices, with the torch of the PATH's `python3`, and ask the driver afterwards."""
    monitor = GpuMonitor()
    try:
        reading = monitor.read(refresh=True)
    except DriverTimeout as error:
        yield problem(
            "gpu", f"NVIDIA's driver hangs: {error}.", "Look for Xid errors in the kernel's log, and restart."
        )
        return
    uuids = {sample.gpu.index: sample.gpu.uuid for sample in reading.samples}
    names = sorted({*uuids, *reading.faults})
    taken = monitor.taken(uuids)
    monitor.watch(names)
    running = {name: _start(uuid) for name, uuid in uuids.items() if name not in taken}
    results = {name: _wait(process) for name, process in running.items()}
    faults = monitor.faults(names)
    for name in names:
        result = results.get(name, f"it was not put to work: {taken.get(name)}")
        if name in faults or result.startswith("wrong"):
            fix = "Drain its worker, reset the GPU (`nvidia-smi --gpu-reset`), and replace it if this is found again."
            yield problem("gpu", f"GPU {name}: {faults.get(name) or result}.", fix)
        elif result.startswith("right"):
            yield ok("gpu", f"GPU {name} has no faults on record, and {result}.")
        else:
            fix = "Try again when it is free, with a python3 on the PATH that has torch."
            yield warning("gpu", f"GPU {name} has no faults on record, but {result}.", fix)
    if not names:
        yield ok("gpu", "This machine has no NVIDIA GPU.")


def _start(uuid: str) -> "subprocess.Popen[str]":
    command = [shutil.which("python3") or sys.executable, "-c", _MULTIPLY, str(_SECONDS)]
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 - the administrator's own program


def _wait(process: "subprocess.Popen[str]") -> str:
    """Return what a GPU did, as the end of a sentence."""
    try:
        output, errors = process.communicate(timeout=_MOST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"wrong: it did not finish in {_MOST_SECONDS:.0f} s"
    if process.returncode != 0:
        return f"could not be put to work: {(errors.strip().splitlines() or ['no message'])[-1]}"
    count, wrong = output.split()
    if int(wrong):
        return f"wrong results: {wrong} of {count} products of the same matrices differ from the first"
    return f"right results: {int(count):,} products of the same matrices are equal"
