"""Previews of artifacts by type; nothing of a file is trusted, and of a large one only a part is read."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from core.storage.artifacts.text_lines import MAX_TEXT_BYTES
from core.storage.joblogs.reader import DEFAULT_LINE_BYTES
from service.dashboard.outputs.previews.documents import FileLinks, read_json, read_json_lines, read_markdown
from service.dashboard.outputs.previews.headers import read_safetensors, read_zip
from service.dashboard.outputs.previews.notebooks import MAX_NOTEBOOK, read_notebook
from service.dashboard.outputs.previews.tables import TableOrder, read_table
from service.http.responses.file_responses import INLINE_TYPES

__all__ = ["TEXT_BYTES", "FileLinks", "Preview", "TableOrder", "image_type", "read_preview"]

TEXT_BYTES = 256 * 1024  # bytes of a text shown at once
_PARSED_BYTES = 2 * 1024**2
_PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    ".json": ("tree", read_json),
    ".jsonl": ("trees", read_json_lines),
    ".ndjson": ("trees", read_json_lines),
}
_MARKDOWN = {".md", ".markdown"}
_PLAIN_MARKDOWN = (
    "Shown as plain text: Markdown is not rendered if it is larger than 128 KiB, deeply nested or has very many "
    "elements."
)
_TABLES = {".csv": ",", ".tsv": "\t"}
_HEADERS: dict[str, Callable[[BinaryIO, int], Any]] = {
    ".safetensors": read_safetensors,
    ".keras": read_zip,
    ".zip": read_zip,
    ".npz": read_zip,
    ".whl": read_zip,
    ".pt": read_zip,
    ".pth": read_zip,
}


@dataclass(frozen=True, slots=True)
class Preview:
    # the part of the template that shows it, such as `image` or `table`; `lines` for a long text of lines, and `none`
    # if a page cannot show it
    kind: str
    parsed: Any = None
    text: str = ""
    start: int = 0
    stop: int = 0
    reason: str = ""  # a sentence that says why a document is shown as plain text; empty: it is not


def image_type(path: str) -> str:
    """Return the content type of a file that a browser shows as an image; empty: it does not."""
    media_type = INLINE_TYPES.get(_suffix(path), "")
    return media_type if media_type.startswith("image/") else ""


def read_preview(
    file: BinaryIO, size: int, path: str, start: int, order: TableOrder, links: FileLinks | None = None
) -> Preview:
    """Read the preview of a file. `size`: its size in bytes; `links`: what it names beside it."""
    suffix = _suffix(path)
    medium = INLINE_TYPES.get(suffix, "").partition("/")[0]
    if medium in {"image", "audio", "video"}:
        return Preview(medium)
    if ".tfevents." in PurePosixPath(path).name:
        return Preview("events")
    if suffix == ".pdf":
        return Preview("pdf")
    if suffix in _HEADERS:
        parsed = _HEADERS[suffix](file, size)
        return Preview("none" if parsed is None else "contents", parsed)
    return _read_text(file, size, suffix, start, order, links)


def _read_text(
    file: BinaryIO, size: int, suffix: str, start: int, order: TableOrder, links: FileLinks | None
) -> Preview:
    file.seek(min(start, size))
    raw = file.read(TEXT_BYTES)
    if b"\0" in raw:
        return Preview("none")
    text, stop = raw.decode("utf-8", "replace"), min(start, size) + len(raw)
    kind, parsed = _parse(file, size, suffix, order, links) if start == 0 else ("text", None)
    reason = _PLAIN_MARKDOWN if suffix in _MARKDOWN and kind == "text" and start == 0 else ""
    short_lines = raw.count(b"\n") * DEFAULT_LINE_BYTES >= len(raw)
    if kind == "text" and start == 0 and len(raw) < size <= MAX_TEXT_BYTES and short_lines:
        return Preview("lines", reason=reason)
    return Preview(kind, parsed, text, min(start, size), stop, reason)


def _parse(file: BinaryIO, size: int, suffix: str, order: TableOrder, links: FileLinks | None) -> tuple[str, Any]:
    """Return the kind of a text and what its part of the template shows; a text that cannot be parsed is plain."""
    file.seek(0)
    whole = file.read(MAX_NOTEBOOK if suffix == ".ipynb" else _PARSED_BYTES)
    if suffix in _TABLES:
        table = read_table(whole.decode("utf-8-sig", "replace"), _TABLES[suffix], order, cut=size > len(whole))
        return ("text", None) if table is None else ("table", table)
    if size > len(whole) and suffix not in {".jsonl", ".ndjson"}:
        return "text", None
    if suffix == ".svg":
        # Scripts of an image do not run, and it loads nothing.
        return "svg", f"data:image/svg+xml;base64,{base64.b64encode(whole).decode()}"
    if suffix in {".html", ".htm"}:
        return "html", None
    linked = dict.fromkeys(_MARKDOWN, ("markdown", partial(read_markdown, links=links)))
    parsers = _PARSERS | linked | {".ipynb": ("notebook", partial(read_notebook, links=links))}
    if suffix in parsers:
        kind, parse = parsers[suffix]
        parsed = parse(whole.decode("utf-8", "replace"))
        return ("text", None) if parsed is None else (kind, parsed)
    return "text", None


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()
