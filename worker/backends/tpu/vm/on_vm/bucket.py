"""Objects in Cloud Storage."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from worker.runner.stores import NETWORK_ERRORS, Refused

from . import CALL_SECONDS

_STORAGE = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
_MISSING = 404
_TOKEN_SECONDS = 300.0
_RETRIED = (401, 408, 429)
_MAX_NAME_BYTES = 1024


def is_valid_name(name: str) -> bool:
    """Return whether Cloud Storage accepts an object's name."""
    return not {"\n", "\r"} & set(name) and len(name.encode()) <= _MAX_NAME_BYTES


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Raise `Refused` if repeating the same request does not help, as for Google's own clients."""
    try:
        yield
    except urllib.error.HTTPError as error:
        if 400 <= error.code < 500 and error.code not in _RETRIED:  # noqa: PLR2004 - the errors of a client
            raise Refused(str(error)) from error
        raise


class Objects:
    """The objects of a bucket; usable from any thread. `find_token`: returns an access token."""

    def __init__(self, name: str, find_token: Callable[[], str]) -> None:
        self._objects = f"{_STORAGE}/storage/v1/b/{name}/o"
        self._uploads = f"{_STORAGE}/upload/storage/v1/b/{name}/o"
        self._find_token = find_token

    def get(self, name: str) -> bytes | None:
        """Return an object's content; None if there is no such object."""
        try:
            with self.open(name) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            if error.code == _MISSING:
                return None
            raise

    def open(self, name: str) -> Any:  # noqa: ANN401 - as above
        return self._request("GET", f"{self._objects}/{urllib.parse.quote(name, safe='')}?alt=media")

    def put(self, name: str, content: Any, size: int) -> None:  # noqa: ANN401 - bytes, or an iterator of them
        """See `Store.put`."""
        if not is_valid_name(name):  # a large upload can break before the refusal is read
            raise Refused("its name has a line break, or is too long")
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        with _refusals():
            self._request("POST", f"{self._uploads}?{query}", content, headers).close()

    def remove(self, name: str) -> None:
        """See `Store.remove`."""
        with _refusals():
            try:
                self._request("DELETE", f"{self._objects}/{urllib.parse.quote(name, safe='')}").close()
            except urllib.error.HTTPError as error:
                if error.code != _MISSING:
                    raise

    def sizes(self, prefix: str) -> dict[str, int]:
        return {item["name"]: int(item["size"]) for item in self.list(prefix)}

    def list(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Return what Cloud Storage says of the objects whose names begin with the prefix."""
        token = ""
        while True:
            query = urllib.parse.urlencode({"prefix": prefix} | ({"pageToken": token} if token else {}))
            with self._request("GET", f"{self._objects}?{query}") as answer:
                page = json.load(answer)
            yield from page.get("items", ())
            token = page.get("nextPageToken", "")
            if not token:
                return

    def _request(self, method: str, url: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:  # noqa: ANN401 - as above
        given = {"Authorization": f"Bearer {self._find_token()}"} | (headers or {})
        request = urllib.request.Request(url, data=body, headers=given, method=method)  # noqa: S310 - Google's, or a simulator's
        return urllib.request.urlopen(request, timeout=CALL_SECONDS)  # noqa: S310 - the same


class Bucket(Objects):
    """The objects below the job's prefix, accessed with its own tokens."""

    def __init__(self, name: str, token_name: str, token_url: str) -> None:
        super().__init__(name, lambda: self.token()[0])
        self._token_at = f"{self._objects}/{urllib.parse.quote(token_name, safe='')}?alt=media"
        self._token_url = token_url
        self._lock = threading.Lock()
        self._token = ""
        self._expires_at = self._read_again_at = 0.0
        self.received_at = time.monotonic()  # time at which a new token was found, which a worker wrote

    def token(self) -> tuple[str, float]:
        """Return an access token, and the Unix time at which it expires; waits until there is one."""
        with self._lock:
            while time.time() >= self._read_again_at:
                try:
                    with self._open_token() as answer:
                        made = json.load(answer)
                    token, expires_at = str(made["access_token"]), float(made["expires_at"])
                except (*NETWORK_ERRORS, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
                    sys.stderr.write(f"no fresh token: {error}\n")
                    if time.time() < self._expires_at:
                        break
                    time.sleep(1)
                else:
                    if token != self._token:
                        self.received_at = time.monotonic()
                    self._token, self._expires_at = token, expires_at
                    self._read_again_at = time.time() + min(_TOKEN_SECONDS, (self._expires_at - time.time()) / 2)
            return self._token, self._expires_at

    def _open_token(self) -> Any:  # noqa: ANN401 - a response of urllib's, whose type it keeps to itself
        """Open the token's object with the last token, else by the signed URL, which works for a week only."""
        if time.time() < self._expires_at:
            request = urllib.request.Request(self._token_at, headers={"Authorization": f"Bearer {self._token}"})  # noqa: S310 - Google's, or a simulator's
            with contextlib.suppress(*NETWORK_ERRORS):
                return urllib.request.urlopen(request, timeout=CALL_SECONDS)  # noqa: S310 - the same
        return urllib.request.urlopen(self._token_url, timeout=CALL_SECONDS)  # noqa: S310 - the same
