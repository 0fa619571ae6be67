"""Tools for programs that speak the Model Context Protocol: of `gradient-cli mcp`, and of a server's own `/mcp`.

Needs the extra `mcp`, and Python 3.10. What changes something takes two calls: the first says what would happen, and
returns a token for the second, which does that or, if it would no longer be the same, nothing.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import http.client
import inspect
import io
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

import anyio
import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from typing_extensions import TypedDict

from gradient_cli import config
from gradient_cli.api.client import Api
from gradient_cli.api.transport import Transport
from gradient_cli.commands.version import client_version
from gradient_cli.errors import ClientError, ServerError
from gradient_cli.workspace import submission, workspace_path
from gradient_jobs.options import build_remote_spec, build_spec
from gradient_jobs.records import LogLine
from gradient_jobs.submission import submit

_R = TypeVar("_R")

TOKEN_SECONDS = 600
_MAX_LINES = 500
_MAX_BYTES = 64 * 1024
_MAX_WAIT = 50.0  # below the 60 s after which clients give up
_POLL_SECONDS = 2.0
_POINTS = 50
_THREADS = 16  # calls that talk with the server at once; those that wait for a job's end take none
_NOT_SENT = {".git", ".gitignore", ".gradientignore"}  # of files that are named one by one, nothing is left out
_SHOWN = (
    *("id", "name", "state", "reason", "message", "exitCode", "phase", "phaseDetail", "queuePosition"),
    *("estimatedStartAt", "machineType", "simulated", "command", "project", "attempt", "createdAt", "startedAt"),
    *("finishedAt", "durationSeconds", "cost", "artifactsState", "notes", "url"),
)
_NEXT = {  # by the status of an error without a hint
    400: "correct it, and call again",
    402: "preview_job with a smaller time_limit or max_cost, or ask your user for a larger budget",
    404: "list_jobs",
    422: "correct it, and call again",
}
_INSTRUCTIONS = """\
Runs trainings on the machines of a Gradient Jobs server. To train: list_machine_types, preview_job, submit_job with the
token (it and stop_job have to be asked for when connecting), then show_job with wait_seconds until the state is Stopped
(succeeded), Failed, Error or Cancelled. If it failed, read_log with tail, mend the files, and submit again. What a job
writes to $GRADIENT_ARTIFACTS_DIR are its artifacts."""


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


class Caller(NamedTuple):
    """Whom the tools work for, and their way to the server."""

    url: str
    key: str
    connect: Callable[[], Transport]
    is_here: bool  # whether folders and variables of this machine are the caller's


class InProcess(Transport):
    """Requests to the server of this process.

    `exchange`: answers a method, a target, headers and a body with the bytes of an HTTP response; called in a thread.
    """

    def __init__(self, url: str, key: str, exchange: Callable[[str, str, dict[str, str], bytes], bytes]) -> None:
        super().__init__(url, key)
        self._parts = self._parts._replace(path="")  # which a proxy in front removes
        self._proxy = None
        self._exchange = exchange

    def send(
        self,
        method: str,
        target: str,
        body: bytes | Iterator[bytes] | None,
        headers: dict[str, str],
        seconds: float,  # noqa: ARG002 - the server limits its time itself
        *,
        keep: bool,  # noqa: ARG002 - there is no connection
    ) -> http.client.HTTPResponse:
        content = body if isinstance(body, bytes) else b"".join(body or ())
        received = _Received(self._exchange(method, target, headers, content))
        response = http.client.HTTPResponse(received, method=method)  # type: ignore[arg-type]  # it only makes a file of it
        response.begin()
        return response

    def _retry_rate_limited(self, send: Callable[[], http.client.HTTPResponse]) -> http.client.HTTPResponse:
        return send()


class _Received:
    """Bytes in place of a socket."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)


