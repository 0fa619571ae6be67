"""The server's endpoints, one method each. Field names are those of the HTTP API."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from gradient_cli import terminal
from gradient_cli.api import server_clock, sse
from gradient_cli.api.forms import file_chunks
from gradient_cli.api.paths import (
    COMPARISONS,
    comparison_path,
    credentials_path,
    job_path,
    range_headers,
    storage_path,
    template_path,
)
from gradient_cli.api.retries import retry
from gradient_cli.api.submissions import SUBMIT_DELAYS, SubmissionApi
from gradient_cli.api.transport import STREAM_SECONDS, UPLOAD_SECONDS
from gradient_cli.errors import REFUSED, ClientError

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection


_FILE_PAGE = 1000
_STORED_PAGE = 10_000  # of entries in a project's storage
_LOG_PAGE = 2000
_JOBS_PAGE = 200
_ACTION_JOBS = 200


class Api(SubmissionApi):
    """A Gradient Jobs server."""

    @property
    def url(self) -> str:
        return self._transport.url

    def jobs(self, filters: dict[str, Any]) -> dict[str, Any]:
        """Return one page of jobs, newest first."""
        return self._transport.json("GET", "/jobs", query=filters, needs="jobs")

    def newest_jobs(self, filters: dict[str, Any], limit: int | None) -> tuple[list[dict[str, Any]], str | None]:
        """Return up to `limit` jobs (None: all), newest first, and the cursor of the next page if there are more."""
        jobs: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            room = _JOBS_PAGE if limit is None else min(_JOBS_PAGE, limit - len(jobs))
            page = self.jobs({**filters, "limit": room, "after": after})
            for sentence in page.get("notes") or []:
                terminal.print_message(terminal.sanitize(sentence))
            jobs += page["jobs"]
            after = page.get("next")
            if not after or not page["jobs"] or (limit is not None and len(jobs) >= limit):
                return jobs, after

    def members(self, array_id: str) -> list[dict[str, Any]]:
        """Return the members of an array by index; refuses an array that does not exist."""
        jobs, _ = self.newest_jobs({"array": array_id}, None)
        if not jobs:
            raise ClientError(
                f"no such array: {array_id}", hint="`gradient-cli jobs list` lists the ids.", code=REFUSED
            )
        return jobs[::-1]

    def array(self, array_id: str) -> dict[str, Any]:
        """Return the first member of an array, with the states of all its members."""
        arrays = self.jobs({"array": array_id, "fold": "true"})["jobs"]
        return arrays[0] if arrays else self.members(array_id)[0]

    def run_in_job(self, job_id: str) -> AbstractContextManager[ClientConnection]:
        """Open an exec session; the first message must be the command, as JSON."""
        return self._transport.websocket(f"{job_path(job_id)}/exec")

    def forward_port(self, job_id: str, port: int) -> AbstractContextManager[ClientConnection]:
        return self._transport.websocket(f"{job_path(job_id)}/forward", {"port": port})

    def connect_to_port(self, job_id: str, session_id: str) -> AbstractContextManager[ClientConnection]:
        return self._transport.websocket(f"{job_path(job_id)}/forward/{session_id}")

    def now(self) -> datetime:
        if not server_clock.is_known():
            with suppress(ClientError):  # the next request will raise it
                self._transport.json("GET", "/health")
        return server_clock.now()

    def job(self, job_id: str) -> dict[str, Any]:
        return self._transport.json("GET", job_path(job_id), needs="id")

    def poll_job(self, job_id: str, seconds: float) -> dict[str, Any]:
        """Return one job, as `job` does, with this timeout and without waiting for a rate limit."""
        return self._transport.read_json(self._transport.open_once("GET", job_path(job_id), seconds=seconds), "id")

    def job_diff(self, job_id: str, other: str) -> dict[str, Any]:
        return self._transport.json("GET", f"{job_path(job_id)}/diff", query={"other": other}, needs="differences")

    def stop_job(self, job_id: str, *, now: bool = False) -> dict[str, Any]:
        """Ask a job to stop; without its grace period, if `now`."""
        return self._transport.json(
            "POST", f"{job_path(job_id)}/stop", query={"now": "true"} if now else {}, needs="id"
        )

    def why(self, job_id: str) -> dict[str, Any]:
        return self._transport.json("GET", f"{job_path(job_id)}/why", needs="reason")

    def release_job(self, job_id: str) -> dict[str, Any]:
        """End the time for which the machine of a failed job is kept."""
        return self._transport.json("POST", f"{job_path(job_id)}/release", needs="id")

    def act_on_jobs(self, action: str, ids: list[str], *, now: bool = False) -> list[dict[str, Any]]:
        """Stop or delete several jobs, and return a result for each; `now` stops them without their grace period."""
        results: list[dict[str, Any]] = []
        for start in range(0, len(ids), _ACTION_JOBS):
            body = {"action": action, "ids": ids[start : start + _ACTION_JOBS]} | ({"now": True} if now else {})
            results += self._transport.json("POST", "/jobs/actions", body=body, needs="results")["results"]
        return results

    def open_tensorboard(self, ids: list[str]) -> dict[str, Any]:
        """Open TensorBoard for jobs; returns the link, which works once, and the names of the runs."""
        return self._transport.json("POST", "/tensorboards", body={"ids": ids}, needs="url")

    def clone_job(
        self, job_id: str, changes: dict[str, Any], *, pin_image: bool = False, only_failed: bool = False
    ) -> dict[str, Any]:
        """Submit the same job or array again with changes, once, however often the connection breaks.

        If `pin_image`, with the exact image digest of the original job; if `only_failed`, only those members.
        """
        chosen = {"pinImage": pin_image, "onlyFailed": only_failed}
        query = {name: "true" for name, wanted in chosen.items() if wanted}
        return self.create(changes, to=f"{job_path(job_id)}/clone", query=query or None)

    def edit_job(self, job_id: str, changes: dict[str, Any]) -> dict[str, Any]:
        return self._transport.json("PATCH", job_path(job_id), body=changes, needs="id")

    def metrics(
        self,
        job_id: str,
        *,
        name: str | None = None,  # only this metric
        points: int,
        attempt: int | None = None,  # only this attempt
    ) -> dict[str, Any]:
        """Return a job's metrics, of all attempts or of one, each with at most `points` values."""
        query = {"name": name, "maxPoints": points, "attempt": attempt}
        return self._transport.json("GET", f"{job_path(job_id)}/metrics", query=query, needs="series")

    def metric_rows(self, job_id: str, *, name: str | None, after: str | None) -> dict[str, Any]:
        """Return a page of all stored values of a job's metrics, or of one."""
        query = {"name": name, "after": after}
        return self._transport.json("GET", f"{job_path(job_id)}/metrics/rows", query=query, needs="rows")

    def predict(self, job_id: str, machine_types: str | None, precision: str | None = None) -> dict[str, Any]:
        """Return estimates of a job on machine types, by default all, and what bounds it."""
        query = {"machineType": machine_types, "precision": precision}
        return self._transport.json("GET", f"{job_path(job_id)}/prediction", query=query, needs="machines")

    def delete_job(self, job_id: str) -> None:
        self._transport.json("DELETE", job_path(job_id))

    def logs(self, job_id: str, *, line: int = 0, tail: int | None = None, limit: int = _LOG_PAGE) -> dict[str, Any]:
        """Return one page of a job's log: the lines after `line`, or the last `tail` lines."""
        query = {"limit": limit, **({"line": line} if tail is None else {"tail": tail})}
        return self._transport.json("GET", f"{job_path(job_id)}/logs", query=query, needs="lines")

    def log_pages(self, job_id: str, *, line: int = 0, tail: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the pages of a job's log after `line`, or those of the last `tail` lines that it has now."""
        page = self.logs(job_id, line=line, tail=tail)
        yield page
        end = None if tail is None else int(page["total"])
        while page["lines"] and (line := int(page["lines"][-1]["line"])) != end:
            page = self.logs(job_id, line=line, limit=_LOG_PAGE if end is None else min(_LOG_PAGE, end - line))
            yield page

    def raw_log(self, job_id: str) -> Iterator[bytes]:
        return self._transport.chunks(self._transport.open("GET", f"{job_path(job_id)}/logs/raw"))

    def search_log(self, job_id: str, text: str, *, line: int = 0) -> dict[str, Any]:
        """Return the numbers of the lines after `line` that contain a text, as far as the server has searched."""
        query = {"query": text, "line": line, "limit": 10_000}
        return self._transport.json("GET", f"{job_path(job_id)}/logs/search", query=query, needs="searchedTo")

    def follow(self, job_id: str, line: int = 0) -> Iterator[sse.Event]:
        """Stream a job's log lines and phase changes, from after `line` to the job's end."""

        def stream(after: int) -> Iterator[bytes]:
            response = self._transport.open_once(
                "GET",
                f"{job_path(job_id)}/logs",
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
        query = {"limit": limit, "after": after}
        return self._transport.json("GET", f"{job_path(job_id)}/artifacts", query=query, needs="files")

    def all_artifacts(self, job_id: str) -> dict[str, Any]:
        listing = self.artifacts(job_id)
        while listing.get("next"):
            page = self.artifacts(job_id, after=listing["next"])
            if not page["files"]:
                break
            of_first = {name: listing.get(name) for name in ("skipped", "folders")}
            listing = {**page, "files": listing["files"] + page["files"], **of_first}
        return {**listing, "next": None}

    def artifact(
        self, job_id: str, path: str, *, offset: int = 0, etag: str = "", last: int | None = None
    ) -> http.client.HTTPResponse:
        """Open one artifact and return the response, its body unread; from `offset` if the file still has this ETag."""
        headers = range_headers(offset, etag, last)
        return self._transport.open("GET", f"{job_path(job_id)}/artifacts/file/{quote(path)}", headers=headers)

    def artifact_contents(self, job_id: str, paths: list[str]) -> http.client.HTTPResponse:
        """Open up to 10,000 artifacts at once, their bytes joined in the order of the list of artifacts."""
        return self._transport.open(
            "POST",
            f"{job_path(job_id)}/artifacts/contents",
            body=json.dumps({"paths": paths}).encode(),
            headers={"Content-Type": "application/json", "Accept": "*/*", "Accept-Encoding": "identity"},
        )

    def chunks(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        return self._transport.chunks(response)

    def close(self) -> None:
        """Close the connection, discarding any unread response."""
        self._transport.close()

    def compare_jobs(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compare existing jobs, once, however often the connection breaks."""
        return self.create(request, to=f"{COMPARISONS}/from-jobs")

    def comparisons(self, query: dict[str, Any]) -> dict[str, Any]:
        return self._transport.json("GET", COMPARISONS, query=query, needs="comparisons")

    def comparison(self, comparison_id: str) -> dict[str, Any]:
        return self._transport.json("GET", comparison_path(comparison_id), needs="rows")

    def repeat_comparison(self, comparison_id: str, machine_types: list[str], max_cost: float) -> dict[str, Any]:
        """Submit one more job on machine types of a comparison, whose jobs may cost so many dollars."""
        repeats = {"machineTypes": machine_types, "maxCost": max_cost}
        return self.create(repeats, to=f"{comparison_path(comparison_id)}/repeats")

    def export_comparison(self, comparison_id: str) -> dict[str, Any]:
        return self._transport.json("GET", f"{comparison_path(comparison_id)}/export", needs="sha256")

    def import_comparison(self, content: bytes) -> dict[str, Any]:
        """Import an exported comparison; the same file again gives the same comparison."""
        return self._send("POST", f"{COMPARISONS}/import", lambda: content, needs="id")

    def rename_comparison(self, comparison_id: str, name: str) -> dict[str, Any]:
        return self._transport.json("PATCH", comparison_path(comparison_id), body={"name": name}, needs="id")

    def delete_comparison(self, comparison_id: str) -> None:
        self._transport.json("DELETE", comparison_path(comparison_id))

    def templates(self, noun: str, query: dict[str, Any]) -> dict[str, Any]:
        """Return one page of `schedules` or `sweeps`, newest first."""
        return self._transport.json("GET", f"/{noun}", query=query, needs=noun)

    def template(self, noun: str, template_id: str) -> dict[str, Any]:
        return self._transport.json("GET", template_path(noun, template_id), needs="id")

    def change_template(self, noun: str, template_id: str, action: str) -> dict[str, Any]:
        """Suspend, resume, pause or stop it, and return it; or trigger a schedule, and return the new job."""
        return self._transport.json("POST", template_path(noun, template_id, action), needs="id")

    def request_trial(self, sweep_id: str, key: str) -> dict[str, Any]:
        return self._transport.json(
            "POST", template_path("sweeps", sweep_id, "trials"), body={"key": key}, needs="retry"
        )

    def report_trial(self, sweep_id: str, number: int, report: dict[str, Any]) -> dict[str, Any]:
        """Report values of a trial that a program of one's own evaluates, or its end, and return the trial."""
        path = template_path("sweeps", sweep_id, f"trials/{number}")
        return self._transport.json("POST", path, body=report, needs="params")

    def delete_template(self, noun: str, template_id: str) -> None:
        """Delete a schedule or a sweep; its jobs stay."""
        self._transport.json("DELETE", template_path(noun, template_id))

    def machine_types(self) -> dict[str, Any]:
        return self._transport.json("GET", "/machine-types", needs="machineTypes")

    def workers(self) -> dict[str, Any]:
        return self._transport.json("GET", "/workers", needs="workers")

    def set_drained(self, worker: str, *, drained: bool) -> dict[str, Any]:
        """Let a worker claim no more jobs, or claim jobs again, and return it."""
        path = f"/workers/{quote(worker, safe='')}/{'drain' if drained else 'resume'}"
        return self._transport.json("POST", path, needs="name")

    def images(self) -> dict[str, Any]:
        return self._transport.json("GET", "/images", needs="images")

    def tpus(self) -> dict[str, Any]:
        return self._transport.json("GET", "/tpus", needs="tpus")

    def costs(self, by: str, days: int) -> dict[str, Any]:
        return self._transport.json("GET", "/costs", query={"by": by, "days": days}, needs="rows")

    def costs_csv(self, by: str, days: int) -> Iterator[bytes]:
        return self._transport.chunks(self._transport.open("GET", "/costs/csv", query={"by": by, "days": days}))

    def projects(self) -> dict[str, Any]:
        return self._transport.json("GET", "/projects", needs="projects")

    def create_project(self, name: str) -> dict[str, Any]:
        return self._transport.json("POST", "/projects", body={"name": name}, needs="id")

    def update_project(self, project_id: str, changes: dict[str, Any]) -> dict[str, Any]:
        path = f"/projects/{quote(project_id, safe='')}"
        return self._transport.json("PATCH", path, body=changes, needs="id")

    def project_members(self, project_id: str) -> dict[str, Any]:
        return self._transport.json("GET", f"/projects/{quote(project_id, safe='')}/members", needs="members")

    def set_member(self, project_id: str, member: str, role: str) -> None:
        """Give a member a role; empty: none any more."""
        path = f"/projects/{quote(project_id, safe='')}/members/{quote(member, safe='')}"
        self._transport.json("PUT" if role else "DELETE", path, body={"role": role} if role else None)

    def delete_project(self, project_id: str) -> None:
        self._transport.json("DELETE", f"/projects/{quote(project_id, safe='')}")

    def storage(self, project_id: str, path: str, *, recursive: bool, after: str | None = None) -> dict[str, Any]:
        """Return one page of a folder in a project's storage, or the entry of a file."""
        query = {"path": path, "recursive": str(recursive).lower(), "limit": _STORED_PAGE, "after": after}
        return self._transport.json("GET", storage_path(project_id), query=query, needs="entries")

    def stored_file(self, project_id: str, path: str, *, offset: int = 0, etag: str = "") -> http.client.HTTPResponse:
        """Open a file in a project's storage, as `artifact` opens one of a job."""
        return self._transport.open("GET", storage_path(project_id, path), headers=range_headers(offset, etag))

    def store_file(
        self,
        project_id: str,
        path: str,
        file: BinaryIO,
        sent: Callable[[int], None],  # called with the number of bytes sent so far
        *,
        size: int,  # its bytes
        facts: dict[str, Any],  # its digest and other metadata, as the server names them
    ) -> dict[str, Any]:
        """Store an open file in a project's storage, replacing one at this path."""

        def attempt() -> dict[str, Any]:
            file.seek(0)
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
            response = self._transport.open(
                "PUT",
                storage_path(project_id, path),
                query=facts,
                body=file_chunks(file, size, sent),
                headers=headers,
                seconds=UPLOAD_SECONDS,
            )
            return self._transport.read_json(response, "path")

        return retry(attempt, SUBMIT_DELAYS)

    def delete_stored(self, project_id: str, path: str, *, recursive: bool) -> None:
        self._transport.json("DELETE", storage_path(project_id, path), query={"recursive": str(recursive).lower()})

    def keys(self) -> dict[str, Any]:
        """List the API keys that the caller may see."""
        return self._transport.json("GET", "/keys", needs="keys")

    def own_key(self) -> dict[str, Any]:
        return self._transport.json("GET", "/keys/self", needs="id")

    def exchange_code(self, code: str, name: str) -> dict[str, Any]:
        path, query = "/original/apiTokens/createPublic", {"access_token": code}
        return self._transport.json("POST", path, query=query, body={"apiToken": name}, needs="key")

    def create_key(self, key: dict[str, Any]) -> dict[str, Any]:
        return self._transport.json("POST", "/keys", body=key, needs="apiKey")

    def revoke_key(self, key_id: str) -> None:
        self._transport.json("DELETE", f"/keys/{quote(key_id, safe='')}")

    def add_ssh_keys(self, keys: dict[str, Any]) -> dict[str, Any]:
        return self._transport.json("POST", "/ssh-keys", body=keys, needs="hostKey")

    def notifications(self, method: str, *names: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        path = "/".join(["/notifications", *(quote(name, safe="") for name in names)])
        return self._transport.json(method, path, body=body)

    def credentials(self, kind: str, project_id: str | None) -> dict[str, Any]:
        """List `secrets` or `registries` that a project's jobs use, or those shared by all projects."""
        return self._transport.json("GET", credentials_path(kind, project_id), needs=kind)

    def set_credential(self, kind: str, name: str, content: dict[str, Any], project_id: str | None) -> dict[str, Any]:
        return self._transport.json("PUT", credentials_path(kind, project_id, name), body=content, needs="createdAt")

    def delete_credential(self, kind: str, name: str, project_id: str | None) -> None:
        self._transport.json("DELETE", credentials_path(kind, project_id, name))

    def health(self) -> dict[str, Any]:
        return self._transport.json("GET", "/health", needs="status")
