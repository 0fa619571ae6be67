"""Serving of bytes: single byte ranges, ETags, and headers against active content in a browser."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service.schemas.base import ErrorView

_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})\Z")
_BLOCK = 256 * 1024
_ETAG = re.compile(r'(?:W/)?("[^"]*")')

INLINE_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".wav": "audio/wav",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".txt": "text/plain; charset=utf-8",
    ".log": "text/plain; charset=utf-8",
    ".json": "text/plain; charset=utf-8",
    ".jsonl": "text/plain; charset=utf-8",
    ".csv": "text/plain; charset=utf-8",
    ".tsv": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".yaml": "text/plain; charset=utf-8",
    ".yml": "text/plain; charset=utf-8",
}
"""Content types that a browser may display, by suffix. None that can contain a script: no html, svg, xml or pdf."""


_BINARY_SCHEMA = {"schema": {"type": "string", "format": "binary"}}
_TEXT_SCHEMA = {"type": "string"}
_BINARY_CONTENT = {"content": dict.fromkeys(("application/octet-stream", "text/plain", "image/*"), _BINARY_SCHEMA)}
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        **_BINARY_CONTENT,
        "headers": {"Accept-Ranges": {"schema": _TEXT_SCHEMA}, "Content-Disposition": {"schema": _TEXT_SCHEMA}},
    },
    206: {
        **_BINARY_CONTENT,
        "description": "The range of bytes in the header Range.",
        "headers": {"Content-Range": {"schema": _TEXT_SCHEMA}},
    },
    416: {
        "model": ErrorView,
        "description": "The range starts after the end.",
        "headers": {"Content-Range": {"schema": _TEXT_SCHEMA}},
    },
}
"""OpenAPI declarations of responses with bytes, by status."""


def declare_request_headers(*names: str) -> dict[str, Any]:
    """Declare, for OpenAPI, request headers that an endpoint reads without FastAPI."""
    return {"parameters": [{"name": name, "in": "header", "required": False, "schema": _TEXT_SCHEMA} for name in names]}


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `start` (included) to `stop` (excluded) of `size`."""

    start: int
    stop: int
    size: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    @property
    def whole(self) -> bool:
        return self.length == self.size


def parse_range(request: Request, size: int, etag: str | None) -> ByteRange:
    """Parse the byte range of a request.

    A header that is not a single byte range is ignored, as RFC 9110 (14.2) allows; so is one whose If-Range names
    another version.
    """
    whole = ByteRange(0, size, size)
    match = _RANGE.match(request.headers.get("range", ""))
    only_if = request.headers.get("if-range")
    if not match or match[0] == "bytes=-" or (only_if is not None and only_if != etag):
        return whole
    first, last = match.groups()
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return whole
    if start >= stop:
        raise HTTPException(
            416, f"The range starts after the end: the content has {size} bytes.", {"Content-Range": f"bytes */{size}"}
        )
    return ByteRange(start, stop, size)


def not_modified(request: Request, etag: str) -> bool:
    """Return whether the client has this version already (If-None-Match)."""
    given = request.headers.get("if-none-match", "")
    return given.strip() == "*" or etag in _ETAG.findall(given)


def range_response(blocks: Iterator[bytes], byte_range: ByteRange, headers: dict[str, str]) -> Response:
    """Build the response with a range of bytes: 200 for all, 206 for a part."""
    headers = {**headers, "Accept-Ranges": "bytes", "Content-Length": str(byte_range.length)}
    if byte_range.whole:
        return StreamingResponse(blocks, 200, headers)
    headers["Content-Range"] = f"bytes {byte_range.start}-{byte_range.stop - 1}/{byte_range.size}"
    return StreamingResponse(blocks, 206, headers)


def file_blocks(file: BinaryIO, byte_range: ByteRange) -> Iterator[bytes]:
    with file:
        file.seek(byte_range.start)
        left = byte_range.length
        while left and (block := file.read(min(_BLOCK, left))):
            left -= len(block)
            yield block


def user_content_headers(path: str, *, inline: bool = False) -> dict[str, str]:
    """Build headers for the output of a job: saved as a file, never run by a browser.

    Args:
        path: The file's path; its last part names the download.
        inline: Let the browser display it, if its type cannot contain a script.
    """
    name = PurePosixPath(path).name
    kind = INLINE_TYPES.get(PurePosixPath(path).suffix.lower()) if inline else None
    how = "inline" if kind else "attachment"
    return {
        "Content-Type": kind or "application/octet-stream",
        "Content-Disposition": f"{how}; filename*=UTF-8''{quote(name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "private, no-cache",
    }
