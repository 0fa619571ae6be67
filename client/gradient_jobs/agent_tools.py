"""Tools of `gradient-cli mcp`: what a program that speaks the Model Context Protocol may do with a server.

Needs the extra `mcp`, and Python 3.10. What changes something takes two calls: the first says what would happen, and
returns a token for the second, which does that or, if it would no longer be the same, nothing.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import http.client
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from typing_extensions import ParamSpec, TypedDict

from gradient_cli import config, follow
from gradient_cli.api.client import Api
from gradient_cli.api.transport import Transport
from gradient_cli.commands.version import client_version
from gradient_cli.errors import ClientError, TimedOut
from gradient_cli.workspace import submission, workspace_path
from gradient_jobs.options import build_spec
from gradient_jobs.records import LogLine
from gradient_jobs.submission import submit

_P = ParamSpec("_P")
_R = TypeVar("_R")

TOKEN_SECONDS = 600
_MAX_LINES = 500
_MAX_BYTES = 64 * 1024
_MAX_WAIT = 50.0  # below the 60 s after which clients give up
_POINTS = 50
_SHOWN = (
    *("id", "name", "state", "reason", "message", "exitCode", "phase", "phaseDetail", "queuePosition"),
    *("estimatedStartAt", "machineType", "simulated", "command", "project", "attempt", "createdAt", "startedAt"),
    *("finishedAt", "durationSeconds", "cost", "artifactsState", "notes", "url"),
)
_INSTRUCTIONS = """\
Runs trainings on the machines of a Gradient Jobs server. To train: list_machine_types, preview_job, submit_job with the
token, then show_job with wait_seconds until the state is Stopped (succeeded), Failed, Error or Cancelled. If it failed,
read_log with tail, mend the files, and submit again. What a job writes to $GRADIENT_ARTIFACTS_DIR are its artifacts."""


class Preview(TypedDict):
    """Consequences of a call, and the token with which they come about."""

    would_happen: dict[str, Any]
    confirm_token: str
    next: str


class Log(TypedDict):
    lines: list[str]
    last_line: int
    ended: bool
    next: str


class Text(TypedDict):
    text: str
    next_offset: int | None


class Tools:
    """The tools of one server; each call has a connection of its own.

    Args:
        url, api_key: As the client's options; None: as the client finds them.
    """

    def __init__(self, url: str | None, api_key: str | None) -> None:
        self._settings = config.resolve(url, api_key)

    def whoami(self) -> dict[str, Any]:
        """Show the server and what this API key may do: scope, projects, machine types, most unfinished jobs."""
        return {"server": self._settings.url, **self._api().own_key()}

    def list_machine_types(self) -> dict[str, Any]:
        """List the machine types with hardware, price in US dollars an hour, and how many are free."""
        return self._api().machine_types()

    def list_jobs(self, query: str = "", limit: int = 20) -> dict[str, Any]:
        """List the newest jobs. `query` is a search as in the dashboard, such as `state:failed project:vision`."""
        jobs, _ = self._api().newest_jobs({"q": query} if query else {}, max(1, min(limit, 100)))
        return {"jobs": [_shown(job) for job in jobs], "next": "show_job with an id"}

    def show_job(self, job_id: str, wait_seconds: float = 0) -> dict[str, Any]:
        """Show a job: state, why it waits or failed, cost. Waits up to 50 seconds for its end if asked to."""
        api = self._api()
        if wait_seconds > 0:
            with suppress(TimedOut):
                list(follow.wait(api, [job_id], min(wait_seconds, _MAX_WAIT)))
        job = api.job(job_id)
        return {**_shown(job), "next": _next_step(job)}

    def read_log(self, job_id: str, after_line: int = 0, tail: int | None = None, limit: int = 100) -> Log:
        """Read lines of a job's log: after a line, or the last ones (`tail`). `last_line` is the next `after_line`."""
        limit = max(1, min(limit if tail is None else tail, _MAX_LINES))
        page = self._api().logs(job_id, line=after_line, tail=None if tail is None else limit, limit=limit)
        lines = [LogLine.parse(row) for row in page["lines"]]
        last = lines[-1].number if lines else after_line
        ended = page["complete"] and last >= page["total"]
        return {
            "lines": [str(line) for line in lines],
            "last_line": last,
            "ended": ended,
            "next": "show_job" if ended else f"read_log with after_line {last}",
        }

    def read_metrics(self, job_id: str, name: str | None = None) -> dict[str, Any]:
        """Read the metrics that a job logged, at most 50 points of each."""
        return self._api().metrics(job_id, name=name, points=_POINTS)

    def list_artifacts(self, job_id: str, after: str | None = None) -> dict[str, Any]:
        """List the files that a job left, 200 a page; `after` is the last path of the page before."""
        return self._api().artifacts(job_id, limit=200, after=after)

    def read_artifact(self, job_id: str, path: str, offset: int = 0) -> Text:
        """Read 64 KiB of a text artifact; bytes that are no UTF-8 are replaced."""
        api, etag = self._api(), ""
        if offset:
            with api.artifact(job_id, path) as response:
                etag = (response.headers.get("ETag") or "").strip('"')
            api.close()
        with api.artifact(job_id, path, offset=offset, etag=etag) as response:
            if offset and response.status != http.client.PARTIAL_CONTENT:
                raise ToolError("offset: the file is shorter or still changes. Next: read_artifact without offset.")
            data = response.read(_MAX_BYTES)
            more = bool(response.read(1))
        return {"text": data.decode(errors="replace"), "next_offset": offset + len(data) if more else None}

    def preview_job(
        self,
        command: str,
        machine_type: str,
        folder: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> Preview:
        """Check a job without submitting it: its price, when it would start, what would be uploaded.

        `folder`: the folder that is uploaded and in which the command runs; none if left out. `options`: options of
        `gradient-cli jobs create` by their names in Python, such as {"name": "a", "time_limit": "2h", "env": ["A=1"]}.
        Returns the token for submit_job, valid for ten minutes.
        """
        plan, what = self._plan(command, machine_type, folder, options)
        return {
            "would_happen": plan,
            "confirm_token": self._token("submit", what),
            "next": "submit_job with the same arguments and confirm_token",
        }

    def submit_job(
        self,
        command: str,
        machine_type: str,
        confirm_token: str,
        folder: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Submit the job that preview_job showed, with its arguments and token. Costs money."""
        _, what = self._plan(command, machine_type, folder, options)
        self._check_token(confirm_token, "submit", what)
        job = submit(self._api(), *self._spec(command, machine_type, folder, options))
        return {**_shown(job), "next": "show_job with wait_seconds"}

    def stop_job(self, job_id: str, confirm_token: str | None = None) -> dict[str, Any]:
        """Stop a job: without a token says what would be stopped and returns one, with it does. Artifacts stay."""
        job = self._api().job(job_id)
        if confirm_token is None:
            token = self._token("stop", job_id)
            return {"would_happen": {"stopped": _shown(job)}, "confirm_token": token, "next": "stop_job with the token"}
        self._check_token(confirm_token, "stop", job_id)
        return {**_shown(self._api().stop_job(job_id)), "next": "show_job with wait_seconds"}

    def _api(self) -> Api:
        return Api(Transport(self._settings.url, self._settings.key, self._settings.source))

    def _spec(
        self, command: str, machine_type: str, folder: str | None, options: dict[str, Any] | None
    ) -> tuple[dict[str, Any], str, list[str]]:
        given = {**(options or {}), "command": command, "machine_type": machine_type}
        given["workspace"] = os.path.abspath(folder) if folder is not None else given.get("workspace", "none")
        return build_spec(given, filed=False)

    def _plan(
        self, command: str, machine_type: str, folder: str | None, options: dict[str, Any] | None
    ) -> tuple[dict[str, Any], str]:
        """Return what a submission would do, and the text that a token of it is for."""
        api = self._api()
        spec, workspace, include = self._spec(command, machine_type, folder, options)
        upload = None
        if workspace == "none" or workspace_path.is_url(workspace):
            spec = {**spec, "workspace": workspace}
        else:
            archive = submission.plan_upload(api, workspace, submission.read_folder(workspace, include))
            upload = {"folder": workspace, "sha256": archive.sha256, "bytes": archive.size}
        answer = api.resolve_job(spec)
        plan = {name: answer.get(name) for name in ("pricePerHour", "maxCost", "queuePosition", "waitMessage")}
        plan |= {"startsAt": answer.get("estimatedStartAt"), "notes": answer.get("notes"), "job": spec}
        bound = [spec, upload and upload["sha256"], plan["pricePerHour"]]
        return {**plan, "upload": upload}, json.dumps(bound, sort_keys=True)

    def _token(self, action: str, what: str, until: int | None = None) -> str:
        """Return a token of this key for an action; it needs no memory, so that any process may take it."""
        until = int(time.time()) + TOKEN_SECONDS if until is None else until
        signed = hashlib.sha256(f"{action} {until} {what}".encode()).digest()
        return f"{until}.{hmac.new(self._settings.key.encode(), signed, hashlib.sha256).hexdigest()}"

    def _check_token(self, token: str, action: str, what: str) -> None:
        until, _, _ = token.partition(".")
        if not until.isdecimal() or int(until) < time.time():
            raise ToolError(f"confirm_token: expired, or none. Next: preview_job, or stop_job without it ({action}).")
        if not hmac.compare_digest(token, self._token(action, what, int(until))):
            raise ToolError(
                "confirm_token: of something else. Arguments, files of the folder or the price have changed since. "
                "Next: preview again."
            )


def build_server(url: str | None, api_key: str | None, *, write: bool) -> MCPServer[Any]:
    """Return a server with the tools that only read, and with `write` those that submit and stop jobs."""
    tools = Tools(url, api_key)
    server: MCPServer[Any] = MCPServer(
        "gradient-jobs",
        title="Gradient Jobs",
        instructions=_INSTRUCTIONS,
        version=client_version(),
        log_level="WARNING",
    )
    reading: list[tuple[Callable[..., Any], str]] = [
        (tools.whoami, "Show server and key"),
        (tools.list_machine_types, "List machine types"),
        (tools.list_jobs, "List jobs"),
        (tools.show_job, "Show a job"),
        (tools.read_log, "Read a job's log"),
        (tools.read_metrics, "Read a job's metrics"),
        (tools.list_artifacts, "List a job's files"),
        (tools.read_artifact, "Read a file of a job"),
        (tools.preview_job, "Preview a job"),
    ]
    for function, title in reading:
        hints = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        server.add_tool(_with_next(function), title=title, annotations=hints)
    if write:
        hints = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False)
        server.add_tool(_with_next(tools.submit_job), title="Submit a job", annotations=hints)
        hints = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)
        server.add_tool(_with_next(tools.stop_job), title="Stop a job", annotations=hints)
    return server


def _with_next(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a tool report expected errors as text with the next step, not as a failure of the server."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except ClientError as error:
            raise ToolError(f"{str(error).rstrip('.')}. Next: {error.hint or 'whoami'}") from error

    return call


def _shown(job: dict[str, Any]) -> dict[str, Any]:
    return {name: job[name] for name in _SHOWN if job.get(name) not in (None, [], "")}


def _next_step(job: dict[str, Any]) -> str:
    if not job.get("finishedAt"):
        return "show_job with wait_seconds, or read_log"
    return "list_artifacts" if job.get("exitCode") == 0 else "read_log with tail 50, mend the cause, preview_job again"
