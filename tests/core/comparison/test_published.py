"""Predictions beside figures that others measured and published, as docs/decisions/0038 shows them."""

from pathlib import Path

import pytest

from bench.trainer.published import PUBLISHED, is_inside, speedup, table

DOCUMENT = Path(__file__).parents[3] / "docs" / "decisions" / "0038-predictions-by-a-roofline.md"


def test_the_documented_table_is_what_the_code_predicts():
    assert table() in DOCUMENT.read_text(), f"copy these rows into {DOCUMENT}:\n{table()}"


def test_most_published_speedups_lie_in_intervals_of_a_factor_of_four():
    assert sum(map(is_inside, PUBLISHED)) >= 0.8 * len(PUBLISHED)
    for each in PUBLISHED:
        found = speedup(each)
        assert found.high / found.low <= 4.001


@pytest.mark.parametrize(
    "published",
    [each for each in PUBLISHED if each.model == "WRN-28-10"],
    ids=lambda each: each.title,
)
def test_large_networks_are_predicted_within_a_quarter(published):
    assert published.low / 1.25 <= speedup(published).value <= published.high * 1.25
