"""Amounts of memory as people write them."""

import pytest

from gradient_cli.errors import UsageError
from gradient_cli.workspace.memory_size import parse

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("given", "mebibytes"),
    [
        (512, 512),
        ("512", 512),
        ("512MB", 512),
        ("512 MiB", 512),
        ("16GB", 16384),
        ("16gib", 16384),
        ("16G", 16384),
        ("1.5GB", 1536),
        ("1T", 1024**2),
    ],
)
def test_a_number_may_have_a_unit(given, mebibytes):
    assert parse("memoryMb", given) == mebibytes


@pytest.mark.parametrize("given", ["", "GB", "1.5", "16KB", "-1", "-1GB", "16GBs", "1e3", True, 1.5])
def test_anything_else_is_refused_with_what_to_write(given):
    with pytest.raises(UsageError, match=r"memoryMb: .* is not a memory size") as refused:
        parse("memoryMb", given)
    assert "16384" in refused.value.hint
