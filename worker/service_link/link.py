"""HTTP client of a worker that shares only the network with its service."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.response import BaseHTTPResponse

from core.errors import (
    ArtifactNotFound,
    CredentialNotFound,
    LeaseLost,
    SecretUnreadable,
    SpecInvalid,
    StoreUnavailable,
    Unauthorized,
    WorkspaceNotFound,
)
from core.jobs.scheduling.claims import WorkerOffer
from core.settings import Settings
from worker.backends.base import LaunchError

_CONNECT_SECONDS = 2.0
_READ_SECONDS = 5.0
GIVE_BACK_SECONDS = 60.0
_CLAIM_SECONDS = 15.0  # claims are made one at a time
_PAUSE_SECONDS = 2.0
_CONNECTIONS = 16
_BLOCK_BYTES = 1 << 20
_BUCKET_TIMES = urllib3.Timeout(connect=5.0, read=60.0)
_FIRST_ERROR = 300
_SERVER_ERROR = 500
_Query = Mapping[str, object]
_NOTHING: _Query = MappingProxyType({})
_ERRORS = {
    error_class.__name__: error_class
    for error_class in (ArtifactNotFound, CredentialNotFound, LeaseLost, SecretUnreadable, WorkspaceNotFound)
}
"""Errors of the service that its callers here tell apart; the others are tried again."""


class Refused(StoreUnavailable):
    """The service answers, and refuses the request; it may be an old or a wrong one."""


class TokenRefused(Refused):
    """The service does not know the worker's token: it is revoked, or never was one."""


