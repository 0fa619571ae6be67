"""Human-readable numbers."""

import pytest

from core.formatting import format_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345_678, "12.3 MB"), (5 * 10**15, "5000.0 TB")],
)
def test_sizes(count, text):
    assert format_bytes(count) == text
