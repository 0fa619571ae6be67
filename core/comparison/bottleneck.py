"""The judgement of a run: the part of it that takes most of its time, and the remedies."""

from dataclasses import dataclass
from typing import Literal

from core.comparison.measurement import RunFigures
from core.comparison.peaks import SINGLE, Peaks

Kind = Literal["input", "compute", "memory", "communication", "startup", "overhead"]
_MOST = 0.5
_WORTH_ADVICE = 0.25  # parts of the running time from which their removal is worth the work
_OVERHEAD_BELOW = 0.1  # share of the attainable peaks below which neither of them limits a step
_POSSIBLE = 2.0
"""A step that does more than this many times its peaks is counted wrongly. Peaks may be a little too low: they are
reckoned from a processor's usual clock."""
_IDLE_BELOW = 0.7
"""A GPU that never worked more of the time waits for its host. An H100 trained a small network at 49 %."""
_SAMPLED_SECONDS = 6.0  # training of three samples of the worker; a shorter one may lie between two

_PEAKS = "peaks"
_OF_PARTS = frozenset({"steps_per_second", "input_wait_share", "replicas", "communication_share"})
"""Metrics without which the device's own work may be less than another part."""

_NAMES: dict[Kind, str] = {
    "input": "input",
    "compute": "computation",
    "memory": "memory bandwidth",
    "communication": "communication between replicas",
    "startup": "start-up",
    "overhead": "overhead between the device's operations",
}
_PARTS: dict[Kind, str] = {
    "startup": "of the running time before the first step",
    "input": "of the running time waiting for input",
    "communication": "of the running time communicating",
}
_ADVICE: dict[Kind, tuple[str, ...]] = {
    "input": (
        "Cache the prepared examples: decode and resize them once, and read the result from memory or from storage.",
        "Prepare batches in parallel and ahead of the step, on a host with more CPUs.",
        "Store few large files instead of many small ones.",
        "Until then, a cheaper machine is about as fast, because the device mostly waits.",
    ),
    "compute": ("Use a machine with a higher peak: `gradient-cli predict` estimates time and cost for each.",),
    "memory": (
        "Compile the step, for example with XLA, so that layers are fused and move less data.",
        "Use a machine with more memory bandwidth: `gradient-cli predict` estimates time and cost for each.",
    ),
    "communication": ("Use a larger batch on each replica, or fewer replicas.",),
    "startup": (
        "Run longer, or use a cheaper machine for short runs: the time before the first step is paid in full.",
        "Keep prepared data and compiled programs in storage for the next run.",
    ),
    "overhead": (
        "Use a larger batch, or do several steps in one call: the device is idle between its operations.",
        "A cheaper machine may be just as fast.",
    ),
}
_WRONG = (
    "Not measured: flops_per_step or bytes_per_step is wrong, because the machine cannot do that much at this pace."
)
_MIXED_PRECISION = "Use mixed precision: half as many bytes, and matrix units if the device has them."


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float  # a share: 0..1
    text: str


@dataclass(frozen=True, slots=True)
class Bottleneck:
    kind: Kind | None  # the part that takes most of the time; None: not measured
    summary: str
    figures: tuple[Figure, ...]
    advice: tuple[str, ...]
    missing: tuple[str, ...]


def judge(run: RunFigures, peaks: Peaks | None) -> Bottleneck:
    """Judge a run: the largest of start-up, waiting for input, communication and the device's own work.

    The device's work is compute-bound or memory-bound by the roofline model. It is neither if a step reaches less than
    a tenth of what the device could do, or if the driver saw the GPU idle for much of the time. `peaks`: the peaks of
    the devices it had; None: not known.
    """
    parts = _parts(run)
    device = judge_device(run, peaks)
    figures = [Figure(f"{kind}_share", share, f"{share:.0%} {_PARTS[kind]}") for kind, share in parts.items()]
    if run.input_wait_share_error is not None:
        text = f"waiting for input is known to within {run.input_wait_share_error:.0%}"
        figures.append(Figure("input_wait_share_error", run.input_wait_share_error, text))
    figures += _device_figures(run, peaks)
    missing = _missing(run, peaks)
    rest = 1 - sum(parts.values())
    certain = not _OF_PARTS & set(missing)
    kind = max(parts, key=parts.__getitem__, default=None)
    if kind is None or (parts[kind] < _MOST and (parts[kind] < rest or not certain)):
        kind = device if certain else None
    summary = _summarize(kind, parts, missing) if kind or missing else _WRONG
    return Bottleneck(kind, summary, tuple(figures), _advise(kind, parts, run), tuple(missing))


