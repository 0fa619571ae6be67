from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, Request

from core.db.database import on_commit
from core.jobs import lifecycle, queries
from service.app_state import AppState
from service.auth.authentication import Caller
from service.auth.ownership import OwnerCheck
from service.deps import AppStateDep, ReadSession, RequestId, WriteSession
from service.http.body_limit import allow_json
from service.http.routing import Router, runs_in
from service.original.error_messages import OriginalRoute
from service.original.long_poll import poll_until_done
from service.original.params import OriginalParams, Params, openapi_params, read_params
from service.original.presenters import PREEMPTED, job_shape, submitted_shape
from service.original.protocol_dispatch import CLIENT_NAME_HEADER
from service.original.translate import FIELDS, to_submit_job
from service.presenters.jobs import PUBLIC_STATES
from service.submission import create
from service.submission.body import SubmissionBody, received, run_submission
from service.submission.stages import RequestOrigin

router = Router(route_class=OriginalRoute, dependencies=[OwnerCheck])

_UPLOAD_PART = "file"
_STATES = frozenset({*PUBLIC_STATES, PREEMPTED})
_FINAL_STATES = _STATES - {"Pending", "Running", "Kept"}
_CREATE_OPENAPI = openapi_params(
    *FIELDS, "command", "workspaceFileName", "workspaceUsername", "workspacePassword", "cluster"
)
_CREATE_OPENAPI["requestBody"] = {
    "required": False,
    "content": {
        "application/json": {"schema": {"type": "object"}},
        "multipart/form-data": {
            "schema": {"type": "object", "properties": {_UPLOAD_PART: {"type": "string", "format": "binary"}}}
        },
    },
}


async def _read_submission(
    request: Request, app_state: AppStateDep, caller: Caller
) -> AsyncIterator[tuple[Params, SubmissionBody]]:
    """Read the parameters from JSON, or from the query if the body is a form with one file."""
    app_state.limits.submissions.acquire(caller.id)
    if not request.headers.get("content-type", "").startswith("multipart/"):
        allow_json(request)
        yield await read_params(request), SubmissionBody(b"")
        return
    async with received(request, app_state, part=_UPLOAD_PART, spec=None) as body:
        yield Params(request.query_params, {}), body


@router.post("/jobs/createJob", name="original_create_job", openapi_extra=_CREATE_OPENAPI)
async def create_job(
    request: Request,
    app_state: AppStateDep,
    caller: Caller,
    request_id: RequestId,
    posted: Annotated[tuple[Params, SubmissionBody], Depends(_read_submission, scope="function")],
) -> dict[str, Any]:
    """Submit a job."""
    given, body = posted
    job = to_submit_job(given, request.headers.get(CLIENT_NAME_HEADER), uploaded=body.workspace is not None)
    origin = RequestOrigin(caller.id, request_id, None, may_ignore_container=True)

    def submit() -> dict[str, Any]:
        with app_state.service_metrics.time_submission():
            return submitted_shape(app_state, create.submit(app_state, origin, job, body.workspace))

    return await run_submission(app_state, caller.id, body, submit)


@router.get("/jobs/getJob", name="original_get_job", openapi_extra=openapi_params("jobId", "state"))
async def get_job(app_state: AppStateDep, caller: Caller, given: OriginalParams) -> dict[str, Any]:
    """Return one job; with `state`, wait for a while until it is in that state or has ended."""
    job_id, state = given.required("jobId"), given.text("state")
    if state not in _STATES:
        return await app_state.lanes.reading.run(_read_job, app_state, job_id)
    wanted = _FINAL_STATES | {state} | ({"Running"} if state == "Pending" else set())
    return await poll_until_done(
        app_state, caller.id, job_id, lambda: _read_job(app_state, job_id), lambda job: job["state"] in wanted
    )


@router.post("/jobs/getPublicJob", name="original_get_public_job", openapi_extra=openapi_params("jobId", body=True))
def get_public_job(app_state: AppStateDep, given: OriginalParams, session: ReadSession) -> dict[str, Any]:
    """Return one job, with its owner."""
    job = job_shape(session, app_state, queries.get(session, given.required("jobId")))
    return {"job": job, "user": {"id": job["startedByUserId"]}}


@router.post("/jobs/{job_id}/stop", status_code=204, name="original_stop_job")
@runs_in(lambda lanes: lanes.urgent)
def stop_job(session: WriteSession, app_state: AppStateDep, _caller: Caller, job_id: str) -> None:
    """Request that a job stop; no effect if it has ended."""
    lifecycle.request_stop(session, job_id)
    on_commit(session, app_state.wake)


@router.post("/jobs/{job_id}/destroy", status_code=204, name="original_destroy_job")
def destroy_job(session: WriteSession, app_state: AppStateDep, _caller: Caller, job_id: str) -> None:
    """Delete a job, stopping it if it runs."""
    lifecycle.delete(session, job_id)
    on_commit(session, app_state.wake)


@router.post("/jobs/{job_id}/clone", name="original_clone_job")
def clone_job(app_state: AppStateDep, caller: Caller, request_id: RequestId, job_id: str) -> dict[str, Any]:
    """Submit the same job again, with the same workspace."""
    app_state.limits.submissions.acquire(caller.id)
    origin = RequestOrigin(caller.id, request_id, None, may_ignore_container=True)
    with app_state.service_metrics.time_submission():
        return submitted_shape(app_state, create.clone(app_state, origin, job_id))


def _read_job(app_state: AppState, job_id: str) -> dict[str, Any]:
    with app_state.database.read() as session:
        return job_shape(session, app_state, queries.get(session, job_id))
