"""Predicts a run on other machine types from its measured figures, by the roofline model.

The least time of a step on a machine is its operations over the attainable peak, plus its bytes over the memory
bandwidth. A program reaches the same share of this pace on every machine, as far as the model goes; what a step takes
beyond the share that large networks reach may be launch overhead, which no device makes shorter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2, sqrt

from core.catalogue.machine_types import MachineType
from core.comparison.bottleneck import Kind
from core.comparison.corrections import Correction
from core.comparison.measurement import RunFigures
from core.comparison.peaks import SINGLE, Peaks, peaks_of

METHOD = (
    "Estimates by the roofline model: a step takes its operations over the attainable peak plus its bytes over the "
    "memory bandwidth, at the share of that pace which was measured. The interval is a factor of 2 either way: of "
    "published speed-ups, more than eight in ten lie inside. Nothing but another run is a measurement."
)
_MARGIN = 2.0
_CORRECTED_MARGIN = 1.5
_INPUT_MARGIN = 1.25
_REACHED = 0.6
"""Share of the attainable pace that large convolutional nets reach on K80, T4 and P100; small ones reach a tenth."""
_ASSUMED_SHARE = 0.3
_ASSUMED_MARGIN = 3.0
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

    def at_least(self, floor: float) -> "Estimate":
        return Estimate(*(max(floor, each) for each in (self.value, self.low, self.high)))

    def scaled(self, factor: float, offset: float = 0.0) -> "Estimate":
        return Estimate(*(offset + factor * each for each in (self.value, self.low, self.high)))


_SAME_RATE = Estimate(1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Prediction:
    machine_type: str
    step_seconds: Estimate
    seconds: Estimate
    cost: Estimate  # US dollars of it
    fits: bool | None  # True if its memory is enough; None: not known
    memory_bytes: float | None  # device memory that the run needs, at the most; None: not measured
    correction: Correction | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The machine that a run had."""

    machine_type: str | None  # its name; None: a stand-in, which is no machine of that name
    peaks: Peaks | None  # the peaks of the devices in use; None: not known, so a share of peak is assumed
    bound_by: Kind | None = None  # the part that takes most of the run; None: not measured
    host: MachineType | None = None  # its entry in the catalogue, for how fast its CPUs prepare input; None: not known


def missing_figures(run: RunFigures) -> list[str]:
    """Return the metrics without which nothing can be predicted."""
    names = ("steps_per_second", "flops_per_step", "bytes_per_step")
    return [name for name in names if getattr(run, name) is None]


def decline(run: RunFigures, source: Source, target: MachineType, *, bits: float | None = None) -> str | None:
    """Return why a run is not predicted on a machine type; None: it can be."""
    if _is_own(run, source, target, bits):
        return None
    if source.bound_by is not None and (cause := _DECLINED.get(source.bound_by)):
        return f"About as fast: the run is bound by {cause}, which no device makes shorter."
    if missing := missing_figures(run):
        return f"The job has not reported {', '.join(missing)}."
    if peaks_of(target, bits or run.compute_bits or SINGLE) is None:
        return "The catalogue has no peak of this precision."
    return _indivisible(run, target)


def _indivisible(run: RunFigures, target: MachineType) -> str | None:
    if target.replicas <= (run.replicas or 1):
        return None
    if run.batch_size is None:
        return f"Whether the batch divides over {target.replicas} replicas is not known: batch_size was not reported."
    if run.batch_size % target.replicas:
        return f"A batch of {run.batch_size:g} does not divide over {target.replicas} replicas."
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
    wanted = bits or run.compute_bits or SINGLE
    peaks = peaks_of(target, wanted)
    if missing_figures(run) or peaks is None or decline(run, source, target, bits=bits):
        return None
    own = _is_own(run, source, target, bits)
    pace = run.steps_per_second or 1.0
    correction = None if own else correction
    step = Estimate.within(1 / pace, 1)
    if not own:
        step = predict_step(run, source.peaks, peaks, bits, correction, _input_rate(source, target))
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
        notes=("Measured: it is the machine type of the run.",) if own else tuple(_notes(run, source, target)),
    )


def _is_own(run: RunFigures, source: Source, target: MachineType, bits: float | None) -> bool:
    return (
        source.machine_type == target.name
        and (run.replicas is None or run.replicas == target.replicas)
        and bits in {None, run.compute_bits or SINGLE}
    )


