"""Notebooks: their cells with Markdown, outputs and pictures, without any HTML or script of their own."""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, Literal

from markupsafe import Markup

from service.dashboard.outputs.previews.documents import FileLinks, MarkdownBudget, read_markdown
from service.dashboard.rendering import strip_colours

MAX_NOTEBOOK = 8 * 1024**2  # bytes parsed at once; most of them are pictures
_CELLS = 1000
_OUTPUTS = 100
_CHARACTERS = 50_000  # of an output or a source
_HTML_CHARACTERS = 512 * 1024  # of all outputs together
_ROWS, _COLUMNS = 200, 50
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml")


@dataclass(frozen=True, slots=True)
class Output:
    # `html` is rendered by this service, `picture` the address of an image
    kind: Literal["text", "error", "picture", "html", "table"]
    shown: Any


@dataclass(frozen=True, slots=True)
class Cell:
    number: str  # of its last run; empty: none
    source: str
    html: Markup | None = None  # of Markdown
    outputs: list[Output] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Links(FileLinks):
    attachments: Mapping[str, Any]  # MIME bundles of pictures by name

    def picture(self, address: str) -> str | None:
        name = address.removeprefix("attachment:")
        return FileLinks.picture(self, address) if name == address else _picture(self.attachments.get(name) or {})


def read_notebook(text: str, links: FileLinks | None = None) -> list[Cell] | None:
    """Read a notebook of any version; None: the text is none."""
    budget, links = MarkdownBudget(), links or FileLinks("", "", None)
    try:
        notebook = json.loads(text)
        cells = notebook["cells"] if "cells" in notebook else notebook["worksheets"][0]["cells"]
        return [_read_cell(cell, links, budget) for cell in cells[:_CELLS]]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None


def _read_cell(cell: dict[str, Any], links: FileLinks, budget: MarkdownBudget) -> Cell:
    source = _text(cell.get("source", cell.get("input")))
    if cell["cell_type"] != "code":
        beside = _Links(links.job_id, links.path, links.attempt, cell.get("attachments") or {})
        return Cell("", source, read_markdown(source, beside, budget) if cell["cell_type"] == "markdown" else None)
    number = cell.get("execution_count", cell.get("prompt_number"))
    outputs = [output for made in cell.get("outputs", [])[:_OUTPUTS] for output in _read_output(made, budget)]
    return Cell(str(number) if isinstance(number, int) else "", source, None, outputs)


def _read_output(output: dict[str, Any], budget: MarkdownBudget) -> Iterator[Output]:
    if output["output_type"] == "stream":
        yield Output("text", strip_colours(_text(output.get("text"))))
    elif output["output_type"] in {"error", "pyerr"}:
        lines = "\n".join(map(_text, output.get("traceback") or [])) or f"{output.get('ename')}: {output.get('evalue')}"
        yield Output("error", strip_colours(lines)[:_CHARACTERS])
    else:
        yield _read_bundle(output.get("data") or {}, budget)


def _read_bundle(data: dict[str, Any], budget: MarkdownBudget) -> Output:
    """Return the best form of a result that can be shown safely."""
    if picture := _picture(data):
        return Output("picture", picture)
    if markdown := read_markdown(_text(data.get("text/markdown")), None, budget):
        return Output("html", markdown)
    if rows := _table(_text(data.get("text/html")), budget):
        return Output("table", rows)
    for name in ("text/plain", "text/latex", "text/html"):
        if text := _text(data.get(name)):
            return Output("text", strip_colours(text))
    return Output("text", f"A result of the type {', '.join(map(str, data)) or 'unknown'}, which is not shown here.")


def _picture(data: Mapping[str, Any]) -> str | None:
    for name in _PICTURES:
        if name not in data:
            continue
        content = "".join(data[name]) if isinstance(data[name], list) else str(data[name])
        try:
            # Of an SVG scripts do not run, and it loads nothing: it is an image.
            raw = (
                content.encode()
                if name == "image/svg+xml"
                else base64.b64decode("".join(content.split()), validate=True)
            )
        except (binascii.Error, ValueError):
            continue
        return f"data:{name};base64,{base64.b64encode(raw).decode()}"
    return None


def _text(value: Any) -> str:  # noqa: ANN401 - any JSON
    text = "".join(map(str, value)) if isinstance(value, list) else value
    return text[:_CHARACTERS] if isinstance(text, str) else ""


class _TableReader(HTMLParser):
    """Reads the first table of a text, such as that of a data frame: rows of (text, whether it is a head)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[tuple[str, bool]]] = []
        self._cell: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - the library's
        if tag == "tr" and len(self.rows) < _ROWS:
            self.rows.append([])
        elif tag in {"td", "th"}:
            self._cell = ""

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell += data

    def handle_endtag(self, tag: str) -> None:
        if tag in {"td", "th"} and self._cell is not None:
            if self.rows and len(self.rows[-1]) < _COLUMNS:
                self.rows[-1].append((self._cell.strip(), tag == "th"))
            self._cell = None


def _table(html: str, budget: MarkdownBudget) -> list[list[tuple[str, bool]]] | None:
    budget.html += len(html)
    if "<table" not in html or budget.html > _HTML_CHARACTERS:
        return None
    reader = _TableReader()
    reader.feed(html)
    return [row for row in reader.rows if row] or None
