"""A connection to the Docker engine, with two errors: refused, and unavailable.

They replace the SDK's many exceptions. An unavailable engine does not mean that jobs ended: with `live-restore` they
keep running without it.
"""

import io
import logging
import math
import tarfile
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self, TypeVar

import requests
import urllib3
from docker.api.client import APIClient
from docker.errors import APIError, DockerException
from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnectionPool

from core.settings.docker import DockerSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT_SECONDS = 30.0  # for one response of the engine
OLDEST_API = (1, 41)
NOT_FOUND, CONFLICT = 404, 409
SERVER_ERROR = 500
_INFO_CACHE_SECONDS = 60.0
_RESTART_SECONDS = 60.0  # longer than a new engine takes after its start to end the containers of the previous one
_NAME_CONFLICT_SECONDS = 10.0
_NAME_CONFLICT_PAUSE_SECONDS = 0.05
_ENDED = frozenset({"exited", "dead"})
_CONNECTION_ERRORS = (requests.RequestException, urllib3.exceptions.HTTPError, DockerException, ConnectionError)


class EngineError(Exception):
    """The request was refused, or there was no answer."""


class EngineUnavailable(EngineError):
    """The engine does not answer; the state is unknown."""


class EngineRefused(EngineError):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail

    @property
    def transient(self) -> bool:
        """True if the error may be a temporary problem of the engine, not of the request."""
        return self.status >= SERVER_ERROR


def _read_time(text: str) -> float | None:
    """Return the Unix time of the engine's text; None: the year 1, which it has for what has not been."""
    at = datetime.fromisoformat(text)
    return at.timestamp() if at.year > 1 else None


@dataclass(frozen=True, slots=True)
class ContainerState:
    id: str
    image: str
    status: str  # created, running, paused, restarting, removing, exited or dead
    exit_code: int
    oom_killed: bool
    error: str  # the reason that it could not be started
    finished_at: float | None = None  # Unix time of its end, if it has ended

    @classmethod
    def of(cls, inspected: dict[str, Any]) -> Self:
        state = inspected["State"]
        return cls(
            id=inspected["Id"],
            image=inspected["Image"],
            status=state["Status"],
            exit_code=state["ExitCode"],
            oom_killed=state["OOMKilled"],
            error=state["Error"],
            finished_at=_read_time(state["FinishedAt"]),
        )

    @classmethod
    def made(cls, container: str, image: str) -> Self:
        return cls(id=container, image=image, status="created", exit_code=0, oom_killed=False, error="")

    @property
    def ended(self) -> bool:
        """True if nothing of the container runs any more."""
        return self.status in _ENDED


@dataclass(slots=True)
class _CachedInfo:
    """The engine's latest description of itself, and its time."""

    info: dict[str, Any] | None = None
    at: float = 0.0


