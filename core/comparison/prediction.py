"""Predicts a run on other machine types from its measured figures, by the roofline model.

The least time of a step on a machine is its operations over the attainable peak, plus its bytes over the memory
bandwidth. A program reaches the same share of this pace on every machine, as far as the model goes. Habitat (Yu et al.,
USENIX ATC 2021) scales each operation between the two ratios; here only a whole step is measured, so the interval
spans scaling by either ratio alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from core.catalogue.machine_types import MachineType
from core.comparison.peaks import SINGLE, Peaks, peaks_of
from core.comparison.run_figures import RunFigures

METHOD = (
    "Estimates by the roofline model: a step takes its operations over the attainable peak plus its bytes over the "
    "memory bandwidth, at the share of that pace which was measured. The interval spans scaling by peak alone and by "
    "bandwidth alone, and 25 % on either side."
)
_MARGIN = 1.25
"""Twice the mean error of Habitat, 11.8 %, which scales operation by operation."""
_ASSUMED_SHARES = (0.6, 0.3, 0.1)
"""Shares of the attainable pace of a program of which none was measured: best, likely, worst. Large convolutional nets
reach 0.6 on K80, T4 and P100; small ones a tenth."""
_USABLE_MEMORY = 0.93
"""Share of a GPU's memory that a program sees: 15 of a T4's 16 GB."""
_GIGA = 1e9
_SECONDS_PER_HOUR = 3600
_FOR_SPREAD = 3
_SMALL_WAIT = 0.1


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated figure, and the interval that it is likely to lie in."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float, offset: float = 0.0) -> "Estimate":
        """Return offset + factor x estimate."""
        return Estimate(*(offset + factor * each for each in (self.value, self.low, self.high)))


@dataclass(frozen=True, slots=True)
class Correction:
    """The experience of this installation with predictions for a machine type.

    Attributes:
        ratio: Geometric mean of measured over predicted time of a step.
        low: Smallest ratio.
        high: Largest ratio.
        count: Number of predictions that were compared with measurements.
    """

    ratio: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Correction":
        """Summarize ratios of measured over predicted time."""
        return cls(exp(sum(map(log, ratios)) / len(ratios)), min(ratios), max(ratios), len(ratios))


@dataclass(frozen=True, slots=True)
class Prediction:
    """A run on another machine type.

    Attributes:
        machine_type: Its name.
        step_seconds: Time of a step.
        seconds: Running time of the same run.
        cost: US dollars of it.
        fits: True if its memory is enough; None: not known.
        memory_bytes: Device memory that the run needs, at the most; None: not measured.
        correction: The correction that is part of the estimates.
        notes: Assumptions.
    """

    machine_type: str
    step_seconds: Estimate
    seconds: Estimate
    cost: Estimate
    fits: bool | None
    memory_bytes: float | None
    correction: Correction | None
    notes: tuple[str, ...]


def missing_figures(run: RunFigures) -> list[str]:
    """Return the metrics without which nothing can be predicted."""
    names = ("steps_per_second", "flops_per_step", "bytes_per_step")
    return [name for name in names if getattr(run, name) is None]


def predict(
    run: RunFigures,
    source: Peaks | None,
    target: MachineType,
    *,
    bits: float | None = None,
    correction: Correction | None = None,
) -> Prediction | None:
    """Predict a run on a machine type.

    Args:
        run: The figures of a measured run.
        source: The peaks of the devices that it had; None: not known, so a share of peak is assumed.
        target: The machine type.
        bits: Bits of the numbers to multiply; None: as in the run.
        correction: Experience with predictions for this machine type.

    Returns:
        None if the run lacks a figure, or the catalogue the peak.
    """
    wanted = bits or run.compute_bits or SINGLE
    peaks = peaks_of(target, wanted)
    if peaks is None or missing_figures(run):
        return None
    step = predict_step(run, source, peaks, bits=wanted)
    if correction is not None:
        step = correct_step(step, correction)
    pace = run.steps_per_second or 1.0
    seconds = step.scaled(pace * (run.seconds - run.before_steps), run.before_steps)
    memory = _memory(run, wanted)
    return Prediction(
        machine_type=target.name,
        step_seconds=step,
        seconds=seconds,
        cost=seconds.scaled(target.price_per_hour / _SECONDS_PER_HOUR),
        fits=_fits(memory, target),
        memory_bytes=memory and memory[1],
        correction=correction,
        notes=tuple(_notes(run, source, target)),
    )


def predict_step(run: RunFigures, source: Peaks | None, target: Peaks, *, bits: float) -> Estimate:
    """Predict the time of a step in seconds. The run needs its pace, flops and bytes."""
    pace, flops, moved = run.steps_per_second or 1.0, run.flops_per_step or 0.0, run.bytes_per_step or 0.0
    waiting = run.input_wait_share or 0.0
    own_bytes = moved * _byte_factor(run, bits)
    least = target.seconds(flops, own_bytes)
    if source is None:
        step = Estimate(*(least / share for share in (_ASSUMED_SHARES[1], _ASSUMED_SHARES[0], _ASSUMED_SHARES[2])))
    else:
        own = (1 - waiting) / pace
        ratios = [
            least / source.seconds(flops, moved),
            source.attainable_flops / target.attainable_flops,
            own_bytes / moved * source.bandwidth / target.bandwidth,
        ]
        step = Estimate(own * ratios[0], own * min(ratios) / _MARGIN, own * max(ratios) * _MARGIN)
    # A run that waits for its input gets it no faster on another machine.
    floor = 1 / pace if waiting > _SMALL_WAIT else 0.0
    return Estimate(*(max(floor, each) for each in (step.value, step.low, step.high)))


def correct_step(step: Estimate, correction: Correction) -> Estimate:
    """Scale the estimated time of a step by this installation's experience with the machine type."""
    value = step.value * correction.ratio
    if correction.count < _FOR_SPREAD:
        return step.scaled(correction.ratio)
    return Estimate(value, step.value * correction.low / _MARGIN, step.value * correction.high * _MARGIN)


