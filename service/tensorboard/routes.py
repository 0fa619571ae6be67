from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field

from core.errors import TensorBoardUnavailable
from service.auth.authentication import Caller, SearchSlot
from service.deps import AppState, AppStateDep
from service.http.json_body import json_body_schema, parse_json_body
from service.schemas.base import ErrorView, LimitedList, RequestModel, View
from service.siblings import FIRST
from service.tensorboard.availability import unavailable
from service.tensorboard.boards import Visitor
from service.tensorboard.runs import find_runs

router = APIRouter(prefix="/tensorboards", tags=["tensorboard"])

MAX_JOBS = 100
_START_SECONDS = 30.0


class OpenTensorBoard(RequestModel):
    """A selection of jobs to open in one TensorBoard."""

    ids: LimitedList[str] = Field(min_length=1, max_length=MAX_JOBS, description="ids of the jobs")


class OpenedTensorBoard(View):
    """An open TensorBoard."""

    url: str = Field(description="link that works once, within ten minutes, and gives that browser a session")
    runs: list[str] = Field(description="names of the runs: an attempt of a job that has stored event files each")


@router.post(
    "",
    status_code=201,
    responses={409: {"model": ErrorView, "description": "This server cannot open TensorBoard; the message says why."}},
    dependencies=[SearchSlot],
    openapi_extra=json_body_schema(OpenTensorBoard),
)
async def open_tensorboard(
    app_state: AppStateDep, caller: Caller, body: Annotated[OpenTensorBoard, Depends(parse_json_body(OpenTensorBoard))]
) -> OpenedTensorBoard:
    """Open TensorBoard for some jobs; it ends when nobody uses it. Event files of running jobs are followed."""
    return await open_board(app_state, body.ids, caller.id)


async def open_board(
    app_state: AppState, job_ids: list[str], key_id: str, session_token: str | None = None
) -> OpenedTensorBoard:
    folders = await app_state.lanes.reading.run(_find_folders, app_state, job_ids)
    try:
        url = await app_state.siblings.call(FIRST, "board", folders, key_id, session_token, seconds=_START_SECONDS)
    except OSError as error:
        raise TensorBoardUnavailable(
            "The API process that runs TensorBoard is starting. Try again in some seconds."
        ) from error
    return OpenedTensorBoard(url=url, runs=list(folders))


async def start_board(app_state: AppState, folders: dict[str, Path], key_id: str, session_token: str | None) -> str:
    """Open TensorBoard in this process, which alone listens at its address; return the link."""
    if session_token is None:
        check = partial(app_state.keys.get, key_id)
    else:
        check = partial(app_state.sessions.key, session_token)
    visitor = Visitor(key_id, partial(app_state.lanes.urgent.run, check))
    return await app_state.boards.open(folders, visitor)


def _find_folders(app_state: AppState, job_ids: list[str]) -> dict[str, Path]:
    problem = unavailable(app_state.settings)
    if problem is not None:
        raise TensorBoardUnavailable(problem)
    with app_state.database.read() as session:
        return find_runs(session, app_state.artifacts, job_ids)
