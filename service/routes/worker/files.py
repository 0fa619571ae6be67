"""Files that workers on other hosts send and fetch, with tokens of their own instead of keys; see decision 35."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Depends, Query, Request, Response
from fastapi.responses import FileResponse, RedirectResponse
from pydantic import Field, TypeAdapter, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection

from core.db.database import on_commit
from core.db.models.jobs import Job
from core.errors import LeaseLost, SpecInvalid, Unauthorized, WorkspaceNotFound
from core.jobs import lifecycle, queries
from core.jobs.scheduling import workers
from core.jobs.spec.dependencies import parse_inputs
from core.jobs.states import OWNED
from core.security import credentials, worker_logins, worker_tokens
from core.security.encryption import Vault
from core.storage.artifacts.received import MAX_UPLOADS
from core.storage.artifacts.store import ArtifactReceiver, OpenArtifact
from core.storage.joblogs.writer import LogSink
from core.storage.prune import remove_late_outputs
from core.storage.shared.project_files import ProjectFiles
from core.storage.workspaces import StoredWorkspace
from service.app_state import AppState
from service.deps import AppStateDep
from service.http.body_limit import allow_worker_files
from service.http.responses import file_responses
from service.http.routing import Router

router = Router(prefix="/worker", include_in_schema=False, lane=lambda lanes: lanes.worker_files)

_MAX_POSITION = 2**53  # bytes of a job's output

T = TypeVar("T")
_PATHS = TypeAdapter(Annotated[list[str], Field(max_length=MAX_UPLOADS)])


async def _read_token(request: HTTPConnection) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized("The request has no worker token. Send one as `Authorization: Bearer`.")
    return token


TokenDep = Annotated[str, Depends(_read_token)]


async def authenticate(app_state: AppStateDep, token: TokenDep) -> str:
    return await app_state.lanes.urgent.run(app_state.worker_tokens.authenticate, token)


WorkerDep = Annotated[str, Depends(authenticate)]


class _Held(NamedTuple):
    """The attempt that a request is about, and who says that it holds it."""

    app_state: AppState
    worker: str
    job_id: str
    attempt: int

    def read(self, query: Callable[[Session, Job], T], *, earlier: bool = False, changes: bool = False) -> T:
        """Query the database about the job; `changes`: and change it.

        `earlier`: the request is about this attempt or one before the one that the worker holds. Raises `LeaseLost`:
        the worker does not hold the job in this attempt.
        """
        database = self.app_state.database
        with database.write() if changes else database.read() as session:
            job = session.scalar(select(Job).where(Job.id == self.job_id))
            attempts = () if job is None else range(1, job.attempt + 1) if earlier else (job.attempt,)
            if job is None or job.worker != self.worker or job.state not in OWNED or self.attempt not in attempts:
                raise LeaseLost(f"worker {self.worker} does not hold attempt {self.attempt} of job {self.job_id}")
            return query(session, job)

    def require(self, *, earlier: bool = False) -> None:
        self.read(lambda _session, _job: None, earlier=earlier)

    def require_readable(self) -> None:
        """Check that the worker holds a later attempt, or another job of which this one is an input."""
        with self.app_state.database.read() as session:
            held = session.scalars(select(Job).where(Job.worker == self.worker, Job.state.in_(OWNED)))
            inputs = {job_input.job_id for job in held for job_input in parse_inputs(job.spec.inputs)}
        if self.job_id not in inputs:
            self.require(earlier=True)

    @property
    def stored_files(self) -> ProjectFiles:
        project_id = self.read(lambda _session, job: job.project_id)
        return ProjectFiles(self.app_state.storage, project_id)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Check that the worker holds the attempt, before a change of what is stored of it.

        The change may take long. What comes after the removal of the job's outputs is removed, too.
        """
        self.require()
        try:
            yield
        finally:
            remove_late_outputs(self.app_state, self.job_id)

    @property
    def receiver(self) -> ArtifactReceiver:
        return self.app_state.artifacts.receiver(self.job_id, self.attempt)


async def _held(app_state: AppStateDep, worker: WorkerDep, job_id: str, attempt: int) -> _Held:
    return _Held(app_state, worker, job_id, attempt)


async def _read_body(request: Request, _worker: WorkerDep) -> bytes:
    allow_worker_files(request)
    return await request.body()


Body = Annotated[bytes, Depends(_read_body)]


@router.get("")
def identify(app_state: AppStateDep, token: TokenDep) -> dict[str, str]:
    """Return the name of the worker whose token this is; a worker that starts is refused as soon as it is revoked."""
    worker = app_state.worker_tokens.authenticate(token, cached=False)
    worker_logins.keep_broker_user(app_state.database, app_state.settings, worker)
    return {"worker": worker}