def _byte_factor(run: RunFigures, bits: float) -> float:
    return min(1.0, max(0.5, bits / (run.compute_bits or SINGLE)))


def _memory(run: RunFigures, bits: float) -> tuple[float, float] | None:
    """Return the least and the most device memory that a run needs.

    Only the program itself knows what it uses: drivers count what a framework reserved, and the memory of processes
    holds more than a device would. In mixed precision the weights stay in single precision: more than half is needed.
    """
    known = run.peak_device_bytes or run.gpu_memory_bytes or run.peak_host_bytes or run.memory_bytes
    if known is None:
        return None
    factor = bits / (run.compute_bits or SINGLE)
    return (run.peak_device_bytes or 0.0) * min(1.0, factor), known * max(1.0, factor)


def _fits(memory: tuple[float, float] | None, target: MachineType) -> bool | None:
    if memory is None:
        return None
    least, most = memory
    total = target.memory_gb * _GIGA * (1.0 if target.kind == "cpu" else _USABLE_MEMORY)
    if most <= total / target.count:
        return True
    return False if least > total else None


def _notes(run: RunFigures, source: Peaks | None, target: MachineType) -> list[str]:
    notes = []
    if source is None:
        notes.append("The peaks of the machine that ran it are not known: a tenth to six tenths of the pace assumed.")
    if run.input_wait_share is None:
        notes.append("Waiting for input was not measured; none is assumed.")
    elif run.input_wait_share > _SMALL_WAIT:
        notes.append("The run waits for its input, which is assumed to be no faster on another machine.")
    if run.compute_bits is None:
        notes.append("The precision was not measured; single precision is assumed.")
    if target.replicas > 1 and target.replicas != run.replicas:
        notes.append("Of a machine with several replicas, the program is assumed to use all.")
    return notes
