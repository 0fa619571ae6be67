"""Predictions beside figures that others measured and published, as docs/comparing.md shows them."""

from pathlib import Path
from typing import NamedTuple

import pytest

from core.catalogue.machine_types import Catalogue
from core.comparison.peaks import HALF, SINGLE, peaks_of
from core.comparison.prediction import predict_step
from core.comparison.run_figures import RunFigures

DOCUMENT = Path(__file__).parents[3] / "docs" / "comparing.md"
STEPS = {
    "ResNet-32": (52886470656, 2763076328),
    "WRN-28-10": (4026876493824, 22442867688),
    "DavidNet": (1165092716544, 12803864336),
}
"""Operations and bytes of a training step in single precision, as the trainer counts them: batch 128, DavidNet 512."""


class Published(NamedTuple):
    """A speed-up that somebody measured."""

    model: str
    source: str
    target: str
    low: float
    high: float
    bits: int = SINGLE
    replicas: int | None = None

    @property
    def title(self):
        kind = ", mixed" if self.bits == HALF else ""
        part = f", {self.replicas} replica" if self.replicas else ""
        return f"{self.model}: {self.source} → {self.target}{kind}{part}"


K80, T4, P100 = 6187, 3437, 2821  # seconds of 10 epochs in single precision
PUBLISHED = [
    Published("ResNet-32", "CPU", "K80", 8, 9),
    Published("ResNet-32", "CPU", "V100", 50, 50),
    Published("ResNet-32", "V100", "TPU", 2, 2, replicas=1),
    Published("ResNet-32", "V100", "TPU", 2, 2),
    Published("WRN-28-10", "K80", "T4", K80 / T4, K80 / T4),
    Published("WRN-28-10", "K80", "P100", K80 / P100, K80 / P100),
    Published("WRN-28-10", "T4", "P100", T4 / P100, T4 / P100),
    Published("WRN-28-10", "T4", "T4", T4 / 1874, T4 / 1771, bits=HALF),
    Published("WRN-28-10", "P100", "P100", P100 / 2854, P100 / 2734, bits=HALF),
    Published("DavidNet", "T4", "TPU", 5, 5),
]


@pytest.fixture(scope="module")
def catalogue():
    return Catalogue.load()


def speedup(catalogue, published):
    """The predicted speed-up, least and largest."""
    flops, moved = STEPS[published.model]
    run = RunFigures(seconds=1, steps_per_second=1, flops_per_step=flops, bytes_per_step=moved, compute_bits=SINGLE)
    source = peaks_of(catalogue.get(published.source), SINGLE)
    target = peaks_of(catalogue.get(published.target), published.bits, published.replicas)
    step = predict_step(run, source, target, bits=published.bits)
    return 1 / step.value, 1 / step.high, 1 / step.low


def row(catalogue, published):
    value, low, high = speedup(catalogue, published)
    inside = low <= published.high and published.low <= high
    measured = f"{published.low:.2f}" + (f"-{published.high:.2f}" if published.low != published.high else "")
    return f"| {published.title} | {measured} | {value:.2f} | {low:.2f}-{high:.2f} | {'yes' if inside else '**no**'} |"


def test_the_documented_table_is_what_the_code_predicts(catalogue):
    text = DOCUMENT.read_text()
    rows = [row(catalogue, each) for each in PUBLISHED]
    assert "\n".join(rows) in text, "\n".join(["copy these rows into docs/comparing.md:", *rows])


@pytest.mark.parametrize(
    "published", [each for each in PUBLISHED if each.model == "WRN-28-10"], ids=lambda each: each.title
)
def test_large_networks_are_predicted_within_a_quarter(catalogue, published):
    value, _, _ = speedup(catalogue, published)
    assert published.low / 1.25 <= value <= published.high * 1.25
