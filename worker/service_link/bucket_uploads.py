"""Files of one attempt that this worker puts into the service's bucket, by URLs that the service signs."""

import hashlib
import json
import os
from base64 import b64encode
from collections.abc import Iterator
from http import HTTPStatus
from threading import Lock
from typing import BinaryIO

import urllib3
from urllib3.exceptions import HTTPError

from core.errors import StoreUnavailable
from core.storage.artifacts.received import MAX_UPLOADS
from core.storage.buckets.uploader import FileChanged
from worker.service_link.link import ServiceLink

_TIMES = urllib3.Timeout(connect=15.0, read=120.0)  # the first is also the longest pause while it sends
_TRIES = 2  # with another URL; for longer, the attempt tries again
_BLOCK = 1 << 20
_SHOWN_CHARACTERS = 300
_pool = urllib3.PoolManager(maxsize=8, retries=False)


class BucketUploads:
    """`path`: of the attempt's artifacts at the service. For several threads."""

    def __init__(self, link: ServiceLink, path: str) -> None:
        self._link = link
        self._path = f"{path}/uploads"
        self._lock = Lock()
        self._next: list[str] = []  # paths to ask URLs for, in the order of their use
        self._urls: dict[str, tuple[str, dict[str, str]]] = {}

    def prepare(self, paths: list[str]) -> None:
        self._next = paths

    def send(self, path: str, file: BinaryIO) -> str:
        """Put a file into the bucket, and return its sha256.

        Raises:
            FileChanged: It was written to meanwhile.
            StoreUnavailable: The bucket does not answer, or refuses it, also with a fresh URL.
        """
        before = os.fstat(file.fileno())
        md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
        for block in _blocks(file, before.st_size):
            md5.update(block)
            sha256.update(block)
        checked = {"Content-MD5": b64encode(md5.digest()).decode()}  # by the bucket
        why = ""
        for _ in range(_TRIES):
            url, headers = self._take(path)
            why = self._put(url, headers | checked, file, before.st_size)
            after = os.fstat(file.fileno())
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise FileChanged
            if not why:
                return sha256.hexdigest()
        raise StoreUnavailable(f"The bucket: sending {path!r} failed: {why}")

    def _take(self, path: str) -> tuple[str, dict[str, str]]:
        """Return the URL of a file, which is not given out again; URLs come from the service many at a time."""
        with self._lock:
            if path not in self._urls:
                paths = self._next[self._next.index(path) :][:MAX_UPLOADS] if path in self._next else [path]
                answer = self._link.read_json("POST", self._path, json.dumps(paths).encode())
                self._urls |= dict(zip(paths, answer["uploads"], strict=False))  # none where it is closed
            if path not in self._urls:
                raise StoreUnavailable("The artifacts of this attempt are closed.")
            return self._urls.pop(path)

    def _put(self, url: str, headers: dict[str, str], file: BinaryIO, size: int) -> str:
        """Return the reason that it failed; empty: it is in the bucket."""
        headers = headers | {"Content-Length": str(size)}
        try:
            answer = _pool.request("PUT", url, body=_blocks(file, size), headers=headers, timeout=_TIMES)
        except HTTPError as error:
            return f"no answer: {type(error).__name__}"  # its message has the URL, and so the signature
        if answer.status in {HTTPStatus.OK, HTTPStatus.CREATED}:
            return ""
        with self._lock:
            self._urls.clear()  # they may have expired together
        return f"{answer.status} {answer.data[:_SHOWN_CHARACTERS].decode(errors='replace')}"


def _blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the first bytes of a file; raises `FileChanged` if it has fewer."""
    file.seek(0)
    while size:
        block = file.read(min(_BLOCK, size))
        if not block:
            raise FileChanged
        size -= len(block)
        yield block
