"""The store through which a runner and the worker of its job exchange files, where neither sees the other's disk."""

from __future__ import annotations

from http.client import HTTPException
from typing import IO, Any, Protocol

PART_BYTES = 1 << 20
STREAMED_FILES = ("log", "metrics.jsonl")
REPORT_STEPS = 5  # steps between two reports, if there is nothing new
NETWORK_ERRORS = (OSError, HTTPException)
"""Errors of urllib's requests; the second, such as of a response that was cut off, is not an OSError."""


class Refused(OSError):
    """The store does not take an object, or does not let it go, however often that is tried."""


class Store(Protocol):
    """Objects by name; each is replaced as a whole. Every method raises `OSError` or `HTTPException`."""

    def get(self, name: str) -> bytes | None:
        """Return an object's content; None if there is no such object."""

    def open(self, name: str) -> IO[bytes]: ...

    def put(self, name: str, content: Any, size: int) -> None:  # noqa: ANN401 - bytes, or an iterator of them
        """Write an object. Raises `Refused`."""

    def remove(self, name: str) -> None:
        """Remove an object; a missing one is not an error. Raises `Refused`."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes of the objects whose names begin with the prefix, by name."""