def _parts(run: RunFigures) -> dict[Kind, float]:
    """Return shares of the running time."""
    starting = run.startup_seconds is not None or run.compile_seconds is not None
    startup = run.before_steps / run.seconds if starting and run.seconds else None
    training = 1 - (startup or 0.0)
    waiting, talking = run.input_wait_share, run.communication_share
    shares: dict[Kind, float | None] = {
        "startup": startup,
        "input": None if waiting is None else waiting * training,
        "communication": None if talking is None else min(talking, 1 - (waiting or 0.0)) * training,
    }
    return {kind: share for kind, share in shares.items() if share is not None}


def _reached(run: RunFigures, peaks: Peaks | None) -> tuple[float, float, float] | None:
    """Return the shares of a step's own time that computing and moving need at the least, and its share of peak."""
    if peaks is None or not (run.steps_per_second and run.flops_per_step and run.bytes_per_step):
        return None
    seconds = max(1 - (run.input_wait_share or 0.0), 1e-6) / run.steps_per_second
    computing = run.flops_per_step / peaks.attainable_flops / seconds
    return computing, run.bytes_per_step / peaks.bandwidth / seconds, run.flops_per_step / peaks.flops / seconds


def judge_device(run: RunFigures, peaks: Peaks | None) -> Kind | None:
    """Return what limits a step of the device; None: not measured, or its figures cannot be right."""
    reached = _reached(run, peaks)
    if reached is None or _is_impossible(reached):
        return None
    computing, moving, _ = reached
    if computing + moving < _OVERHEAD_BELOW or (busy_share(run, peaks) or 1.0) < _IDLE_BELOW:
        return "overhead"
    return "compute" if computing >= moving else "memory"


def busy_share(run: RunFigures, peaks: Peaks | None) -> float | None:
    """Return the largest share of a sample's time in which the device was at work; None: not sampled."""
    if run.seconds - run.before_steps < _SAMPLED_SECONDS:
        return None
    if peaks is None or peaks.cpus is None:
        return run.gpu_busy_share
    return min(1.0, run.busy_cpus / peaks.cpus) if run.busy_cpus else None


def _is_impossible(reached: tuple[float, float, float]) -> bool:
    _, moving, share_of_peak = reached
    return max(moving, share_of_peak) > _POSSIBLE


def _device_figures(run: RunFigures, peaks: Peaks | None) -> list[Figure]:
    reached = _reached(run, peaks)
    if reached is None:
        return []
    _, moving, share = reached
    busy = busy_share(run, peaks)
    device = "gpu" if peaks is None or peaks.cpus is None else "cpu"
    text = f"the {device.upper()} worked at most {busy or 0:.0%} of the time"
    return [
        *([Figure(f"{device}_busy_share", busy, text)] if busy else []),
        Figure("flops_share", share, f"{share:.0%} of the peak operations a second, while not waiting for input"),
        Figure("bandwidth_share", moving, f"{moving:.0%} of the memory bandwidth, while not waiting for input"),
    ]


def _missing(run: RunFigures, peaks: Peaks | None) -> list[str]:
    names = ["steps_per_second", "input_wait_share", "flops_per_step", "bytes_per_step"]
    if run.replicas != 1:
        names.append("replicas" if run.replicas is None else "communication_share")
    missing = [name for name in names if getattr(run, name) is None]
    return missing if peaks else [*missing, _PEAKS]


def _summarize(kind: Kind | None, parts: dict[Kind, float], missing: list[str]) -> str:
    if kind is None:
        names = ", ".join(name for name in missing if name != _PEAKS)
        reasons = [f"the job's metrics lack {names}"] if names else []
        if _PEAKS in missing:
            reasons.append("the peak figures of its machine type are unknown")
        return f"Not measured: {'; '.join(reasons)}."
    if kind in parts:
        return f"Bound by {_NAMES[kind]}: {parts[kind]:.0%} of the running time."
    return f"Bound by {_NAMES[kind]}."


def _advise(kind: Kind | None, parts: dict[Kind, float], run: RunFigures) -> tuple[str, ...]:
    kinds = [kind] if kind else []
    kinds += [part for part, share in parts.items() if share >= _WORTH_ADVICE and part != kind]
    mixed = kind in {"compute", "memory"} and (run.compute_bits or SINGLE) >= SINGLE
    return (*([_MIXED_PRECISION] if mixed else []), *(text for part in kinds for text in _ADVICE[part]))