def predict_step(
    run: RunFigures,
    source: Peaks | None,
    target: Peaks,
    bits: float | None = None,
    correction: Correction | None = None,
    rate: Estimate = _SAME_RATE,
) -> Estimate:
    """Predict the time of a step in seconds. The run needs its pace, flops and bytes; input arrives at `rate`."""
    pace, flops, moved = run.steps_per_second or 1.0, run.flops_per_step or 0.0, run.bytes_per_step or 0.0
    factor = min(1.0, max(0.5, (bits or run.compute_bits or SINGLE) / (run.compute_bits or SINGLE)))
    least = target.seconds(flops, moved * factor)
    if source is None:
        assumed = Estimate.within(least / _ASSUMED_SHARE, _ASSUMED_MARGIN)
        return _slowest_part(run, rate, assumed.at_least(target.launch_seconds))
    own = (1 - (run.input_wait_share or 0.0)) / pace
    before = source.seconds(flops, moved)
    # An exchange of gradients costs, and each of more replicas has a smaller batch.
    ratio = least / before / _EFFICIENCY_OF_DOUBLING ** max(0.0, log2(target.replicas / source.replicas))
    if correction is not None:
        corrected = Estimate.within(own * ratio * correction.ratio, _CORRECTED_MARGIN)
        return _slowest_part(run, rate, corrected.at_least(target.launch_seconds))
    # Between none and all of the time beyond what large nets reach is launch overhead; the target has as much of it, or
    # as the measured launches of both are.
    fixed = max(0.0, 1 - before / own / _REACHED) / 2 if source.launches and target.launches else 0.0
    both = source.launch_seconds and target.launch_seconds
    launching = fixed * (target.launch_seconds / source.launch_seconds if both else 1.0)
    device = Estimate.within(own * (launching + (1 - fixed) * ratio), _MARGIN)
    return _slowest_part(run, rate, device.at_least(target.launch_seconds))


def _input_rate(source: Source, target: MachineType) -> Estimate:
    """Return how many times as fast a machine prepares input, by measured decoding, else between as fast and by CPUs.

    Where the CPUs of either are not known it is as fast.
    """
    host = source.host
    if host is None:
        return _SAME_RATE
    if host.decoded_images_per_s and target.decoded_images_per_s:
        return Estimate.within(target.decoded_images_per_s / host.decoded_images_per_s, _INPUT_MARGIN)
    if not host.cpus or not target.cpus:
        return _SAME_RATE
    cpus = target.cpus / host.cpus
    return Estimate(sqrt(cpus), min(1.0, cpus), max(1.0, cpus))


def _slowest_part(run: RunFigures, rate: Estimate, device: Estimate) -> Estimate:
    """Add the input to the device's time of a step."""
    pace, waiting = run.steps_per_second or 1.0, run.input_wait_share or 0.0
    if waiting <= _SMALL_WAIT:
        wait = waiting / pace  # as uncertain as the rest: no wait is known so well that it may hide the interval
        return Estimate(device.value + wait, device.low + wait / _MARGIN, device.high + wait * _MARGIN)
    floor = 1 / pace
    return Estimate(
        max(floor / rate.value, device.value),
        max(floor / rate.high, device.low),
        max(floor / rate.low * _INPUT_MARGIN, device.high),
    )


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


def _notes(run: RunFigures, source: Source, target: MachineType) -> list[str]:
    notes = []
    if source.peaks is None:
        notes.append("The peaks of the machine that ran it are not known: a share of 0.3 assumed, 0.1 to 0.9.")
    if run.input_wait_share is None:
        notes.append("Waiting for input was not measured; none is assumed.")
    elif run.input_wait_share > _SMALL_WAIT:
        known = _input_rate(source, target) != _SAME_RATE
        by = "faster or slower as the CPUs of the two hosts are" if known else "no faster on another machine"
        notes.append(f"The run waits for its input, which is assumed to be {by}.")
    if run.compute_bits is None:
        notes.append("The precision was not measured; single precision is assumed.")
    if target.replicas > (run.replicas or 1):
        notes.append("More replicas are assumed to reach 90 % of their pace with each doubling.")
    return notes
