"""Predictions beside published speed-ups: `python -m bench.trainer.published` prints the table.

docs/decisions/0038 has it; a test compares them. No row is left out because it misses.
"""

from dataclasses import replace
from typing import NamedTuple

from core.catalogue.machine_types import Catalogue
from core.comparison.measurement import RunFigures
from core.comparison.peaks import HALF, SINGLE, peaks_of
from core.comparison.prediction import Estimate, predict_step

STEPS = {
    "ResNet-32": (52886470656, 2763076328),
    "WRN-28-10": (4026876493824, 22442867688),
    "DavidNet": (1165092716544, 12803864336),
    "ResNet-50": (5.93e12, 1.88e11),
    "3D-UNet": (5.93e12, 1.88e11),
    "BERT layer": (1e12, 4.8e9),
}
"""Operations and bytes of a training step in single precision. The first three as the trainer counts them: batch 128,
DavidNet 512. The others from their papers: ResNet-50 at batch 256 moves 0.7 GB an image; 3D-UNet is taken as alike."""


class Published(NamedTuple):
    """A speed-up that somebody measured.

    Attributes:
        model: The network.
        source: Machine type of the slower run.
        target: Machine type of the other.
        low: The published speed-up, or the least of several.
        high: The largest.
        before: Bits of the numbers that the source multiplied.
        bits: Those of the target.
        replicas: Replicas of the target that were in use; None: all.
    """

    model: str
    source: str
    target: str
    low: float
    high: float
    before: int = SINGLE
    bits: int = SINGLE
    replicas: int | None = None

    @property
    def title(self) -> str:
        """The network and both machines."""
        names = [f"{self.source}{', mixed' * (self.before == HALF)}", f"{self.target}{', mixed' * (self.bits == HALF)}"]
        return f"{self.model}: {' → '.join(names)}{f', {self.replicas} replica' if self.replicas else ''}"


_K80, _T4, _P100 = 6187, 3437, 2821  # seconds of 10 epochs in single precision
_SECONDS = 3600.0
_V100, _V100_MIXED, _A100, _A100_MIXED = 367, 1200, 938, 2470  # images/s
PUBLISHED = [
    Published("ResNet-32", "CPU", "K80", 8, 9),
    Published("ResNet-32", "CPU", "V100", 50, 50),
    Published("ResNet-32", "CPU", "TPU", 100, 100),
    Published("ResNet-32", "K80", "V100", 50 / 9, 50 / 8),
    Published("ResNet-32", "K80", "TPU", 100 / 9, 100 / 8),
    Published("ResNet-32", "V100", "TPU", 2, 2, replicas=1),
    Published("ResNet-32", "V100", "TPU", 2, 2),
    Published("WRN-28-10", "K80", "T4", _K80 / _T4, _K80 / _T4),
    Published("WRN-28-10", "K80", "P100", _K80 / _P100, _K80 / _P100),
    Published("WRN-28-10", "K80", "T4", _K80 / 1874, _K80 / 1771, bits=HALF),
    Published("WRN-28-10", "K80", "P100", _K80 / 2854, _K80 / 2734, bits=HALF),
    Published("WRN-28-10", "T4", "P100", _T4 / _P100, _T4 / _P100),
    Published("WRN-28-10", "T4", "T4", _T4 / 1874, _T4 / 1771, bits=HALF),
    Published("WRN-28-10", "T4", "P100", _T4 / 2854, _T4 / 2734, bits=HALF),
    Published("WRN-28-10", "T4", "P100", 1771 / _P100, 1874 / _P100, before=HALF),
    Published("WRN-28-10", "T4", "P100", 1771 / 2854, 1874 / 2734, HALF, HALF),
    Published("WRN-28-10", "P100", "P100", _P100 / 2854, _P100 / 2734, bits=HALF),
    Published("DavidNet", "T4", "TPU", 5, 5),
    Published("ResNet-50", "V100", "A100", _A100 / _V100, _A100 / _V100),
    Published("ResNet-50", "V100", "V100", _V100_MIXED / _V100, _V100_MIXED / _V100, bits=HALF),
    Published("ResNet-50", "V100", "A100", _A100_MIXED / _V100, _A100_MIXED / _V100, bits=HALF),
    Published("ResNet-50", "V100", "A100", _A100 / _V100_MIXED, _A100 / _V100_MIXED, before=HALF),
    Published("ResNet-50", "V100", "A100", _A100_MIXED / _V100_MIXED, _A100_MIXED / _V100_MIXED, HALF, HALF),
    Published("ResNet-50", "A100", "A100", _A100_MIXED / _A100, _A100_MIXED / _A100, bits=HALF),
    Published("BERT layer", "V100", "A100", 136 / 64, 136 / 64, HALF, HALF),
    Published("ResNet-50", "A100-80GB", "H100", 1.8, 1.8, HALF, HALF),
    Published("3D-UNet", "A100-80GB", "H100", 1.4, 1.4, HALF, HALF),
]


def speedup(published: Published) -> Estimate:
    """Predict a published speed-up."""
    catalogue = Catalogue.packaged()
    flops, moved = STEPS[published.model]
    source_type = catalogue.get(published.source)
    run = RunFigures(
        seconds=_SECONDS,
        stepping_seconds=_SECONDS,
        gpu_busy_share=1.0,
        busy_cpus=source_type.cpus,
        steps_per_second=1,
        flops_per_step=flops,
        bytes_per_step=moved * published.before / SINGLE,
        compute_bits=published.before,
    )
    source = peaks_of(source_type, published.before)
    target = peaks_of(catalogue.get(published.target), published.bits, published.replicas)
    if source is None or target is None:
        raise LookupError(f"the catalogue has no peaks for {published.title}")
    # Published are ratios alone: the pace is that at which the source reaches what large networks reach.
    pace = 0.6 / source.seconds(flops, run.bytes_per_step or 0.0)
    step = predict_step(replace(run, steps_per_second=pace), source, target, published.bits)
    return Estimate(*(1 / pace / bound for bound in (step.value, step.high, step.low)))


def is_inside(published: Published) -> bool:
    """Return whether the published figure lies in the predicted interval."""
    estimate = speedup(published)
    return estimate.low <= published.high and published.low <= estimate.high


def table() -> str:
    """Return the table of docs/decisions/0038-predictions-by-a-roofline.md."""
    lines = ["| network and machines | published | predicted | interval | inside |", "|---|---|---|---|---|"]
    for result in PUBLISHED:
        estimate = speedup(result)
        measured = f"{result.low:.2f}" + (f"-{result.high:.2f}" if result.low != result.high else "")
        cells = [result.title, measured, f"{estimate.value:.2f}", f"{estimate.low:.2f}-{estimate.high:.2f}"]
        lines.append(f"| {' | '.join(cells)} | {'yes' if is_inside(result) else '**no**'} |")
    inside = sum(map(is_inside, PUBLISHED))
    return "\n".join([*lines, "", f"Inside are {inside} of {len(PUBLISHED)}, {inside / len(PUBLISHED):.0%}."])


if __name__ == "__main__":
    print(table())