class Tools:
    """The tools; each call has a connection of its own.

    `caller`: returns whom a call is for.
    """

    def __init__(self, caller: Callable[[], Caller]) -> None:
        self._caller = caller
        self._threads = anyio.CapacityLimiter(_THREADS)

    def whoami(self) -> dict[str, Any]:
        """Show the server and what this API key may do: scope, projects, machine types, most unfinished jobs."""
        return {"server": self._caller().url, **self._api().own_key()}

    def list_machine_types(self) -> dict[str, Any]:
        """List the machine types with hardware, price in US dollars an hour, and how many are free."""
        return self._api().machine_types()

    def list_jobs(self, query: str = "", limit: int = 20) -> dict[str, Any]:
        """List the newest jobs. `query` is a search as in the dashboard, such as `state:failed project:vision`."""
        page = self._api().jobs({"q": query or None, "limit": max(1, min(limit, 100))})
        notes = {"notes": page["notes"]} if page.get("notes") else {}
        return {"jobs": [_shown(job) for job in page["jobs"]], **notes, "next": "show_job with an id"}

    async def show_job(self, job_id: str, wait_seconds: float = 0) -> dict[str, Any]:
        """Show a job: state, why it waits or failed, cost. Waits up to 50 seconds for its end if asked to."""
        until = time.monotonic() + min(wait_seconds, _MAX_WAIT)
        job = await self._in_thread(self._api().job, job_id)
        while not job.get("finishedAt") and (left := until - time.monotonic()) > 0:
            await anyio.sleep(min(_POLL_SECONDS, left))
            job = await self._in_thread(self._api().job, job_id)
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
        if offset < 0:
            raise ToolError("offset: must not be negative. Next: read_artifact without offset.")
        api = self._api()  # which closes the connection when it is gone
        try:
            with api.artifact(job_id, path, offset=offset, most=_MAX_BYTES + 1) as response:
                data = response.read(_MAX_BYTES)
                more = bool(response.read(1))
        except ServerError as error:
            if error.status != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            if offset:
                raise ToolError("offset: the file is shorter. Next: read_artifact without offset.") from None
            data, more = b"", False
        return {"text": data.decode(errors="replace"), "next_offset": offset + len(data) if more else None}

    def preview_job(
        self,
        command: str,
        machine_type: str,
        folder: str | None = None,
        files: dict[str, str] | None = None,
        options: dict[str, Any] | None = None,
    ) -> Preview:
        """Check a job without submitting it: its price, when it would start, what would be uploaded.

        `folder`: the folder that is uploaded and in which the command runs, if the tools run on your machine. `files`:
        texts by path that are uploaded instead of a folder, such as {"train.py": "print(1)"}; none if both are left
        out. `options`: options of `gradient-cli jobs create` by their names in Python, such as {"name": "a",
        "time_limit": "2h", "env_vars": {"A": "1"}}. Returns the token for submit_job, valid for ten minutes.
        """
        with self._workspace(folder, files) as root:
            plan, what = self._plan(*self._spec(command, machine_type, root, options))
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
        files: dict[str, str] | None = None,
        options: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Submit the job that preview_job showed, with its arguments and token. Costs money."""
        with self._workspace(folder, files) as root:
            job = self._spec(command, machine_type, root, options)
            self._check_token(confirm_token, "submit", self._plan(*job)[1])
            submitted = submit(self._api(), *job)
        return {**_shown(submitted), "next": "show_job with wait_seconds"}

    def stop_job(self, job_id: str, confirm_token: str | None = None) -> dict[str, Any]:
        """Stop a job: without a token says what would be stopped and returns one, with it does. Artifacts stay."""
        job = self._api().job(job_id)
        if confirm_token is None:
            token = self._token("stop", job_id)
            return {"would_happen": {"stopped": _shown(job)}, "confirm_token": token, "next": "stop_job with the token"}
        self._check_token(confirm_token, "stop", job_id)
        return {**_shown(self._api().stop_job(job_id)), "next": "show_job with wait_seconds"}

    def with_next(self, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """Let a tool report expected errors as text with the next step, not as a failure of the server."""

        @functools.wraps(function)
        async def call(**arguments: Any) -> Any:  # noqa: ANN401 - of the tool
            try:
                if inspect.iscoroutinefunction(function):
                    return await function(**arguments)
                return await self._in_thread(function, **arguments)
            except ClientError as error:
                next_step = error.hint or _NEXT.get(getattr(error, "status", 0), "whoami")
                raise ToolError(f"{str(error).rstrip('.')}. Next: {next_step}") from error

        return call

    async def _in_thread(self, function: Callable[..., _R], *args: object, **arguments: object) -> _R:
        """Call a function in a thread of our own, so that waiting ones do not take all that others use."""
        call = functools.partial(function, *args, **arguments)
        return await anyio.to_thread.run_sync(call, limiter=self._threads)

    def _api(self) -> Api:
        return Api(self._caller().connect())

    @contextmanager
    def _workspace(self, folder: str | None, files: dict[str, str] | None) -> Iterator[str | None]:
        """Yield the folder to upload; None: there is none."""
        if folder is not None and files is not None:
            raise ToolError("files: given with folder. Next: leave one of them out.")
        if folder is not None and not self._caller().is_here:
            raise ToolError("folder: these tools do not see your machine. Next: send the texts in files.")
        if files is None:
            yield folder and os.path.abspath(folder)
            return
        with tempfile.TemporaryDirectory(prefix="gradient-files-") as root:
            for name, text in files.items():
                _write(root, name, text)
            yield root

    def _spec(
        self, command: str, machine_type: str, root: str | None, options: dict[str, Any] | None
    ) -> tuple[dict[str, Any], str, list[str]]:
        """Return a job's fields, its workspace, and the patterns of excluded files to upload."""
        given = {"workspace": "none", **(options or {}), "command": command, "machine_type": machine_type}
        given |= {} if root is None else {"workspace": root}
        if self._caller().is_here:
            return build_spec(given, filed=False)
        workspace = str(given.pop("workspace"))
        if root is None and workspace != "none" and not workspace_path.is_url(workspace):
            raise ToolError("workspace: neither none nor a git URL. Next: send the texts in files.")
        return build_remote_spec(given), workspace, []

    def _plan(self, spec: dict[str, Any], workspace: str, include: list[str]) -> tuple[dict[str, Any], str]:
        """Return what a submission would do, and the text that a token of it is for."""
        api = self._api()
        upload = None
        if workspace == "none" or workspace_path.is_url(workspace):
            spec = {**spec, "workspace": workspace}
        else:
            archive = submission.plan_upload(api, workspace, submission.read_folder(workspace, include))
            upload = {"sha256": archive.sha256, "bytes": archive.size}
        answer = api.resolve_job(spec)
        plan = {name: answer.get(name) for name in ("pricePerHour", "maxCost", "queuePosition", "waitMessage")}
        plan |= {"startsAt": answer.get("estimatedStartAt"), "notes": answer.get("notes"), "job": spec}
        bound = [spec, upload and upload["sha256"], plan["pricePerHour"]]
        return {**plan, "upload": upload}, json.dumps(bound, sort_keys=True)

    def _token(self, action: str, what: str, until: int | None = None) -> str:
        """Return a token of this key for an action; it needs no memory, so that any process may take it."""
        until = int(time.time()) + TOKEN_SECONDS if until is None else until
        signed = hashlib.sha256(f"{action} {until} {what}".encode()).digest()
        return f"{until}.{hmac.new(self._caller().key.encode(), signed, hashlib.sha256).hexdigest()}"

    def _check_token(self, token: str, action: str, what: str) -> None:
        until, _, _ = token.partition(".")
        if not until.isdecimal() or int(until) < time.time():
            raise ToolError(f"confirm_token: expired, or none. Next: preview_job, or stop_job without it ({action}).")
        if not hmac.compare_digest(token, self._token(action, what, int(until))):
            raise ToolError(
                "confirm_token: of something else. Arguments, files of the folder or the price have changed since. "
                "Next: preview again."
            )