class ServiceLink:
    """Sends requests about attempts that this worker holds; for any thread.

    After a failure every call fails at once for some seconds: callers try again by themselves, and a watch of a job
    must not wait for a host that does not answer.
    """

    def __init__(self, url: str, token_file: Path) -> None:
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._pool = urllib3.PoolManager(maxsize=_CONNECTIONS, retries=False)
        self._retry_at = 0.0
        self._why = ""
        self._silent_since: float | None = None
        self.problem: str | None = None
        """Why the worker may claim nothing: its last `identify` or `claim` had no answer, or was refused."""

    @classmethod
    def of(cls, url: str, settings: Settings) -> "ServiceLink":
        return cls(url, settings.root / "worker-token")

    def check(self, worker: str) -> None:
        """Check that the token is that of the worker with this name; a service that does not answer is no error.

        Raises `SpecInvalid`: it is not, or the address is not that of a service.
        """
        try:
            owner = self.identify()
        except Refused as error:
            raise SpecInvalid(f"GRADIENT_WORKER__SERVICE_URL={self._url}: {error.message}", field="worker") from error
        except StoreUnavailable:
            return
        if owner != worker:
            raise SpecInvalid(
                f"{self._token_file} has the token of worker {owner!r}, but this is worker {worker!r}. Start it "
                f"with --name {owner}, or create another token.",
                field="worker",
            )

    def identify(self) -> str:
        """Return the name of the worker whose token this is, as the service has it now."""
        with self._asking():
            owner: str = self.read_json("GET", "")["worker"]
        return owner

    def record_host(self, host: str, silent_seconds: float) -> None:
        """Let the service record this worker's host. Raises `Refused`: another worker has it."""
        with self._asking():
            self.request("PUT", "host", query={"host": host, "silent_seconds": silent_seconds})

    def claim(self, offer: WorkerOffer) -> str | None:
        """Let the service claim a job for this worker, beside its database; return the job's id, None if none fits."""
        with self._asking():
            answer = self.read_json("POST", "claims", json.dumps(asdict(offer)).encode(), seconds=_CLAIM_SECONDS)
        job_id: str | None = answer["job"]
        return job_id

    def extend(self, job_id: str) -> bool:
        """Let the service extend the share of a ceiling or a budget that a job has used up, if more is left."""
        extended: bool = self.read_json("POST", f"jobs/{job_id}/extension")["extended"]
        return extended

    def check_silence(self) -> None:
        """Raise `LaunchError`, which gives back a job that has not begun, if the service is silent for too long."""
        since, problem = self._silent_since, self.problem
        if since is not None and problem is not None and time.monotonic() - since > GIVE_BACK_SECONDS:
            raise LaunchError("service_silent", problem)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable as error:
            if self._silent_since is None:
                self._silent_since = time.monotonic()
            self.problem = error.message
            raise
        self._silent_since = self.problem = None

    def request(
        self,
        method: str,
        path: str,  # what is below `/worker/`, such as `jobs/ID/1/log`
        body: bytes | None = None,
        query: _Query = _NOTHING,
        seconds: float = _READ_SECONDS,  # longest silence of the service
    ) -> bytes:
        """Send a request, and return the body of its answer.

        Raises:
            LeaseLost: This worker does not hold the attempt any more.
            StoreUnavailable: The service does not answer, or refuses the request.
        """
        with self.open(method, path, body, query, seconds) as answer, self.reading():
            return answer.data

    def read_json(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        query: _Query = _NOTHING,
        seconds: float = _READ_SECONDS,
    ) -> Any:  # noqa: ANN401 - as sent
        return json.loads(self.request(method, path, body, query, seconds))

    def open(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        query: _Query = _NOTHING,
        seconds: float = _READ_SECONDS,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        follows: bool = False,  # an answer may lead elsewhere
    ) -> BaseHTTPResponse:
        """Send a request, and return its answer, whose body the caller reads, and then closes it."""
        if time.monotonic() < self._retry_at:
            raise StoreUnavailable(self._why)
        headers = {**headers, **self.headers()}

        def send() -> BaseHTTPResponse:
            return self._pool.request(
                method,
                f"{self._url}/worker{path and f'/{path}'}{_encode(query)}",
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=seconds),
                preload_content=False,
                redirect=False,
            )

        with self.reading():
            try:
                answer = send()
            except ProtocolError:  # a connection that was idle has just been closed; every request may be repeated
                answer = send()
            if answer.status < _FIRST_ERROR or (follows and answer.status == HTTPStatus.TEMPORARY_REDIRECT):
                return answer
            with answer:
                raise _refusal(answer.status, answer.data)

    @contextmanager
    def open_file(self, path: str, query: _Query = _NOTHING, *, offset: int = 0) -> Iterator[BaseHTTPResponse]:
        """Open a file for reading, from an offset on: at the service, or in the bucket to which that leads.

        Raises `StoreUnavailable`, also while it is read: service or bucket do not answer.
        """
        wanted = {"Range": f"bytes={offset}-"} if offset else {}
        with self.open("GET", path, query=query, headers=wanted, follows=True) as answer:
            if answer.status != HTTPStatus.TEMPORARY_REDIRECT:
                with self.reading():
                    yield answer
                return
        try:
            url = answer.headers["Location"]
            with self._pool.request(
                "GET", url, headers=wanted, timeout=_BUCKET_TIMES, preload_content=False, redirect=False
            ) as response:
                if response.status >= _FIRST_ERROR:
                    raise StoreUnavailable(
                        f"The bucket answers with status {response.status} ({urlsplit(url).hostname})."
                    )
                yield response
        except HTTPError as error:  # its message has the URL, and so the signature
            raise StoreUnavailable(
                f"The bucket does not answer ({urlsplit(url).hostname}): {type(error).__name__}"
            ) from error

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn an answer that breaks off meanwhile into `StoreUnavailable`."""
        try:
            yield
        except HTTPError as error:
            self._why = f"The service at {self._url} does not answer: {error}"
            self._retry_at = time.monotonic() + _PAUSE_SECONDS
            raise StoreUnavailable(self._why) from error

    @property
    def tunnel_url(self) -> str:
        """Address of the WebSocket that carries users' sessions."""
        return f"ws{self._url.removeprefix('http')}/worker/tunnel"

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._read_token()}"}

    def _read_token(self) -> str:
        try:
            return self._token_file.read_bytes().decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "It has no token"
            raise Refused(
                f"{self._token_file} cannot be read: {why}. Write there what "
                "`gradient-server workers token NAME` prints on the service's host."
            ) from error


def _encode(query: _Query) -> str:
    pairs = [f"{name}={quote(str(value), safe='')}" for name, value in query.items() if value is not None]
    return f"?{'&'.join(pairs)}" if pairs else ""


def _refusal(status: int, body: bytes) -> Exception:
    try:
        error = json.loads(body)["error"]
        name, message = error["name"], error["message"]
    except (ValueError, KeyError, TypeError):
        name, message = "", f"The service answered with status {status}; is it a gradient-server?"
    if name == Unauthorized.__name__:
        return TokenRefused(message)
    return _ERRORS.get(name, StoreUnavailable if status >= _SERVER_ERROR else Refused)(message)
