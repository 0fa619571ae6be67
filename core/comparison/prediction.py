"""Predicts a run on other machine types from its measured figures, by the roofline model.

The least time of a step on a machine is its operations over the attainable peak, plus its bytes over the memory
bandwidth. A program reaches the same share of this pace on every machine, as far as the model goes; what a step takes
beyond that may be no work of the device, which no device makes shorter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log2

from core.catalogue.machine_types import MachineType
from core.comparison.bottleneck import Kind, busy_share, judge_device
from core.comparison.corrections import Correction
from core.comparison.measurement import RunFigures
from core.comparison.peaks import SINGLE, Peaks, peaks_of

METHOD = (
    "Estimates by the roofline model: a step takes its operations divided by the attainable peak plus its bytes "
    "divided by the memory bandwidth, at the measured share of that pace. The interval is a factor of 2 either "
    "way, plus time that may not be the device's work. The other host is assumed to prepare the input as fast. "
    "Only another run is a measurement."
)
_MARGIN = 2.0
_REACHED = 0.6
"""Share of the attainable pace that large convolutional nets reach on K80, T4 and P100; small ones reach a tenth."""
_EFFICIENCY_OF_DOUBLING = 0.9
_USABLE_MEMORY = 0.93  # share of a GPU's memory that a program sees: 15 of a T4's 16 GB
_GIGA = 1e9
_SECONDS_PER_HOUR = 3600
_SMALL_WAIT = 0.1
_DECLINED: Mapping[Kind, str] = {
    "overhead": "overhead between its operations",
    "startup": "its start-up",
    "communication": "communication between its replicas",
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated figure, and the interval that it is likely to lie in."""

    value: float
    low: float
    high: float

    @classmethod
    def within(cls, value: float, factor: float) -> "Estimate":
        """Return an estimate with an interval of a factor either way."""
        return cls(value, value / factor, value * factor)

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(factor * self.value, factor * self.low, factor * self.high)

    def plus(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value + other.value, self.low + other.low, self.high + other.high)


