"""The server's endpoints, one method each. Values go in and out as the server names them."""

from __future__ import annotations

import json
import os

from gradient_cli import config, sse
from gradient_cli.errors import RefusedError
from gradient_cli.transport import STREAM_SECONDS, UPLOAD_SECONDS, Transport, retrying

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    import argparse
    import http.client
    from collections.abc import Callable, Iterator
    from typing import Any

_SUBMIT_DELAYS = (0.5, 1.0, 2.0, 4.0)
_PIECE = 1 << 16
_NOT_FOUND = 404
_FILE_PAGE = 1000


def connect(args: argparse.Namespace) -> Api:
    """The server that flags, environment and files point to. Nothing is sent yet.

    Raises:
        ClientError: None is configured, or its address is not one.
    """
    settings = config.resolve(getattr(args, "url", None), getattr(args, "apiKey", None))
    return Api(Transport(settings.url, settings.key))


class Api:
    """A Gradient Jobs server.

    Every method raises RefusedError when the server answers with an error, and LinkError when it cannot be
    reached.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def url(self) -> str:
        """The server's address."""
        return self._transport.url

    def resolve_job(self, spec: dict[str, Any]) -> dict[str, Any]:
        """What would be run for this spec, on what, at which price; makes nothing."""
        return self._transport.json("POST", "/jobs", query={"dryRun": "true"}, body=spec, needs="job")

    def create_job(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Submit a job once, however often the connection breaks."""
        key = {"Idempotency-Key": os.urandom(16).hex()}
        return retrying(
            lambda: self._transport.json("POST", "/jobs", body=spec, headers=key, needs="id"), _SUBMIT_DELAYS
        )

    def create_job_with(self, spec: dict[str, Any], path: str, sent: Callable[[int], None]) -> dict[str, Any]:
        """Submit a job with the archive of its workspace, once, however often the connection breaks.

        Args:
            spec: What to run.
            path: The archive, a zip or tar.gz file.
            sent: Told how many bytes of the archive have gone out.
        """
        idempotency, boundary = os.urandom(16).hex(), os.urandom(16).hex()
        before, after = _multipart(spec, path, boundary)
        headers = {
            "Idempotency-Key": idempotency,
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Content-Length": str(len(before) + os.path.getsize(path) + len(after)),
        }

        def attempt() -> dict[str, Any]:
            body = _pieces(before, path, after, sent)
            response = self._transport.open("POST", "/jobs", body=body, headers=headers, seconds=UPLOAD_SECONDS)
            return self._transport.read_json(response, "id")

        return retrying(attempt, _SUBMIT_DELAYS)

    def has_workspace(self, sha256: str) -> bool:
        """Whether the server already holds the archive with this digest."""
        try:
            self._transport.json("GET", f"/workspaces/{sha256}")
        except RefusedError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        return True

    def jobs(self, filters: dict[str, Any]) -> dict[str, Any]:
        """One page of jobs, newest first."""
        return self._transport.json("GET", "/jobs", query=filters, needs="jobs")

    def job(self, job_id: str) -> dict[str, Any]:
        """One job."""
        return self._transport.json("GET", _job(job_id), needs="id")

    def stop_job(self, job_id: str) -> dict[str, Any]:
        """Ask a job to stop."""
        return self._transport.json("POST", f"{_job(job_id)}/stop", needs="id")

    def clone_job(self, job_id: str, *, pin_image: bool = False) -> dict[str, Any]:
        """Submit the same job again; pinned, on the very image that it ran."""
        query = {"pinImage": "true"} if pin_image else {}
        return self._transport.json("POST", f"{_job(job_id)}/clone", query=query, needs="id")

    def delete_job(self, job_id: str) -> None:
        """Remove a job from sight, stopping it where it runs."""
        self._transport.json("DELETE", _job(job_id))

    def logs(self, job_id: str, *, line: int = 0, tail: int | None = None, limit: int = 2000) -> dict[str, Any]:
        """One page of a job's log: after a line, or the last so many lines."""
        query = {"limit": limit, **({"line": line} if tail is None else {"tail": tail})}
        return self._transport.json("GET", f"{_job(job_id)}/logs", query=query, needs="lines")

    def follow(self, job_id: str, line: int = 0) -> Iterator[sse.Event]:
        """A job's log and phases as they come, from after a line to the job's end."""

        def stream(after: int) -> Iterator[bytes]:
            response = self._transport.open(
                "GET",
                f"{_job(job_id)}/logs",
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
        """One page of what a job has left, by path."""
        query = {"limit": limit, "after": after}
        return self._transport.json("GET", f"{_job(job_id)}/artifacts", query=query, needs="files")

    def artifact(self, job_id: str, path: str, *, offset: int = 0, etag: str = "") -> http.client.HTTPResponse:
        """One file a job has left, its body still to be read; from an offset if it is still the same file."""
        from urllib.parse import quote

        headers = {"Range": f"bytes={offset}-", "If-Range": f'"{etag}"'} if offset else {}
        accept = {"Accept": "*/*", "Accept-Encoding": "identity", **headers}
        return self._transport.open("GET", f"{_job(job_id)}/artifacts/file/{quote(path)}", headers=accept)

    def chunks(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        """The body of an answer as it comes."""
        return self._transport.chunks(response)

    def hang_up(self) -> None:
        """Drop the connection, with whatever of an answer was not read."""
        self._transport.close()

    def machine_types(self) -> dict[str, Any]:
        """The machines to choose from."""
        return self._transport.json("GET", "/machine-types", needs="machineTypes")

    def images(self) -> dict[str, Any]:
        """The short names for a job's container."""
        return self._transport.json("GET", "/images", needs="images")

    def tpus(self) -> dict[str, Any]:
        """The TPUs that bill or are about to."""
        return self._transport.json("GET", "/tpus", needs="tpus")

    def projects(self) -> dict[str, Any]:
        """The projects."""
        return self._transport.json("GET", "/projects", needs="projects")

    def create_project(self, name: str) -> dict[str, Any]:
        """The project of this name, made if there is none."""
        return self._transport.json("POST", "/projects", body={"name": name}, needs="id")

    def update_project(self, project_id: str, changes: dict[str, Any]) -> dict[str, Any]:
        """The project, changed."""
        from urllib.parse import quote

        path = f"/projects/{quote(project_id, safe='')}"
        return self._transport.json("PATCH", path, body=changes, needs="id")

    def secrets(self, project_id: str | None) -> dict[str, Any]:
        """Names of the secrets of a project, or of those of every project."""
        return self._transport.json("GET", _secrets(project_id), needs="secrets")

    def set_secret(self, name: str, value: str, project_id: str | None) -> dict[str, Any]:
        """Store a secret."""
        return self._transport.json("PUT", _secrets(project_id, name), body={"value": value}, needs="name")

    def delete_secret(self, name: str, project_id: str | None) -> None:
        """Forget a secret."""
        self._transport.json("DELETE", _secrets(project_id, name))

    def registries(self, project_id: str | None) -> dict[str, Any]:
        """The registries that a project's jobs sign in to, or every project's."""
        return self._transport.json("GET", _registries(project_id), needs="registries")

    def set_registry(
        self, host: str, username: str, password: str, project_id: str | None, *, push: bool
    ) -> dict[str, Any]:
        """Store how to sign in to a registry."""
        body = {"username": username, "password": password, "push": push}
        return self._transport.json("PUT", _registries(project_id, host), body=body, needs="host")

    def delete_registry(self, host: str, project_id: str | None) -> None:
        """Forget how to sign in to a registry."""
        self._transport.json("DELETE", _registries(project_id, host))

    def health(self) -> dict[str, Any]:
        """Whether the server is up, and its version."""
        return self._transport.json("GET", "/health", needs="status")


def _job(job_id: str) -> str:
    from urllib.parse import quote

    return f"/jobs/{quote(job_id, safe='')}"


def _secrets(project_id: str | None, name: str | None = None) -> str:
    from urllib.parse import quote

    start = "" if project_id is None else f"/projects/{quote(project_id, safe='')}"
    return f"{start}/secrets" + ("" if name is None else f"/{quote(name, safe='')}")


def _registries(project_id: str | None, host: str | None = None) -> str:
    from urllib.parse import quote

    start = "" if project_id is None else f"/projects/{quote(project_id, safe='')}"
    return f"{start}/registries" + ("" if host is None else f"/{quote(host, safe='')}")


def _multipart(spec: dict[str, Any], path: str, boundary: str) -> tuple[bytes, bytes]:
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


def _pieces(before: bytes, path: str, after: bytes, sent: Callable[[int], None]) -> Iterator[bytes]:
    yield before
    done = 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            yield piece
            done += len(piece)
            sent(done)
    yield after