def local_caller(url: str | None, api_key: str | None) -> Caller:
    """Return the user of this machine; the arguments are the client's options, None as it finds them."""
    settings = config.resolve(url, api_key)
    connect = functools.partial(Transport, settings.url, settings.key, settings.source)
    return Caller(settings.url, settings.key, connect, is_here=True)


def build_server(caller: Callable[[], Caller], *, write: bool) -> MCPServer[Any]:
    """Return a server with the tools that only read, and with `write` those that submit and stop jobs."""
    tools = Tools(caller)
    server: MCPServer[Any] = MCPServer(
        "gradient-jobs",
        title="Gradient Jobs",
        instructions=_INSTRUCTIONS,
        version=client_version(),
        log_level="WARNING",
        subscriptions=False,
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
        server.add_tool(tools.with_next(function), title=title, annotations=hints)
    if write:
        hints = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False)
        server.add_tool(tools.with_next(tools.submit_job), title="Submit a job", annotations=hints)
        hints = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)
        server.add_tool(tools.with_next(tools.stop_job), title="Stop a job", annotations=hints)
    return server


def _write(root: str, name: str, text: str) -> None:
    """Write a file that a caller sent; the same text at the same path has the same digest whenever it is sent."""
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts or _NOT_SENT & {part.casefold() for part in parts}:
        raise ToolError(f"files: {name!r} is no path of a file in a workspace. Next: write it as src/train.py.")
    try:
        path = Path(root, *parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        for entry in (path, *path.parents[: len(parts) - 1]):
            os.utime(entry, (0, 0))
    except (OSError, ValueError) as error:
        raise ToolError(f"files: {name!r} cannot be written: {error}. Next: send it by another path.") from None


def _shown(job: dict[str, Any]) -> dict[str, Any]:
    return {name: job[name] for name in _SHOWN if job.get(name) not in (None, [], "")}


def _next_step(job: dict[str, Any]) -> str:
    if not job.get("finishedAt"):
        return "show_job with wait_seconds, or read_log"
    return "list_artifacts" if job.get("exitCode") == 0 else "read_log with tail 50, mend the cause, preview_job again"
