"""TensorBoard for one job or several."""

from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from core.errors import TensorBoardUnavailable
from service.auth.authentication import Caller, SearchSlot
from service.deps import AppState, AppStateDep
from service.http.json_body import json_body_schema, parse_json_body
from service.schemas.base import ErrorView, LimitedList, RequestModel, View
from service.tensorboard.availability import unavailable
from service.tensorboard.boards import Visitor
from service.tensorboard.runs import find_runs

router = APIRouter(prefix="/tensorboards", tags=["tensorboard"])

MAX_JOBS = 100


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
    return await open_board(app_state, body.ids, Visitor(caller.id, partial(app_state.keys.get, caller.id)))


async def open_board(app_state: AppState, job_ids: list[str], visitor: Visitor) -> OpenedTensorBoard:
    """Open TensorBoard for some jobs, for one visitor.

    Raises:
        GradientError: It cannot be opened; the message says why.
    """
    folders = await run_in_threadpool(_find_folders, app_state, job_ids)
    return OpenedTensorBoard(url=await app_state.boards.open(folders, visitor), runs=list(folders))


def _find_folders(app_state: AppState, job_ids: list[str]) -> dict[str, Path]:
    problem = unavailable(app_state.settings)
    if problem is not None:
        raise TensorBoardUnavailable(problem)
    with app_state.database.read() as session:
        return find_runs(session, app_state.artifacts, job_ids)
