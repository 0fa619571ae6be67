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
import zipfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import IO, Any, NamedTuple, TypeVar

import anyio
import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from typing_extensions import TypeAlias, TypedDict

from gradient_cli import config
from gradient_cli.api.client import Api
from gradient_cli.api.transport import Body, Transport
from gradient_cli.commands.version import client_version
from gradient_cli.errors import ClientError, ServerError
from gradient_cli.workspace import submission, workspace_path
from gradient_cli.workspace.preflight import plan_job
from gradient_jobs.options import build_remote_spec, build_spec
from gradient_jobs.records import LogLine
from gradient_jobs.submission import submit

_R = TypeVar("_R")
_Files: TypeAlias = "dict[str, str] | None"
_Options: TypeAlias = "dict[str, Any] | None"

TOKEN_SECONDS = 600
_MAX_LINES = 500
_MAX_BYTES = 64 * 1024
_MAX_WAIT = 50.0  # below the 60 s after which clients give up
_POLL_SECONDS = 2.0
_POINTS = 50
_LONGEST_PATH = 4096
_THREADS = 16  # calls that talk with the server at once; those that wait for a job's end take none
_SHOWN = (
    *("id", "name", "state", "reason", "message", "exitCode", "phase", "phaseDetail", "queuePosition"),
    *("estimatedStartAt", "machineType", "simulated", "command", "project", "attempt", "createdAt", "startedAt"),
    *("finishedAt", "durationSeconds", "cost", "artifactsState", "notes", "url"),
)
_PLANNED = ("pricePerHour", "maxCost", "queuePosition", "waitMessage", "imageCheck")
_CORRECT = "correct it, and call again"
_SPEND_LESS = "preview_job with a smaller time_limit or max_cost, or ask your user for a larger budget"
_NEXT = {400: _CORRECT, 402: _SPEND_LESS, 404: "list_jobs", 422: _CORRECT}  # by the status of errors without a hint
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
        self, method: str, target: str, body: Body, headers: dict[str, str], seconds: float, *, keep: bool
    ) -> http.client.HTTPResponse:
        del seconds, keep  # the server limits its time itself, and there is no connection
        content = body if isinstance(body, bytes) else b"".join(body or ())
        received = io.BytesIO(self._exchange(method, target, headers, content))
        socket: Any = SimpleNamespace(makefile=lambda _mode: received)
        response = http.client.HTTPResponse(socket, method=method)
        response.begin()
        return response

    def _retry_rate_limited(self, send: Callable[[], http.client.HTTPResponse]) -> http.client.HTTPResponse:
        return send()


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
        jobs = [_shown(job) for job in page["jobs"]]
        return {"jobs": jobs, "notes": page.get("notes") or [], "next": "show_job with an id"}

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
        next_step = "show_job" if ended else f"read_log with after_line {last}"
        return {"lines": [str(line) for line in lines], "last_line": last, "ended": ended, "next": next_step}

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
        api = self._api()
        try:
            data = b"".join(api.chunks(api.artifact(job_id, path, offset=offset, last=offset + _MAX_BYTES)))
        except ServerError as error:
            if error.status != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            if offset:
                raise ToolError("offset: the file is shorter. Next: read_artifact without offset.") from None
            data = b""
        more = len(data) > _MAX_BYTES
        return {
            "text": data[:_MAX_BYTES].decode(errors="replace"),
            "next_offset": offset + _MAX_BYTES if more else None,
        }

    def preview_job(
        self, command: str, machine_type: str, folder: str | None = None, files: _Files = None, options: _Options = None
    ) -> Preview:
        """Check a job without submitting it: its price, when it would start, what would be uploaded.

        `folder`: the folder that is uploaded and in which the command runs, if the tools run on your machine. `files`:
        texts by path that are uploaded instead of a folder, such as {"train.py": "print(1)"}; none if both are left
        out. `options`: options of `gradient-cli jobs create` by their names in Python, such as {"name": "a",
        "time_limit": "2h", "env_vars": {"A": "1"}}. Returns the token for submit_job, valid for ten minutes.
        """
        with self._job(folder, files, options, command=command, machine_type=machine_type) as job:
            plan, what = self._plan(*job)
        next_step = "submit_job with the same arguments and confirm_token"
        return {"would_happen": plan, "confirm_token": self._token("submit", what), "next": next_step}

    def submit_job(
        self,
        command: str,
        machine_type: str,
        confirm_token: str,
        folder: str | None = None,
        files: _Files = None,
        options: _Options = None,
    ) -> dict[str, Any]:
        """Submit the job that preview_job showed, with its arguments and token, once a token. Costs money."""
        with self._job(folder, files, options, command=command, machine_type=machine_type) as job:
            self._check_token(confirm_token, "submit", self._plan(*job)[1])
            api = self._api()
            api.idempotency_key = hashlib.sha256(confirm_token.encode()).hexdigest()
            submitted = submit(api, *job)
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
            except (ClientError, UnicodeError) as error:  # a text may be no Unicode
                next_step = getattr(error, "hint", "") or _NEXT.get(getattr(error, "status", 400), "whoami")
                raise ToolError(f"{str(error).rstrip('.')}. Next: {next_step}") from error

        return call

    async def _in_thread(self, function: Callable[..., _R], *args: object, **arguments: object) -> _R:
        """Call a function in a thread of our own, so that waiting ones do not take all that others use."""
        call = functools.partial(function, *args, **arguments)
        return await anyio.to_thread.run_sync(call, limiter=self._threads)

    def _api(self) -> Api:
        return Api(self._caller().connect())

    @contextmanager
    def _job(
        self, folder: str | None, files: _Files, options: _Options, **given: str
    ) -> Iterator[tuple[dict[str, Any], str, list[str]]]:
        """Yield a job's fields, its workspace, and the patterns of excluded files to upload."""
        job, is_here = {"workspace": "none", **(options or {}), **given}, self._caller().is_here
        if twice := sorted({*(options or {})} & {*given, *(["workspace"] if folder or files else [])}):
            raise ToolError(f"options: {twice[0]} is given beside them, too. Next: leave it out of options.")
        if folder is not None and (files is not None or not is_here):
            raise ToolError("folder: together with files, or not on this machine. Next: send the texts in files alone.")
        with tempfile.NamedTemporaryFile(suffix=".zip") as sent:
            if folder is not None:
                job["workspace"] = os.path.abspath(folder)
            if files is not None:
                job["workspace"] = sent.name
                _pack(sent.file, files)
            if is_here:
                yield build_spec(job, filed=False)
                return
            workspace = str(job.pop("workspace"))
            if files is None and workspace != "none" and not workspace_path.is_url(workspace):
                raise ToolError("workspace: neither none nor a git URL. Next: send the texts in files.")
            yield build_remote_spec(job), workspace, []

    def _plan(self, spec: dict[str, Any], workspace: str, include: list[str]) -> tuple[dict[str, Any], str]:
        """Return what a submission would do, and the text that a token of it is for."""
        has_folder = workspace != "none" and not workspace_path.is_url(workspace)
        folder = submission.read_folder(workspace, include) if has_folder else None
        answer, upload, _, findings = plan_job(self._api(), spec, workspace, folder)
        plan = {name: answer.get(name) for name in _PLANNED}
        plan |= {"startsAt": answer.get("estimatedStartAt"), "notes": answer.get("notes"), "job": spec}
        plan |= {"upload": upload, "findings": [finding.as_json() for finding in findings]}
        bound = [spec, workspace if upload is None else upload["sha256"], plan["pricePerHour"]]
        return plan, json.dumps(bound, sort_keys=True)

    def _token(self, action: str, what: str, until: int | None = None) -> str:
        """Return a token of this key for an action; it needs no memory, so that any process may take it."""
        until = int((time.time() + TOKEN_SECONDS) * 1000) if until is None else until
        signed = hashlib.sha256(f"{action} {until} {what}".encode()).digest()
        return f"{until}.{hmac.new(self._caller().key.encode(), signed, hashlib.sha256).hexdigest()}"

    def _check_token(self, token: str, action: str, what: str) -> None:
        until = token.partition(".")[0][:15]  # in milliseconds: two previews have two tokens
        if not until.isdecimal() or int(until) < time.time() * 1000:
            raise ToolError(f"confirm_token: expired, or none. Next: preview_job, or stop_job without it ({action}).")
        if not hmac.compare_digest(token.encode(), self._token(action, what, int(until)).encode()):
            raise ToolError("confirm_token: of something else: arguments, files or price differ. Next: preview again.")


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
    reads: list[Callable[..., Any]] = [tools.whoami, tools.list_machine_types, tools.list_jobs, tools.show_job]
    reads += [tools.read_log, tools.read_metrics, tools.list_artifacts, tools.read_artifact, tools.preview_job]
    writes: list[Callable[..., Any]] = [tools.submit_job, tools.stop_job] if write else []
    for function in reads + writes:
        hints = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        if function not in reads:
            stops = function == tools.stop_job
            hints = ToolAnnotations(read_only_hint=False, destructive_hint=stops, idempotent_hint=stops)
        tool = tools.with_next(function)
        server.add_tool(tool, title=tool.__name__.replace("_", " ").capitalize(), annotations=hints)
    return server


def _pack(sent: IO[bytes], files: dict[str, str]) -> None:
    """Write an archive of texts by path; the same texts give the same archive."""
    with zipfile.ZipFile(sent, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(files.items()):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o644 << 16
            if entry.filename != name or name[:1] in {"", "/"} or ".." in name.split("/") or len(name) > _LONGEST_PATH:
                raise ToolError(f"files: {name[:80]!r} is no path of a file. Next: write it as src/train.py.")
            archive.writestr(entry, text.encode())
    sent.flush()


def _shown(job: dict[str, Any]) -> dict[str, Any]:
    return {name: job[name] for name in _SHOWN if job.get(name) not in (None, [], "")}


def _next_step(job: dict[str, Any]) -> str:
    if not job.get("finishedAt"):
        return "show_job with wait_seconds, or read_log"
    return "list_artifacts" if job.get("exitCode") == 0 else "read_log with tail 50, mend the cause, preview_job again"
