"""Peaks of machine types, and the part of them that programs can reach."""

from dataclasses import dataclass, replace

from core.catalogue.machine_types import MachineType
from core.comparison.measurement import RunFigures

HALF = 16
SINGLE = 32
_HALF_NAMES = ("bf16", "fp16")
_OF_MATRIX_UNITS = frozenset({"tf32", "bf16", "fp8"})  # types of number that GPUs only have with matrix units
_MATRIX_RATIO = 3
"""Half precision this much faster than single comes from matrix units, too: V100 and T4 have fp16 alone. The P100
stores halves but mostly multiplies singles: cuDNN does so there, and nothing is gained."""
MATRIX_UNIT_SHARE = 0.26
"""Share of a matrix unit's peak that programs reach, over the share they reach of single precision's. ResNet-50 on
V100s: 5,815.8 images/s mixed and 2,857.9 single (NVIDIA DeepLearningExamples, 2019), peaks of 125 and 15.7 TFLOPS."""
_TERA = 1e12
_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Peaks:
    flops: float  # operations a second at the program's precision
    attainable_flops: float
    bandwidth: float  # bytes a second, all devices together
    replicas: float = 1
    cpus: float | None = None  # CPUs that do the work; None: another device does it

    def seconds(self, flops: float, moved: float) -> float:
        """Return the least time of a step that computes and moves in turn."""
        return flops / self.attainable_flops + moved / self.bandwidth


def peaks_of(machine: MachineType, bits: float, replicas: float | None = None) -> Peaks | None:
    """Return the peaks of the replicas in use, or of all; None if the catalogue has none for this precision.

    `bits`: of the numbers that are multiplied, 64, 32, or 16 in mixed precision. Devices that have TF32 multiply
    singles in it, as TensorFlow and cuDNN do unless told otherwise.
    """
    used = machine.replicas if replicas is None else min(machine.replicas, replicas)
    share = used / machine.replicas
    peaks = machine.peak_tflops
    half = max((peaks[name] for name in _HALF_NAMES if name in peaks), default=0.0)
    single = peaks.get("fp32", 0.0)
    # TPUs multiply in bfloat16 whatever the program's precision.
    has_units = half >= _MATRIX_RATIO * single or bool(_OF_MATRIX_UNITS & peaks.keys())
    matrix = peaks.get("tf32", 0.0) if bits > HALF and single else has_units * half
    if bits > SINGLE:
        single, matrix = peaks.get("fp64", 0.0), 0.0
    flops = (matrix or single) * share * _TERA
    if not flops:
        return None
    # A device's own vector units may be faster than what programs reach of its matrix units.
    attainable = max(flops * MATRIX_UNIT_SHARE, single * share * _TERA) if matrix else flops
    bandwidth = (
        (machine.measured_bandwidth_gb_per_s or machine.memory_bandwidth_gb_per_s) * machine.count * share * _GIGA
    )
    return Peaks(flops, attainable, bandwidth, used, machine.cpus if machine.kind == "cpu" else None)


def peaks_of_run(run: RunFigures, machine: MachineType | None) -> Peaks | None:
    """Return the peaks of what a run had of the machine that ran it; None: not known."""
    peaks = peaks_of(machine, run.compute_bits or SINGLE, run.replicas) if machine else None
    if peaks is None or peaks.cpus is None or run.cpu_limit is None or run.cpu_limit >= peaks.cpus:
        return peaks
    share = run.cpu_limit / peaks.cpus
    flops, attainable = peaks.flops * share, peaks.attainable_flops * share
    return replace(peaks, flops=flops, attainable_flops=attainable, cpus=run.cpu_limit)
