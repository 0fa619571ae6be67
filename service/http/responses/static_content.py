"""Content that never changes while the process runs, served from memory: compressed once, and with an ETag."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from service.http.responses.file_responses import not_modified

_MIN_COMPRESSED_BYTES = 1000
_COMPRESSED_TYPES = ("text/", "application/json", "image/svg+xml")


@dataclass(frozen=True)
class StaticContent:
    content: bytes  # the bytes
    media_type: str
    version: str | None = None  # name of the version, for the ETag; default: by the bytes

    def response(self, request: Request, *, cache_control: str = "no-cache") -> Response:
        """Build the response: 304 if the client has this version, compressed if it accepts that."""
        headers = {"Cache-Control": cache_control, "Content-Type": self.media_type, "ETag": self._etag}
        compressed = self._compressed
        if compressed is not None:
            headers["Vary"] = "Accept-Encoding"
        if not_modified(request, self._etag):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        if compressed is None or "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self.content, headers=headers)
        return Response(compressed, headers=headers | {"Content-Encoding": "gzip"})

    @cached_property
    def _etag(self) -> str:
        return f'"{self.version or hashlib.sha256(self.content).hexdigest()[:12]}"'

    @cached_property
    def _compressed(self) -> bytes | None:
        """The bytes as gzip; None if they are too few, or of a type that is compressed already."""
        if len(self.content) < _MIN_COMPRESSED_BYTES or not self.media_type.startswith(_COMPRESSED_TYPES):
            return None
        return gzip.compress(self.content, mtime=0)
