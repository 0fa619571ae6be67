"""Tables of comma- or tab-separated values: their first rows, sorted by a column."""

import csv
import io
import math
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

_ROWS = 1000
_COLUMNS = 100
_CELLS = 20_000  # most values of all rows together
_CELL = 300


class TableOrder(NamedTuple):
    """The number of the column that a table is sorted by, from 1; 0: the file's order."""

    column: int = 0
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    header: list[str]
    rows: list[list[str]]
    numeric: list[bool]
    order: TableOrder
    cut: bool


def read_table(text: str, delimiter: str, order: TableOrder, *, cut: bool) -> Table | None:
    """Read the beginning of a table; None: the text is not one.

    `cut`: whether `text` is only the beginning: its last line may be incomplete.
    """
    if cut:
        text = text.rpartition("\n")[0]
    first = text.partition("\n")[0]
    if delimiter == "," and first.count(";") > first.count(","):
        delimiter = ";"
    try:
        read = list(islice(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), _ROWS + 2))
    except csv.Error:
        return None
    lines = [line for line in read if line]
    if not lines:
        return None
    header, *rows = [[cell[:_CELL] for cell in line[:_COLUMNS]] for line in lines]
    width = len(header)
    most = min(_ROWS, _CELLS // width)
    shown = [row[:width] + [""] * (width - len(row)) for row in rows[:most]]
    numeric = [bool(shown) and all(_number(row[at]) is not None for row in shown) for at in range(width)]
    if 0 < order.column <= width:
        at = order.column - 1
        if numeric[at]:
            shown.sort(key=lambda row: _number(row[at]) or 0.0, reverse=order.descending)
        else:
            shown.sort(key=lambda row: row[at], reverse=order.descending)
    wide = any(len(line) > _COLUMNS for line in lines)
    return Table(header, shown, numeric, order, cut or wide or len(rows) > most)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return -math.inf if math.isnan(value) else value
