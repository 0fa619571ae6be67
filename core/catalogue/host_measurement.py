"""Measures this host in less than 20 seconds: `python -m core.catalogue.host_measurement --json`.

The file runs alone, with any Python from 3.9 on: matrix products need one that has torch, or for CPUs numpy.
"""

import argparse
import csv
import ctypes
import functools
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_SECONDS = 0.8  # time for each figure; the fastest of its rounds counts, as others may use the machine, too
_MOST_SECONDS = 18.0
_ROUND_SECONDS = 0.1
_CPU_ROUND_SECONDS = 0.005  # of one thread, in its own CPU time: others that use the machine, too, do not count
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_GPU_SIZE, _CPU_SIZE = 8192, 512
_COPIED_BYTES = 1 << 28
_FLOPS_A_CYCLE = (("avx512f", 64), ("fma", 32), ("avx", 16), ("asimd", 16))
"""Operations a cycle in single precision of a core with two units for multiply and add, by flag of the processor."""
_USUAL_GHZ = 2.5
_TERA, _GIGA = 1e12, 1e9


def describe() -> "dict[str, Any]":
    """Return what the host has, as lscpu, the kernel and nvidia-smi say; the peak of its CPUs is reckoned."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    fields = dict(re.findall(r"(?m)^([^:\n]+):\s*(.*)$", _output("lscpu")))
    threads = int(fields.get("Thread(s) per core") or 1)
    clock = re.search(r"@ ([\d.]+)\s?GHz", fields.get("Model name", ""))
    ghz = float(clock[1]) if clock else float(fields.get("CPU max MHz") or 0) / 1000 or _USUAL_GHZ
    flags = set((fields.get("Flags") or "").split())
    cycle = next((flops for flag, flops in _FLOPS_A_CYCLE if flag in flags), 8)
    tflops = max(1, cpus // threads) * ghz * cycle / 1000
    return {
        "cpu": fields.get("Model name") or platform.processor() or platform.machine(),
        "cpus": cpus,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIGA, 1),
        "gpus": _gpus(),
        "cores": max(1, cpus // threads),
        "reckoned_tflops": {"fp32": round(tflops, 3), "fp64": round(tflops / 2, 3)},
    }


@functools.cache
def describe_once() -> "dict[str, Any]":
    return describe()


def _gpus() -> "list[dict[str, Any]]":
    rows = csv.reader(
        _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits").splitlines()
    )
    return [{"name": row[0].strip(), "memory_gb": round(float(row[1]) * 2**20 / _GIGA, 1)} for row in rows if row]


def _output(*command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands
            command, capture_output=True, text=True, timeout=10, check=False, env={**os.environ, "LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def measure(device: str = "gpu") -> "dict[str, Any]":
    """Measure what `describe` found.

    `device`: gpu: one GPU, if there is one that torch can use; else, and for cpu, the CPUs.
    """
    end = time.monotonic() + _MOST_SECONDS
    machine = describe()
    use_gpu = bool(machine["gpus"]) and device != "cpu"
    if not use_gpu:
        os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    torch = _import("torch")
    if use_gpu and torch is not None and torch.cuda.is_available():
        return {**machine, **_measure_gpu(torch, end), "device": "gpu"}
    if use_gpu:
        machine["unmeasured"] = "The GPUs were not measured: this Python has no torch that can use them."
    of_one = _measure_cpu(torch, end)
    machine["tflops"] = {name: float(f"{flops * machine['cores']:.4g}") for name, flops in of_one.items()}
    machine["memory_bandwidth_gb_per_s"] = round(_copy_rate(machine["cpus"]) / _GIGA, 1)
    return {**machine, "device": "cpu"}


def _import(name: str) -> "ModuleType | None":
    try:
        return importlib.import_module(name)
    except Exception:  # noqa: BLE001 - a broken installation raises anything; what needs it is left out
        return None


def _measure_gpu(torch: "ModuleType", end: float) -> "dict[str, Any]":
    wait = torch.cuda.synchronize

    def copy_rate() -> float:
        source = torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return _best(lambda: target.copy_(source), 2 * _COPIED_BYTES, wait)

    return {
        "memory_bandwidth_gb_per_s": round(copy_rate() / _GIGA, 1),
        "tflops": _products(_gpu_products(torch), end, wait),
    }


def _gpu_products(torch: "ModuleType") -> "dict[str, Callable[[], Any]]":
    """Return a maker of the operands' product for each type of number."""

    def plain(name: str, *, tf32: bool = False) -> "Callable[[], Callable[[], Any]]":
        def make() -> "Callable[[], Any]":
            torch.backends.cuda.matmul.allow_tf32 = tf32
            size = _GPU_SIZE // 2 if name == "float64" else _GPU_SIZE
            a, b = (torch.randn(size, size, device="cuda").to(getattr(torch, name)) for _ in range(2))
            return lambda: torch.matmul(a, b)

        return make

    def int8() -> "Callable[[], Any]":
        a, b = (torch.randint(-8, 8, (_GPU_SIZE, _GPU_SIZE), device="cuda", dtype=torch.int8) for _ in range(2))
        return lambda: torch._int_mm(a, b.t())  # noqa: SLF001 - torch has no other product of these

    def fp8() -> "Callable[[], Any]":
        a, b = (torch.randn(_GPU_SIZE, _GPU_SIZE, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        scale = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)  # noqa: SLF001 - PyTorch has no public one

    made = {"fp16": plain("float16"), "fp32": plain("float32"), "fp64": plain("float64"), "int8": int8}
    major = torch.cuda.get_device_capability()
    if major >= (8, 0):
        made |= {"tf32": plain("float32", tf32=True), "bf16": plain("bfloat16")}
    return {**made, "fp8": fp8} if major >= (8, 9) else made


def _measure_cpu(torch: "ModuleType | None", end: float) -> "dict[str, float]":
    library = torch or _import("numpy")
    if library is None:
        return {}
    names = {"fp32": "float32", "fp64": "float64"}
    if torch is not None:
        torch.set_num_threads(1)
        names["bf16"] = "bfloat16"

    def make(name: str) -> "Callable[[], Any]":
        ones = library.ones((_CPU_SIZE, _CPU_SIZE), dtype=getattr(library, name))
        return lambda: library.matmul(ones, ones)

    makers: dict[str, Callable[[], Any]] = {short: functools.partial(make, name) for short, name in names.items()}
    return _products(makers, end, clock=time.thread_time)


def _products(
    makers: "dict[str, Callable[[], Any]]",
    end: float,
    wait: "Callable[[], Any]" = lambda: None,
    clock: "Callable[[], float]" = time.perf_counter,
) -> "dict[str, float]":
    """Return 10^12 operations a second by type of number, without those that the device or the library lacks."""
    rates = {}
    for name, make in makers.items():
        if time.monotonic() > end:
            break
        try:
            product = make()
            result = product()
            wait()
            size = int(result.shape[0])
            rates[name] = float(f"{_best(product, 2 * size**3, wait, clock) / _TERA:.4g}")
        except (RuntimeError, TypeError, AttributeError, ValueError):
            continue
        finally:
            product = result = None  # frees the operands before the next ones are made
    return rates


def _best(
    work: "Callable[[], Any]",
    amount: float,
    wait: "Callable[[], Any]" = lambda: None,
    clock: "Callable[[], float]" = time.perf_counter,
) -> float:
    """Return the largest amount a second of several rounds, each of which lasts long enough to be timed."""
    work()
    wait()
    began, calls, best = time.perf_counter(), 1, 0.0
    least = _ROUND_SECONDS if clock is time.perf_counter else _CPU_ROUND_SECONDS
    while time.perf_counter() - began < _SECONDS:
        at = clock()
        for _ in range(calls):
            work()
        wait()
        passed = max(clock() - at, 1e-6)
        best = max(best, calls * amount / passed) if passed > least / 2 else best
        calls = max(1, min(10 * calls, round(calls * least / passed)))
    return best


def _copy_rate(threads: int) -> float:
    """Return bytes a second that threads on all CPUs read and write, each by its own CPU time."""
    share = _COPIED_BYTES // threads
    buffers = [(ctypes.create_string_buffer(share), ctypes.create_string_buffer(share)) for _ in range(threads)]

    def copy(pair: "tuple[Any, Any]") -> float:
        return _best(lambda: ctypes.memmove(*pair, share), 2 * share, clock=time.thread_time)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(copy, buffers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON in one line")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu", help="gpu: if there is one (default)")
    parsed = parser.parse_args()
    sys.stdout.write(json.dumps(measure(parsed.device), indent=None if parsed.json else 2) + "\n")