@dataclass(frozen=True, slots=True)
class Prediction:
    machine_type: str
    step_seconds: Estimate | None  # None: the pace of the run was not measured
    seconds: Estimate
    cost: Estimate  # US dollars of it
    fits: bool | None  # True if its memory is enough; None: not known
    memory_bytes: float | None  # device memory that the run needs, at the most; None: not measured
    correction: Correction | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The machine that a run had."""

    machine_type: str | None  # its name; None: it is no longer in the catalogue
    peaks: Peaks | None  # the peaks of the devices in use; None: not known
    bound_by: Kind | None = None  # the part that takes most of the run; None: not measured
    stand_in_for: str | None = None  # the machine type that it simulates


def missing_figures(run: RunFigures) -> list[str]:
    """Return the metrics without which nothing can be predicted."""
    names = ("steps_per_second", "flops_per_step", "bytes_per_step")
    return [name for name in names if getattr(run, name) is None]


def decline(run: RunFigures, source: Source, target: MachineType, *, bits: float | None = None) -> str | None:
    """Return why a run is not predicted on a machine type; None: it can be."""
    return None if _is_own(run, source, target, bits) else next(_reasons(run, source, target, bits), None)


def _reasons(run: RunFigures, source: Source, target: MachineType, bits: float | None) -> Iterator[str]:
    bound_by = source.bound_by
    if (run.input_wait_share or 0.0) > _SMALL_WAIT:
        share = f"{run.input_wait_share:.0%} of a step"
        yield f"About as fast: the run waits for its input {share}, which does not depend on the device."
    if bound_by is not None and bound_by in _DECLINED:
        yield _as_fast(bound_by)
    if missing := missing_figures(run):
        yield f"The job has not reported {', '.join(missing)}."
    if source.peaks is None:
        yield "The peaks of the machine that ran it are unknown."
    device = judge_device(run, source.peaks)
    if device == "overhead":
        yield _as_fast(device)
    if device is None:
        yield "The job's flops_per_step or bytes_per_step is wrong: its machine cannot do that much at this pace."
    if peaks_of(target, bits or run.compute_bits or SINGLE) is None:
        yield "The catalogue has no peak of this precision."
    if indivisible := _indivisible(run, target):
        yield indivisible


def _as_fast(kind: Kind) -> str:
    return f"About as fast: the run is bound by {_DECLINED[kind]}, which does not depend on the device."


def _indivisible(run: RunFigures, target: MachineType) -> str | None:
    if target.replicas <= (run.replicas or 1):
        return None
    if run.batch_size is None:
        return (
            f"It is not known whether the batch can be divided among {target.replicas} replicas: batch_size was not "
            "reported."
        )
    if run.batch_size % target.replicas:
        return f"A batch of {run.batch_size:g} cannot be divided evenly among {target.replicas} replicas."
    return None


def predict(
    run: RunFigures,
    source: Source,
    target: MachineType,
    *,
    bits: float | None = None,  # bits of the numbers to multiply; None: as in the run
    correction: Correction | None = None,
) -> Prediction | None:
    """Predict a run on a machine type; of its own, it is what was measured. Returns None if it is declined."""
    same_machine = _is_own(run, source, target, bits)
    wanted = bits or run.compute_bits or SINGLE
    peaks = peaks_of(target, wanted)
    step: Estimate | None
    notes: tuple[str, ...]
    if same_machine:
        correction, notes = None, (_describe_measurement(source, target),)
        step = Estimate.within(1 / run.steps_per_second, 1) if run.steps_per_second else None
        seconds = Estimate.within(run.seconds, 1)
    elif source.peaks is None or peaks is None or decline(run, source, target, bits=bits):
        return None
    else:
        step = predict_step(run, source.peaks, peaks, bits, correction)
        notes, seconds = tuple(_notes(run, target)), _total(run, step)
    memory = _memory(run, wanted)
    return Prediction(
        machine_type=target.name,
        step_seconds=step,
        seconds=seconds,
        cost=seconds.scaled(target.price_per_hour / _SECONDS_PER_HOUR),
        fits=_fits(memory, target),
        memory_bytes=memory and memory[1],
        correction=correction,
        notes=notes,
    )


def _is_own(run: RunFigures, source: Source, target: MachineType, bits: float | None) -> bool:
    machine_types = {source.machine_type, source.stand_in_for}
    return target.name in machine_types and bits in {None, run.compute_bits or SINGLE}


def _describe_measurement(source: Source, target: MachineType) -> str:
    if target.name == source.stand_in_for:
        return f"Measured: {target.name} was simulated; its row shows what this host took instead."
    return f"Measured: {target.name} is the run's machine type."


def predict_step(
    run: RunFigures, source: Peaks, target: Peaks, bits: float | None = None, correction: Correction | None = None
) -> Estimate:
    """Predict the time of a step in seconds. The run needs its pace, flops and bytes."""
    pace, flops, moved = run.steps_per_second or 1.0, run.flops_per_step or 0.0, run.bytes_per_step or 0.0
    waiting = run.input_wait_share or 0.0
    step_seconds = (1 - waiting) / pace
    factor = min(1.0, max(0.5, (bits or run.compute_bits or SINGLE) / (run.compute_bits or SINGLE)))
    least, before = target.seconds(flops, moved * factor), source.seconds(flops, moved)
    # An exchange of gradients costs, and each of more replicas has a smaller batch.
    ratio = least / before / _EFFICIENCY_OF_DOUBLING ** max(0.0, log2(target.replicas / source.replicas))
    ratio *= correction.ratio if correction else 1.0
    # Between all of the step and what the device needs of it gets shorter. Of a device that was not seen at work it is
    # not known whether it needs more than the least time.
    busy = busy_share(run, source)
    most = min(1.0, busy or 1.0, 1 - (run.communication_share or 0.0))
    usual, least_share = min(most, before / step_seconds / _REACHED), min(most, before / step_seconds)
    whole = step_seconds * ratio
    part, smallest = (step_seconds * (1 - share + share * ratio) for share in (usual, usual if busy else least_share))
    likely = whole if correction else (whole + part) / 2
    device = Estimate(likely, min(whole, smallest) / _MARGIN, max(whole, smallest) * _MARGIN)
    return device.plus(Estimate.within(waiting / pace, _MARGIN))


def _total(run: RunFigures, step: Estimate) -> Estimate:
    """Return the time of the whole run: what lies before, between and after the steps takes about as long."""
    training = run.seconds - run.before_steps
    stepping = training if run.stepping_seconds is None else min(training, run.stepping_seconds)
    pace = run.steps_per_second or 1.0
    estimate = step.scaled(pace * stepping).plus(Estimate.within(run.seconds - stepping, _MARGIN))
    # Before the first report and after the last there may be steps, too.
    all_steps = step.scaled(pace * training).plus(Estimate.within(run.seconds - training, _MARGIN))
    return Estimate(estimate.value, min(estimate.low, all_steps.low), max(estimate.high, all_steps.high))


def _memory(run: RunFigures, bits: float) -> tuple[float, float] | None:
    """Return the least and the most device memory that a run needs.

    Only the program itself knows what it uses: drivers count what a framework reserved, and the memory of processes
    holds more than a device would. In mixed precision the weights stay in single precision: more than half is needed.
    """
    bytes_used = run.peak_device_bytes or run.gpu_memory_bytes or run.peak_host_bytes or run.memory_bytes
    if bytes_used is None:
        return None
    factor = bits / (run.compute_bits or SINGLE)
    return (run.peak_device_bytes or 0.0) * min(1.0, factor), bytes_used * max(1.0, factor)


def _fits(memory: tuple[float, float] | None, target: MachineType) -> bool | None:
    if memory is None:
        return None
    least, most = memory
    total = target.memory_gb * _GIGA * (1.0 if target.kind == "cpu" else _USABLE_MEMORY)
    if most <= total / target.count:
        return True
    return False if least > total else None


def _notes(run: RunFigures, target: MachineType) -> list[str]:
    notes = []
    if run.input_wait_share is None:
        notes.append("Waiting for input was not measured and is assumed to be zero.")
    if run.compute_bits is None:
        notes.append("The precision was not measured; single precision is assumed.")
    if target.replicas > (run.replicas or 1):
        notes.append("More replicas are assumed to reach 90 % of their pace with each doubling.")
    return notes
