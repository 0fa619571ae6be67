"""Search for text in the raw bytes of a log, without an index: a gigabyte takes a few seconds."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import NamedTuple

_BLOCK = 1 << 20
_COLOURS = re.compile(rb"\x1b\[[0-9;:]*m")
_ERRORS = (
    *(b"Traceback (most recent call last)", b"Error", b"Exception", b"error:", b"ERROR", b"FATAL", b"out of memory"),
    *(b" nan", b"=nan", b"Segmentation fault"),
)
"""Texts of lines that look like errors. Several literal searches are much faster than one regular expression."""


class FoundLines(NamedTuple):
    lines: list[int]
    searched_to: int
    complete: bool


class LineRange(NamedTuple):
    """Lines to search: those after line `after`, up to line `last`, at the raw offsets from `start` to `end`."""

    start: int
    end: int
    after: int
    last: int


def find_lines(
    read: Callable[[int, int], bytes],  # returns the raw bytes at (offset, length)
    lines: LineRange,
    text: str | None,  # the text, without a line end; None: what looks like an error
    *,
    match_case: bool,  # whether upper and lower case differ; otherwise ASCII letters match in any case
    limit: int,
    seconds: float,
) -> FoundLines:
    """Find the lines whose text, without colours, contains a literal text, or looks like an error."""
    fold_case = text is not None and not match_case
    literals = _ERRORS if text is None else (text.encode(errors="replace"),)
    needles = [literal.lower() for literal in literals] if fold_case else literals
    deadline = time.monotonic() + seconds
    numbers: list[int] = []
    start, line = lines.start, lines.after
    while start < lines.end:
        if time.monotonic() > deadline and line > lines.after:
            return FoundLines(numbers, line, complete=False)
        data = read(start, min(_BLOCK, lines.end - start))
        plain = _COLOURS.sub(b"", data) if b"\x1b" in data else data
        for number in _matches(plain.lower() if fold_case else plain, needles, line + 1):
            if not numbers or number > numbers[-1]:  # the end of the block before was searched already
                numbers.append(number)
            if len(numbers) == limit:
                return FoundLines(numbers, number, complete=number >= lines.last)
        # The next block overlaps, to miss no match. A short one is the last: a running job may have cut the file.
        step = _BLOCK - max(map(len, needles)) + 1 if len(data) == _BLOCK else lines.end - start
        line += data.count(b"\n", 0, step)
        start += step
    return FoundLines(numbers, lines.last, complete=True)


def _matches(data: bytes, needles: Iterable[bytes], number: int) -> Iterator[int]:
    """Yield the numbers of the lines with a needle; `number` is that of the line in which the data begins."""
    counted = 0
    for offset in merge(*(_offsets(data, needle) for needle in needles)):
        number += data.count(b"\n", counted, offset)
        yield number
        counted = offset


def _offsets(data: bytes, needle: bytes) -> Iterator[int]:
    at = 0
    while (offset := data.find(needle, at)) >= 0:
        yield offset
        at = data.find(b"\n", offset)
        if at < 0:
            return
