import re
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from pydantic import Field
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import ArtifactNotFound, TensorBoardUnavailable
from core.jobs import queries
from core.settings import Settings
from core.storage.artifacts.store import ArtifactStore
from core.storage.retention import OutputKind
from core.system.canonical_host import canonical_host, is_loopback
from service.app_state import AppState
from service.auth.authentication import Caller, Principal, SearchSlot, authorization
from service.deps import AppStateDep
from service.http.json_body import json_body_schema, parse_json_body
from service.http.routing import api_router
from service.presenters.outputs.removed import check_not_removed
from service.schemas.base import ErrorView, LimitedList, RequestModel, View
from service.siblings import FIRST
from service.tensorboard.board import Visitor
from service.tensorboard.board_process import sandbox_problem

router = api_router(prefix="/tensorboards", tags=["tensorboard"])

MAX_JOBS = 100
_START_SECONDS = 30.0

_EVENT_FILE = "tfevents"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 60


def find_runs(session: Session, store: ArtifactStore, job_ids: Iterable[str]) -> dict[str, Path]:
    """Return the folders of all attempts that stored event files, by the name of the run.

    Raises `ArtifactNotFound`: no attempt of these jobs has stored event files.
    """
    jobs = [queries.get(session, job_id) for job_id in dict.fromkeys(job_ids)]
    runs = {name: folder for job in jobs for name, folder in _runs_of(store, job).items()}
    if not runs:
        if len(jobs) == 1:
            check_not_removed(session, jobs[0], OutputKind.ARTIFACTS)
        yet = "yet " if any(job.finished_at is None for job in jobs) else ""
        who = "This job has no" if len(jobs) == 1 else "None of these jobs has"
        raise ArtifactNotFound(
            f"{who} event files for TensorBoard among its artifacts {yet}(files with `tfevents` in their names). "
            "Have the program write them to $GRADIENT_ARTIFACTS_DIR; a running job's files appear with the next "
            "copy of its artifacts."
        )
    return runs


def _runs_of(store: ArtifactStore, job: Job) -> dict[str, Path]:
    name = f"{_NOT_IN_A_NAME.sub('_', job.shown_name)[:_MAX_NAME]}-{job.id}"
    folders = {
        number: folder
        for number in range(1, job.attempt + 1)
        if any(_EVENT_FILE in file.path.rpartition("/")[2] for file in store.walk(job.id, number))
        and (folder := store.folder(job.id, number))
    }
    return {name if len(folders) == 1 else f"{name}-attempt-{number}": folder for number, folder in folders.items()}


class OpenTensorBoard(RequestModel):
    """A selection of jobs to open in one TensorBoard."""

    ids: LimitedList[str] = Field(min_length=1, max_length=MAX_JOBS, description="ids of the jobs")


class OpenedTensorBoard(View):
    url: str = Field(description="link that works once, within ten minutes, and gives that browser a session")
    runs: list[str] = Field(description="names of the runs; each is an attempt of a job that has stored event files")


@router.post(
    "",
    status_code=201,
    responses={
        409: {"model": ErrorView, "description": ("This server cannot open TensorBoard; the message gives the reason.")}
    },
    dependencies=[SearchSlot],
    openapi_extra=json_body_schema(OpenTensorBoard),
)
async def open_tensorboard(
    app_state: AppStateDep, caller: Caller, body: Annotated[OpenTensorBoard, Depends(parse_json_body(OpenTensorBoard))]
) -> OpenedTensorBoard:
    """Open TensorBoard for some jobs; it ends when nobody uses it. Event files of running jobs are followed."""
    return await open_board(app_state, body.ids, caller)


async def open_board(app_state: AppState, job_ids: list[str], caller: Principal) -> OpenedTensorBoard:
    folders = await app_state.lanes.reading.run(_find_folders, app_state, job_ids)
    try:
        url = await app_state.siblings.call(FIRST, "board", folders, job_ids, caller, seconds=_START_SECONDS)
    except OSError as error:
        raise TensorBoardUnavailable(
            "The API process that runs TensorBoard is starting. Try again in a few seconds."
        ) from error
    return OpenedTensorBoard(url=url, runs=list(folders))


async def start_board(app_state: AppState, folders: dict[str, Path], job_ids: list[str], caller: Principal) -> str:
    """Open TensorBoard in this process, which alone listens at its address; return the link."""
    authorize = authorization(app_state, caller, job_ids)
    visitor = Visitor(caller.id, partial(app_state.lanes.urgent.run, authorize))
    return await app_state.boards.open(folders, visitor)


def _find_folders(app_state: AppState, job_ids: list[str]) -> dict[str, Path]:
    problem = unavailable(app_state.settings)
    if problem is not None:
        raise TensorBoardUnavailable(problem)
    with app_state.database.read() as session:
        return find_runs(session, app_state.artifacts, job_ids)


def unavailable(settings: Settings) -> str | None:
    """Return the reason that this server cannot open TensorBoard, and what to do; None if it can."""
    host = canonical_host(_host(settings))
    if find_spec("tensorboard") is None:
        return (
            "TensorBoard is not installed on this server. Its operator can run "
            "`pip install 'gradient-jobs[server,tensorboard]'` in the server's environment, and restart it."
        )
    if settings.store.url is not None:
        return (
            "The artifacts of this server are in a bucket, but TensorBoard only reads artifacts on the server's "
            "disk. Download them with `gradient-cli jobs artifacts get`, and start `tensorboard --logdir` yourself."
        )
    if settings.dashboard_host in {None, host}:
        return (
            f"TensorBoard would have the dashboard's host name, {host}, so its scripts could use your session. The "
            "server's operator can set GRADIENT_TENSORBOARD__URL to a URL with another host name."
        )
    if is_loopback(host) and not is_loopback(settings.dashboard_host or ""):
        return (
            f"TensorBoard would be opened at {host}, which can only be reached from the server's machine. Its "
            "operator can set GRADIENT_PORTS__BIND and GRADIENT_WORKER__ADDRESS to an address and a name of this "
            "machine that are not the dashboard's, or GRADIENT_TENSORBOARD__URL to the URL of a proxy."
        )
    if settings.process.sandbox == "require" and (problem := sandbox_problem()):
        return f"TensorBoard needs its sandbox (GRADIENT_PROCESS__SANDBOX=require), but {problem}."
    return None


def _host(settings: Settings) -> str:
    own_url = settings.tensorboard.url
    return settings.ports_host if own_url is None else urlsplit(own_url).hostname or ""
