"""Operations on one job: create, show, wait, stop, clone, delete."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool

from core.db.database import on_commit
from core.errors import StoreUnavailable
from core.jobs import lifecycle, queries
from service.auth.api_keys import Caller
from service.deps import OpenStores, Reading, RequestId, Stores, Writing
from service.http.body_limit import allow_json, allow_upload
from service.original.long_poll import hold
from service.original.middleware import CLIENT_NAME
from service.original.params import Given, Params, read_params, takes
from service.original.presenters import PREEMPTED, job_shape, submitted_shape
from service.original.routing import OriginalRoute
from service.original.translate import FIELDS, job_of
from service.presenters.jobs import OUTSIDE_STATES
from service.submission import create
from service.submission.create import Origin
from service.submission.uploads import Body, checked, read_upload

router = APIRouter(route_class=OriginalRoute)

_UPLOAD = "file"
_STATES = frozenset({*OUTSIDE_STATES, PREEMPTED})
_ENDED = _STATES - {"Pending", "Running"}
_CREATED = takes(*FIELDS, "command", "workspaceFileName", "workspaceUsername", "workspacePassword", "cluster")
_CREATED["requestBody"] = {
    "required": False,
    "content": {
        "application/json": {"schema": {"type": "object"}},
        "multipart/form-data": {
            "schema": {"type": "object", "properties": {_UPLOAD: {"type": "string", "format": "binary"}}}
        },
    },
}


async def _posted(request: Request, stores: Stores, caller: Caller) -> AsyncIterator[tuple[Params, Body]]:
    """Read the parameters from JSON, or from the query if the body is a form with one file."""
    stores.limits.submissions.take(caller.id)
    if not request.headers.get("content-type", "").startswith("multipart/"):
        allow_json(request, stores.settings.api)
        yield await read_params(request), Body(b"")
        return
    allow_upload(request, stores.settings.api)
    folder, settings = stores.settings.root / "workspaces", stores.settings
    try:
        body = await read_upload(
            request,
            folder,
            part=_UPLOAD,
            max_upload_bytes=settings.api.max_upload_bytes,
            min_free_mb=settings.disk.min_free_mb,
        )
    except OSError as error:
        raise StoreUnavailable(f"The upload could not be received: {error.strerror}. Try again later.") from error
    try:
        yield Params(request.query_params, {}), body
    finally:
        body.close()


@router.post("/jobs/createJob", name="original_create_job", openapi_extra=_CREATED)
async def create_job(
    request: Request,
    stores: Stores,
    caller: Caller,
    request_id: RequestId,
    posted: Annotated[tuple[Params, Body], Depends(_posted, scope="function")],
) -> dict[str, Any]:
    """Submit a job."""
    given, body = posted
    asked = job_of(given, request.headers.get(CLIENT_NAME), uploaded=body.workspace is not None)
    origin = Origin(caller.id, request_id, None)

    def submit() -> dict[str, Any]:
        with stores.measures.submitting():
            return submitted_shape(create.submit(stores, origin, asked, body.workspace))

    return await checked(stores, caller.id, body, submit)


@router.get("/jobs/getJob", name="original_get_job", openapi_extra=takes("jobId", "state"))
async def get_job(stores: Stores, caller: Caller, given: Given) -> dict[str, Any]:
    """One job; with `state`, held back for a while until it is in that state or has ended."""
    job_id, state = given.required("jobId"), given.text("state")
    if state not in _STATES:
        return await run_in_threadpool(_found, stores, job_id)
    wanted = _ENDED | {state} | ({"Running"} if state == "Pending" else set())
    return await hold(stores, caller.id, job_id, lambda: _found(stores, job_id), lambda job: job["state"] in wanted)


@router.post("/jobs/getPublicJob", name="original_get_public_job", openapi_extra=takes("jobId", body=True))
def get_public_job(session: Reading, stores: Stores, given: Given) -> dict[str, Any]:
    """One job, and whose it is."""
    job = job_shape(session, stores, queries.get(session, given.required("jobId")))
    return {"job": job, "user": {"id": job["startedByUserId"]}}


@router.post("/jobs/{job_id}/stop", status_code=204, name="original_stop_job")
def stop_job(session: Writing, stores: Stores, _caller: Caller, job_id: str) -> None:
    """Ask a job to stop; nothing changes if it has ended."""
    lifecycle.request_stop(session, job_id)
    on_commit(session, stores.wake)


@router.post("/jobs/{job_id}/destroy", status_code=204, name="original_destroy_job")
def destroy_job(session: Writing, stores: Stores, _caller: Caller, job_id: str) -> None:
    """Remove a job from sight, and stop it if it runs."""
    lifecycle.delete(session, job_id)
    on_commit(session, stores.wake)


@router.post("/jobs/{job_id}/clone", name="original_clone_job")
def clone_job(stores: Stores, caller: Caller, request_id: RequestId, job_id: str) -> dict[str, Any]:
    """Submit the same job again, on the same workspace."""
    stores.limits.submissions.take(caller.id)
    with stores.measures.submitting():
        return submitted_shape(create.clone(stores, Origin(caller.id, request_id, None), job_id))


def _found(stores: OpenStores, job_id: str) -> dict[str, Any]:
    with stores.database.read() as session:
        return job_shape(session, stores, queries.get(session, job_id))