class Engine:
    """Connection to one engine; any thread may use it.

    `timeout`: seconds that an answer may take; default: `TIMEOUT_SECONDS`.
    """

    def __init__(self, settings: DockerSettings, *, timeout: float | None = None) -> None:
        self._settings = settings
        self._timeout = TIMEOUT_SECONDS if timeout is None else timeout
        self._lock = threading.Lock()
        self._client: APIClient | None = None
        self._close: Callable[[], object] = lambda: None
        self._reported = _CachedInfo()

    def with_timeout(self, timeout: float) -> "Engine":
        """Return another connection to the same engine, with at most this timeout."""
        other = Engine(self._settings, timeout=min(timeout, self._timeout))
        other._reported = self._reported
        return other

    def call(self, action: Callable[[APIClient], T]) -> T:
        client: APIClient | None = None
        try:
            client = self._connect()
            return action(client)
        except APIError as error:
            raise EngineRefused(error.status_code or SERVER_ERROR, str(error.explanation or error)) from error
        except requests.exceptions.JSONDecodeError as error:
            # An engine has been seen to send an empty body with status 200, for statistics of a container that had
            # ended.
            raise EngineRefused(SERVER_ERROR, f"a response that is not JSON: {error}") from error
        except _CONNECTION_ERRORS as error:
            # Reconnect next time, for the engine may be another one then; another thread may have done so already.
            with self._lock:
                if self._client is not None and self._client is client:
                    self._client = None
                    self._close()
            self._reported.info = None
            raise EngineUnavailable(f"{self._settings.url}: {error}") from error

    @property
    def url(self) -> str:
        return self._settings.url

    def info(self) -> dict[str, Any]:
        """Query the engine's description of itself; takes some 10 ms."""
        info: dict[str, Any] = self.call(lambda api: api.info())
        self._reported.info, self._reported.at = info, time.monotonic()
        return info

    def cached_info(self) -> dict[str, Any]:
        """Return the engine's description of itself, at most a minute old: its ID, the host's memory, its folder."""
        info, at = self._reported.info, self._reported.at
        return info if info is not None and time.monotonic() - at < _INFO_CACHE_SECONDS else self.info()

    def find(self, name: str) -> ContainerState | None:
        """Inspect the container of this name or id; None if there is none."""
        try:
            return ContainerState.of(self.call(lambda api: api.inspect_container(name)))
        except EngineRefused as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def create(self, name: str, config: dict[str, Any]) -> ContainerState:
        """Create a container from an image id, or find the container of this name."""
        give_up = time.monotonic() + _NAME_CONFLICT_SECONDS
        while True:
            try:
                made = self.call(lambda api: api.create_container_from_config(config, name))
                return ContainerState.made(str(made["Id"]), config["Image"])
            except EngineRefused as error:
                if error.status != CONFLICT:
                    raise
                there = self.find(name)
                if there is not None:
                    return there
                # The name is taken at once, but the container is visible a moment later, or never if its creation
                # failed.
                if time.monotonic() >= give_up:
                    raise
            time.sleep(_NAME_CONFLICT_PAUSE_SECONDS)

    def has_file(self, container: str, path: str) -> bool:
        def head(api: APIClient) -> int:
            # The SDK's own call would transfer the file.
            url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"
            answer = api.head(url, params={"path": path}, timeout=self._timeout)
            if answer.status_code >= SERVER_ERROR:
                raise APIError(f"{answer.status_code}: {path} of {container}", response=answer)
            return answer.status_code

        return self.call(head) != NOT_FOUND

    def read_file(self, container: str, path: str, *, most_bytes: int | None = None) -> bytes | None:
        """Return a file of a container, empty if there is none; None if it is no file, or larger.

        Links are followed only where the size is limited: the file is read, and not replaced.
        """

        def read(api: APIClient) -> bytes:
            stream, status = api.get_archive(container, path)
            if most_bytes is not None and status["linkTarget"]:
                stream, status = api.get_archive(container, status["linkTarget"])
            return b"" if most_bytes is not None and status["size"] > most_bytes else b"".join(stream)

        try:
            packed = self.call(read)
        except EngineRefused as error:
            if error.status == NOT_FOUND:
                return b""
            raise
        if not packed:
            return None
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            entry = archive.next()
            content = archive.extractfile(entry) if entry is not None and entry.isreg() else None
            return None if content is None else content.read()

    def write_file(self, container: str, path: str, content: bytes) -> None:
        """Write a file of a container, which belongs to root and which all may read."""
        folder, _, name = path.rpartition("/")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = 0o644, len(content)
            archive.addfile(entry, io.BytesIO(content))
        self.call(lambda api: api.put_archive(container, folder or "/", packed.getvalue()))

    def ended_by_restart(self, name: str, ended: float) -> bool:
        """Return whether a restart of the engine ended a container.

        An engine keeps its latest 256 events in memory. If it is the engine that started the container, they include
        that start or, if much has happened since, events from well before the container's end. An engine that found the
        container running when it came up has either killed it, or seen it end by itself (`live-restore`). `ended`: time
        of its end, in seconds since the epoch.
        """
        # With nanoseconds, which the SDK's types do not allow: whole seconds would miss the latest events.
        until: Any = f"{time.time():.9f}"
        events = self.call(lambda api: list(api.events(since=1, until=until, decode=True)))
        actions = {event.get("Action") for event in events if event["Actor"]["Attributes"].get("name") == name}
        if "start" in actions:
            return False
        if actions & {"kill", "die"}:
            return "kill" in actions
        return not any(event["time"] < ended - _RESTART_SECONDS for event in events)

    def remove(self, name: str, *, force: bool) -> None:
        """Remove a container and its volumes; a missing one is not an error."""
        try:
            self.call(lambda api: api.remove_container(name, v=True, force=force))
        except EngineRefused as error:
            if error.status != NOT_FOUND:
                raise

    def _connect(self) -> APIClient:
        with self._lock:
            if self._client is None:
                timeout = math.ceil(self._timeout)
                client = APIClient(self._settings.url, version="auto", timeout=timeout)
                adapter = client.get_adapter(client.base_url)
                if isinstance(adapter, UnixHTTPAdapter):
                    adapter.close()
                    client.mount("http+docker://", _UnixAdapter(adapter.socket_path, timeout))
                self._client = client
                self._close = weakref.finalize(self, self._client.close)
            return self._client


class _UnixAdapter(UnixHTTPAdapter):
    """Uses one connection pool for all requests; the SDK has one for each URL, 25 in all."""

    def get_connection(self, url: str | bytes, proxies: Any = None) -> UnixHTTPConnectionPool:  # noqa: ANN401 - requests' own
        del url
        return super().get_connection("", proxies)
