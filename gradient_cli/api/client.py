"""The server's endpoints, one method each. Field names are those of the HTTP API."""

from __future__ import annotations

import json
import os

from gradient_cli import config
from gradient_cli.api import sse
from gradient_cli.api.transport import STREAM_SECONDS, UPLOAD_SECONDS, Transport, retry
from gradient_cli.errors import ServerError

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    import argparse
    import http.client
    from collections.abc import Callable, Iterator
    from typing import Any

_SUBMIT_DELAYS = (0.5, 1.0, 2.0, 4.0)
_CHUNK_BYTES = 1 << 16
_NOT_FOUND = 404
_FILE_PAGE = 1000


def connect(args: argparse.Namespace) -> Api:
    """Return the API of the server that flags, environment or files name. Sends nothing yet.

    Raises:
        ClientError: No server is configured, or its address is invalid.
    """
    settings = config.resolve(getattr(args, "url", None), getattr(args, "apiKey", None))
    return Api(Transport(settings.url, settings.key))


class Api:
    """A Gradient Jobs server.

    Every method raises ServerError when the server answers with an error, and ConnectionFailed when it cannot be
    reached.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def url(self) -> str:
        """The server's address."""
        return self._transport.url

    def resolve_job(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return the job that this spec would create, with its machine and price, without creating it (dry run)."""
        return self._transport.json("POST", "/jobs", query={"dryRun": "true"}, body=spec, needs="job")

    def create_job(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Submit a job once, however often the connection breaks."""
        key = {"Idempotency-Key": os.urandom(16).hex()}
        return retry(lambda: self._transport.json("POST", "/jobs", body=spec, headers=key, needs="id"), _SUBMIT_DELAYS)

    def create_job_with_archive(self, spec: dict[str, Any], path: str, sent: Callable[[int], None]) -> dict[str, Any]:
        """Submit a job with the archive of its workspace, once, however often the connection breaks.

        Args:
            spec: The job's spec.
            path: The archive, a zip or tar.gz file.
            sent: Called with the number of bytes of the archive sent so far.
        """
        idempotency, boundary = os.urandom(16).hex(), os.urandom(16).hex()
        before, after = _multipart_body(spec, path, boundary)
        headers = {
            "Idempotency-Key": idempotency,
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Content-Length": str(len(before) + os.path.getsize(path) + len(after)),
        }

        def attempt() -> dict[str, Any]:
            body = _body_chunks(before, path, after, sent)
            response = self._transport.open("POST", "/jobs", body=body, headers=headers, seconds=UPLOAD_SECONDS)
            return self._transport.read_json(response, "id")

        return retry(attempt, _SUBMIT_DELAYS)

    def has_workspace(self, sha256: str) -> bool:
        """Return whether the server already has the archive with this digest."""
        try:
            self._transport.json("GET", f"/workspaces/{sha256}")
        except ServerError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        return True

    def jobs(self, filters: dict[str, Any]) -> dict[str, Any]:
        """Return one page of jobs, newest first."""
        return self._transport.json("GET", "/jobs", query=filters, needs="jobs")

    def job(self, job_id: str) -> dict[str, Any]:
        """Return one job."""
        return self._transport.json("GET", _job_path(job_id), needs="id")

    def stop_job(self, job_id: str) -> dict[str, Any]:
        """Ask a job to stop."""
        return self._transport.json("POST", f"{_job_path(job_id)}/stop", needs="id")

    def clone_job(self, job_id: str, changes: dict[str, Any], *, pin_image: bool = False) -> dict[str, Any]:
        """Submit the same job again, with changes; if `pin_image`, with the exact image digest of the original job."""
        query = {"pinImage": "true"} if pin_image else {}
        return self._transport.json("POST", f"{_job_path(job_id)}/clone", query=query, body=changes, needs="id")

    def change_tags(self, job_id: str, changes: dict[str, list[str]]) -> dict[str, Any]:
        """Add tags to a job (`add`) or remove them (`remove`), and return the job."""
        return self._transport.json("PATCH", f"{_job_path(job_id)}/tags", body=changes, needs="id")

    def metrics(self, job_id: str, *, name: str | None = None, points: int) -> dict[str, Any]:
        """Return a job's metrics, each with at most `points` values."""
        query = {"name": name, "maxPoints": points}
        return self._transport.json("GET", f"{_job_path(job_id)}/metrics", query=query, needs="series")

    def delete_job(self, job_id: str) -> None:
        """Delete a job, stopping it if it runs."""
        self._transport.json("DELETE", _job_path(job_id))

    def logs(self, job_id: str, *, line: int = 0, tail: int | None = None, limit: int = 2000) -> dict[str, Any]:
        """Return one page of a job's log: the lines after `line`, or the last `tail` lines."""
        query = {"limit": limit, **({"line": line} if tail is None else {"tail": tail})}
        return self._transport.json("GET", f"{_job_path(job_id)}/logs", query=query, needs="lines")

    def follow(self, job_id: str, line: int = 0) -> Iterator[sse.Event]:
        """Stream a job's log lines and phase changes, from after `line` to the job's end."""

        def stream(after: int) -> Iterator[bytes]:
            response = self._transport.open(
                "GET",
                f"{_job_path(job_id)}/logs",
                headers={"Accept": "text/event-stream", "Last-Event-ID": str(after), "Connection": "close"},
                seconds=STREAM_SECONDS,
                keep=False,
            )
            try:
                yield from self._transport.chunks(response)
            finally:
                response.close()

        return sse.follow(stream, line)

    def artifacts(self, job_id: str, *, limit: int = _FILE_PAGE, after: str | None = None) -> dict[str, Any]:
        """Return one page of a job's artifacts, ordered by path."""
        query = {"limit": limit, "after": after}
        return self._transport.json("GET", f"{_job_path(job_id)}/artifacts", query=query, needs="files")

    def artifact(self, job_id: str, path: str, *, offset: int = 0, etag: str = "") -> http.client.HTTPResponse:
        """Open one artifact and return the response, its body unread; from `offset` if the file still has this ETag."""
        from urllib.parse import quote

        headers = {"Range": f"bytes={offset}-", "If-Range": f'"{etag}"'} if offset else {}
        accept = {"Accept": "*/*", "Accept-Encoding": "identity", **headers}
        return self._transport.open("GET", f"{_job_path(job_id)}/artifacts/file/{quote(path)}", headers=accept)

    def chunks(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        """Yield the body of a response as it arrives."""
        return self._transport.chunks(response)

    def close(self) -> None:
        """Close the connection, discarding any unread response."""
        self._transport.close()

    def machine_types(self) -> dict[str, Any]:
        """List the machine types."""
        return self._transport.json("GET", "/machine-types", needs="machineTypes")

    def images(self) -> dict[str, Any]:
        """List the short names of container images."""
        return self._transport.json("GET", "/images", needs="images")

    def tpus(self) -> dict[str, Any]:
        """List TPUs that are billed or about to be."""
        return self._transport.json("GET", "/tpus", needs="tpus")

    def projects(self) -> dict[str, Any]:
        """List the projects."""
        return self._transport.json("GET", "/projects", needs="projects")

    def create_project(self, name: str) -> dict[str, Any]:
        """Return the project of this name, creating it if missing."""
        return self._transport.json("POST", "/projects", body={"name": name}, needs="id")

    def update_project(self, project_id: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Change a project and return it."""
        from urllib.parse import quote

        path = f"/projects/{quote(project_id, safe='')}"
        return self._transport.json("PATCH", path, body=changes, needs="id")

    def delete_project(self, project_id: str) -> None:
        """Delete a project with its jobs, of which none may be waiting or running."""
        from urllib.parse import quote

        self._transport.json("DELETE", f"/projects/{quote(project_id, safe='')}")

    def secrets(self, project_id: str | None) -> dict[str, Any]:
        """List the names of a project's secrets, or of those shared by all projects."""
        return self._transport.json("GET", _secrets_path(project_id), needs="secrets")

    def set_secret(self, name: str, value: str, project_id: str | None) -> dict[str, Any]:
        """Store a secret."""
        return self._transport.json("PUT", _secrets_path(project_id, name), body={"value": value}, needs="name")

    def delete_secret(self, name: str, project_id: str | None) -> None:
        """Delete a secret."""
        self._transport.json("DELETE", _secrets_path(project_id, name))

    def registries(self, project_id: str | None) -> dict[str, Any]:
        """List the registries that a project's jobs log in to, or those shared by all projects."""
        return self._transport.json("GET", _registries_path(project_id), needs="registries")

    def set_registry(
        self, host: str, username: str, password: str, project_id: str | None, *, push: bool
    ) -> dict[str, Any]:
        """Store the login for a registry."""
        body = {"username": username, "password": password, "push": push}
        return self._transport.json("PUT", _registries_path(project_id, host), body=body, needs="host")

    def delete_registry(self, host: str, project_id: str | None) -> None:
        """Delete the login for a registry."""
        self._transport.json("DELETE", _registries_path(project_id, host))

    def health(self) -> dict[str, Any]:
        """Return the server's status and version."""
        return self._transport.json("GET", "/health", needs="status")


def _job_path(job_id: str) -> str:
    from urllib.parse import quote

    return f"/jobs/{quote(job_id, safe='')}"


def _secrets_path(project_id: str | None, name: str | None = None) -> str:
    from urllib.parse import quote

    start = "" if project_id is None else f"/projects/{quote(project_id, safe='')}"
    return f"{start}/secrets" + ("" if name is None else f"/{quote(name, safe='')}")


def _registries_path(project_id: str | None, host: str | None = None) -> str:
    from urllib.parse import quote

    start = "" if project_id is None else f"/projects/{quote(project_id, safe='')}"
    return f"{start}/registries" + ("" if host is None else f"/{quote(host, safe='')}")


def _multipart_body(spec: dict[str, Any], path: str, boundary: str) -> tuple[bytes, bytes]:
    with open(path, "rb") as file:
        zipped = file.read(2) == b"PK"
    name, kind = ("workspace.zip", "application/zip") if zipped else ("workspace.tar.gz", "application/gzip")
    before = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="spec"\r\n'
        f"Content-Type: application/json\r\n\r\n{json.dumps(spec)}\r\n"
        f'--{boundary}\r\nContent-Disposition: form-data; name="workspace"; filename="{name}"\r\n'
        f"Content-Type: {kind}\r\n\r\n"
    )
    return before.encode(), f"\r\n--{boundary}--\r\n".encode()


def _body_chunks(before: bytes, path: str, after: bytes, sent: Callable[[int], None]) -> Iterator[bytes]:
    yield before
    done = 0
    with open(path, "rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            yield piece
            done += len(piece)
            sent(done)
    yield after