@router.post("/join")
def join(app_state: AppStateDep, token: TokenDep, name: str = "") -> dict[str, str]:
    """Redeem an invitation: return a worker's token, and the settings with which it reaches database and broker."""
    return worker_tokens.join(app_state.database, app_state.settings, token, name)


@router.put("/host", status_code=204)
def record_host(
    app_state: AppStateDep,
    token: TokenDep,
    _worker: WorkerDep,  # before the values: without a token they are nobody's business
    host: Annotated[str, Query(min_length=1, max_length=255, pattern=r"^[^\x00]*$")],
    silent_seconds: Annotated[float, Query(ge=0, le=3600, allow_inf_nan=False)],
) -> None:
    """Record on which host a worker is, before it registers."""
    worker = app_state.worker_tokens.authenticate(token, cached=False)
    with app_state.database.write() as session:
        workers.record_host(session, worker, host, silent_seconds=silent_seconds)


@router.post("/refusal", status_code=204)
def record_refusal(
    app_state: AppStateDep, token: TokenDep, body: Body, name: str, host: Annotated[str, Query(max_length=255)]
) -> None:
    """Record why a worker ends at its start; it may not reach the database."""
    worker = app_state.worker_tokens.authenticate(token, cached=False)
    if name != worker:
        raise SpecInvalid(f"This token belongs to worker {worker!r}, not to {name!r}.")
    with app_state.database.write() as session:
        workers.refuse(session, worker, body.decode("utf-8", "replace"), host=host)


_HeldDep = Annotated[_Held, Depends(_held)]


@router.post("/jobs/{job_id}/{attempt}/log")
def append_to_log(
    held: _HeldDep,
    body: Body,
    offset: Annotated[
        int | None, Query(ge=0, le=_MAX_POSITION, description="position of the body in the job's output")
    ] = None,
    source_bytes: Annotated[
        int | None, Query(ge=0, le=_MAX_POSITION, description="bytes of output that the body represents")
    ] = None,
    resume: Annotated[
        int | None, Query(ge=0, le=_MAX_POSITION, description="leave out output up to this position")
    ] = None,
    sync: Annotated[bool, Query(description="sync to disk, so that it survives a power failure")] = False,  # noqa: FBT002 - a query parameter
) -> dict[str, int]:
    """Append output that begins where the log ends; anything else, as a repeated request, changes nothing."""
    logs = held.app_state.logs
    with ExitStack() as stack:
        stack.enter_context(held.writing())
        writer = logs.open_writer(held.job_id, held.attempt)
        stack.callback(writer.close, sync=False)
        if offset == writer.position:
            _append(writer, body, source_bytes, resume)
        if sync:
            writer.sync()
        return {"position": writer.position, "remaining": writer.remaining_bytes}


def _append(writer: LogSink, body: bytes, source_bytes: int | None, resume: int | None) -> None:
    at_ms = time.time_ns() // 1_000_000  # of this clock: readers compare times of lines of all hosts
    end = resume if resume is not None else writer.position + (len(body) if source_bytes is None else source_bytes)
    if not writer.position <= end <= _MAX_POSITION:
        raise SpecInvalid(f"The log is at byte {writer.position} of the job's output and cannot continue at {end}.")
    if resume is None:
        writer.append(body, at_ms, source_bytes=source_bytes)
    else:
        writer.append_gap(resume - writer.position, resume, at_ms)


@router.get("/jobs/{job_id}/{attempt}/log")
def show_log_size(held: _HeldDep) -> dict[str, int]:
    held.require()
    return {"size": held.app_state.logs.size(held.job_id, held.attempt)}


@router.post("/jobs/{job_id}/changed", status_code=204)
def notify_followers(app_state: AppStateDep, _worker: WorkerDep, job_id: str) -> None:
    """Wake the log's followers, who read the job's row; any worker may, also once the job has ended.

    Then its end is settled: its worker may change no other jobs.
    """
    app_state.logs.notify_followers(job_id)
    with app_state.database.read() as session:
        job = queries.get_row(session, job_id)
    if job is not None and job.ended:
        with app_state.database.write() as session:
            on_commit(session, app_state.wake)
            lifecycle.settle(session, job)


@router.put("/jobs/{job_id}/{attempt}/artifacts")
def take_artifact_list(
    held: _HeldDep,
    body: Body,
    final: bool = False,  # noqa: FBT001, FBT002 - a query parameter
) -> dict[str, int]:
    """Take the list of an attempt's artifacts; return which are missing, with the bytes of each that are here."""
    with held.writing():
        return held.receiver.take_list(body, final=final)


@router.post("/jobs/{job_id}/{attempt}/artifacts", status_code=204)
def add_artifact_pieces(held: _HeldDep, body: Body) -> None:
    with held.writing():
        held.receiver.add(body)


@router.post("/jobs/{job_id}/{attempt}/artifacts/uploads")
def sign_uploads(held: _HeldDep, body: Body) -> dict[str, Any] | None:
    """Return URLs by which the worker puts files of this attempt into the bucket; null: there is none."""
    held.require()
    try:
        paths = _PATHS.validate_json(body)
    except ValidationError as error:
        raise SpecInvalid(f"The body has to be a JSON list of at most {MAX_UPLOADS} paths.") from error
    return held.receiver.sign(paths)


@router.get("/jobs/{job_id}/{attempt}/artifacts")
def list_earlier_artifacts(held: _HeldDep) -> dict[str, list[Any]]:
    """Return the list of artifacts of this or an earlier attempt, or of an input."""
    held.require_readable()
    store = held.app_state.artifacts
    return {
        "files": list(store.walk(held.job_id, held.attempt)),
        "folders": list(store.folders(held.job_id, held.attempt)),
    }


@router.get("/jobs/{job_id}/{attempt}/artifacts/file")
def read_earlier_artifact(request: Request, held: _HeldDep, file: str) -> Response:
    held.require_readable()
    if url := held.app_state.artifacts.link(held.job_id, held.attempt, file, for_worker=True):
        return RedirectResponse(url, 307)
    return _send_range(request, held.app_state.artifacts.open(held.job_id, held.attempt, file))


def _send_range(request: Request, opened: OpenArtifact) -> Response:
    byte_range = file_responses.parse_range(request, opened.size, "")
    return file_responses.range_response(file_responses.file_blocks(opened.file, byte_range), byte_range, {})


@router.get("/jobs/{job_id}/{attempt}/storage")
def list_uploaded_files(
    held: _HeldDep, after: str | None = None, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000
) -> dict[str, Any]:
    """List the files in the storage of the job's project that clients have uploaded and nobody has changed since.

    `unknown`: this host cannot tell which these are.
    """
    files = held.stored_files
    page = files.page("", recursive=True, after=after, limit=limit)
    unknown = any(entry.kind == "file" for entry in page.entries) and not files.keeps_digests()
    entries = [asdict(entry) for entry in page.entries if entry.sha256 is not None]
    return {"entries": entries, "next": page.next, "unknown": unknown}


@router.get("/jobs/{job_id}/{attempt}/storage/file")
def read_uploaded_file(request: Request, held: _HeldDep, file: str) -> Response:
    files = held.stored_files
    if url := files.sign(file):
        return RedirectResponse(url, 307)
    return _send_range(request, files.open(file))


@router.get("/workspaces/{sha256}")
def show_workspace(app_state: AppStateDep, worker: WorkerDep, sha256: str) -> dict[str, Any]:
    """Describe the workspace of a job that the worker holds."""
    return asdict(_find_workspace(app_state, worker, sha256))


@router.get("/workspaces/{sha256}/parts/{part}")
def read_workspace(app_state: AppStateDep, worker: WorkerDep, sha256: str, part: str) -> Response:
    """Read such a workspace as it was sent, or one of its packs."""
    stored = _find_workspace(app_state, worker, sha256)
    if part == sha256:
        return FileResponse(app_state.workspaces.path(sha256))
    if part in stored.packs:
        return FileResponse(app_state.workspaces.pack_path(part))
    raise WorkspaceNotFound(f"The workspace {sha256} has no part {part[:100]!r}.")


def _find_workspace(app_state: AppState, worker: str, sha256: str) -> StoredWorkspace:
    with app_state.database.read() as session:
        held = session.scalars(select(Job).where(Job.worker == worker, Job.state.in_(OWNED)))
        named = any(job.spec.workspace_sha256 == sha256 for job in held)
    stored = app_state.workspaces.stat(sha256) if named else None
    if stored is None:
        raise WorkspaceNotFound(f"The workspace {sha256} is not stored here, or no job of worker {worker} uses it.")
    return stored


@router.get("/jobs/{job_id}/{attempt}/environment")
def resolve_environment(held: _HeldDep) -> dict[str, str]:
    """Return the user's environment with the values of the secrets it names."""
    vault = Vault(held.app_state.settings)
    return held.read(lambda session, job: credentials.resolve_env(session, vault, job), changes=True)


@router.get("/jobs/{job_id}/{attempt}/logins/registry")
def find_registry_login(held: _HeldDep, image: str, push: bool = False) -> list[str]:  # noqa: FBT001, FBT002 - a query parameter
    """Return host, user and password for an image's registry; nothing if there is no login for it."""
    vault = Vault(held.app_state.settings)
    login = held.read(lambda session, job: credentials.registry_login_for(session, vault, job, image, push=push))
    return [] if login is None else [login.host, login.username, login.password]


@router.get("/jobs/{job_id}/{attempt}/logins/git")
def find_git_login(held: _HeldDep) -> list[str]:
    vault = Vault(held.app_state.settings)
    login = held.read(lambda session, job: credentials.git_login(session, vault, job))
    return [] if login is None else [login]
