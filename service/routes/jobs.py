from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any, BinaryIO, TypeAlias, TypeVar

from fastapi import Depends, Header, Query, Request, Response

from core.db.database import on_commit
from core.jobs import edits, kept_jobs, lifecycle, queries
from service import job_actions
from service.app_state import AppState
from service.auth.authentication import Caller, ListSlot, PageCaller, SearchSlot
from service.deps import AppStateDep, ReadSession, WriteSession, state_of
from service.http import openapi_links
from service.http.json_body import body_schema, json_body_schema, parse_json_body
from service.http.routing import api_router, runs_in
from service.presenters.job_diff import job_diff
from service.presenters.job_list import jobs_page
from service.presenters.jobs import event_views, job_view, job_views
from service.presenters.outputs.explanations import explanation_of
from service.presenters.predictions import Precision, prediction_view
from service.schemas.base import ErrorView, QueryModel, View, parse_request
from service.schemas.comparisons import JobDiff, PredictionView
from service.schemas.job_changes import ActionResults, ChangeJob, CloneJob, CloneQuery, JobActions
from service.schemas.job_list import ListJobs
from service.schemas.jobs import (
    DryRun,
    Events,
    ExplanationView,
    JobsPage,
    JobView,
    SubmissionQuery,
    SubmitJob,
)
from service.submission import create
from service.submission.body import SPEC, WORKSPACE, SubmissionBody, received, run_submission
from service.submission.stages import RequestOrigin

router = api_router(prefix="/jobs", tags=["jobs"])

IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", description="a repeated request with the same key returns the first job"),
]


async def _origin(request: Request, caller: Caller, idempotency_key: IdempotencyKey = None) -> RequestOrigin:
    return RequestOrigin(caller.id, request.state.request_id, idempotency_key)


Origin = Annotated[RequestOrigin, Depends(_origin)]
Sent: TypeAlias = tuple[RequestOrigin, SubmissionBody]
NoQuery = Annotated[QueryModel, Query()]  # no query parameters: a misspelt one, or one of another endpoint, is refused

AtOnce = Annotated[
    bool, Query(alias="now", description="without the job's grace period, even if it is already stopping")
]

_FORM_SCHEMA = {
    "type": "object",
    "required": [SPEC],
    "properties": {
        SPEC: {"type": "string", "description": "the job as JSON text"},
        WORKSPACE: {"type": "string", "format": "binary", "description": "a zip or tar.gz of the working directory"},
    },
}
FULL: dict[int | str, dict[str, Any]] = {
    507: {"model": ErrorView, "description": "The disk or the project's quota is full."},
}


def creation_responses(model: type[View]) -> dict[int | str, dict[str, Any]]:
    return {
        200: {"model": model, "description": "Already created with this Idempotency-Key."},
        415: {"model": ErrorView, "description": "The body is neither JSON nor a form."},
        **FULL,
    }


_SUBMIT_RESPONSES: dict[int | str, dict[str, Any]] = {
    **creation_responses(JobView),
    200: {"model": JobView | DryRun, "description": "Already created with this Idempotency-Key; or a dry run."},
    201: {"links": openapi_links.LINKS_FROM_JOB},
}
_CLONE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "model": JobView,
        "description": "Already created with this Idempotency-Key.",
        "links": openapi_links.LINKS_FROM_JOB,
    },
    201: {"links": openapi_links.LINKS_FROM_JOB},
}


def submission_schema(model: type[SubmitJob]) -> dict[str, Any]:
    """Return the OpenAPI schema of a body that is JSON, or a form with an archive of the working directory."""
    content = {"application/json": {"schema": body_schema(model)}, "multipart/form-data": {"schema": _FORM_SCHEMA}}
    return {"requestBody": {"required": True, "content": content}}


async def _read_submission(request: Request, origin: Origin) -> AsyncIterator[Sent]:
    app_state = state_of(request)
    # The key and its limit are checked before the first byte of an upload is read.
    app_state.limits.submissions.acquire(origin.key_id)
    async with received(request, app_state) as body:
        yield origin, body


SentSubmission = Annotated[Sent, Depends(_read_submission, scope="function")]
Requested = TypeVar("Requested", bound=SubmitJob)


async def create_from_jobs(
    app_state: AppState,
    sent: Sent,
    model: type[Requested],
    create_it: Callable[[AppState, RequestOrigin, Requested, BinaryIO | None], tuple[str, bool]],
) -> tuple[str, bool]:
    """Create what has jobs like the one that was sent: a schedule, a sweep or a comparison. As `create_it` returns."""
    origin, body = sent

    def submit() -> tuple[str, bool]:
        return create_it(app_state, origin, parse_request(model, body.spec), body.workspace)

    return await run_submission(app_state, origin.key_id, body, submit)


@router.post(
    "",
    status_code=201,
    response_model=JobView | DryRun,
    responses=_SUBMIT_RESPONSES,
    openapi_extra=submission_schema(SubmitJob),
)
async def submit_job(
    response: Response,
    app_state: AppStateDep,
    sent: SentSubmission,
    query: Annotated[SubmissionQuery, Query()],
) -> JobView | DryRun:
    """Submit a job as JSON, or as a form with its JSON in `spec` and an archive in `workspace`."""
    origin, body = sent
    action = (
        partial(_dry_run, app_state, origin.key_id, body, query.requirements)
        if query.dry_run
        else partial(_submit, app_state, origin, body)
    )
    created, view = await run_submission(app_state, origin.key_id, body, action)
    response.status_code = 201 if created else 200
    return view


def _submit(app_state: AppState, origin: RequestOrigin, body: SubmissionBody) -> tuple[bool, JobView | DryRun]:
    with app_state.service_metrics.time_submission():
        submitted = create.submit(app_state, origin, parse_request(SubmitJob, body.spec), body.workspace)
    return submitted.created, create.present(app_state, submitted)


def _dry_run(
    app_state: AppState, key_id: str, body: SubmissionBody, requirements: str | None
) -> tuple[bool, JobView | DryRun]:
    request, uploaded = parse_request(SubmitJob, body.spec), body.workspace is not None
    return False, create.dry_run(app_state, key_id, request, uploaded=uploaded, requirements=requirements)


@router.get(
    "",
    responses={200: {"links": openapi_links.LINKS_FROM_JOB_LIST}},
    dependencies=[ListSlot],
)
def list_jobs(
    session: ReadSession, app_state: AppStateDep, caller: PageCaller, wanted: Annotated[ListJobs, Query()]
) -> JobsPage:
    """List jobs, newest first or as `sort` says."""
    return jobs_page(session, app_state, caller.id, wanted)


@router.post("/actions", openapi_extra=json_body_schema(JobActions))
def act_on_jobs(
    app_state: AppStateDep, caller: Caller, body: Annotated[JobActions, Depends(parse_json_body(JobActions))]
) -> ActionResults:
    """Stop, delete or tag several jobs or whole arrays; each succeeds or fails by itself."""
    return ActionResults(results=job_actions.act(app_state, caller, body))


@router.get("/{job_id}", responses={200: {"links": openapi_links.LINKS_FROM_JOB}})
def show_job(session: ReadSession, app_state: AppStateDep, job_id: str) -> JobView:
    """Return one job."""
    return job_view(session, app_state, queries.get(session, job_id))


@router.get("/{job_id}/prediction", dependencies=[SearchSlot])
def predict_job(
    session: ReadSession,
    app_state: AppStateDep,
    job_id: str,
    machine_type: Annotated[
        str,
        Query(alias="machineType", max_length=2000, description="names or aliases separated by commas; default: all"),
    ] = "",
    precision: Annotated[
        Precision | None,
        Query(description="precision of the predicted run; default: the job's precision"),
    ] = None,
) -> PredictionView:
    """Estimate time, cost and memory of a measured job on other machine types, and judge what bounds it."""
    wanted = [name.strip() for name in machine_type.split(",") if name.strip()]
    return prediction_view(session, app_state, queries.get(session, job_id), wanted, precision)


@router.get("/{job_id}/diff", dependencies=[SearchSlot])
def diff_jobs(
    session: ReadSession,
    app_state: AppStateDep,
    job_id: str,
    other: Annotated[str, Query(max_length=200, description="id of the second job")],
) -> JobDiff:
    """Compare two jobs: options, environment, image digest and uploaded files. Hidden values are not compared."""
    first, second = job_views(session, app_state, [queries.get(session, one_id) for one_id in (job_id, other)])
    return job_diff(first, second, app_state.workspaces)


@router.get("/{job_id}/why", dependencies=[SearchSlot])
def explain_job(session: ReadSession, app_state: AppStateDep, job_id: str) -> ExplanationView:
    """Tell why a job failed: its class, the line of the log and of the code that show it, and what to do."""
    return explanation_of(app_state.logs, job_view(session, app_state, queries.get(session, job_id)))


@router.post("/{job_id}/stop")
@runs_in(lambda lanes: lanes.urgent)
def stop_job(
    session: WriteSession, app_state: AppStateDep, _caller: Caller, job_id: str, *, at_once: AtOnce = False
) -> JobView:
    """Request that a job stop; no effect if it has ended."""
    job = lifecycle.request_stop(session, job_id, at_once=at_once)
    on_commit(session, app_state.wake)
    return job_view(session, app_state, job)


@router.post(
    "/{job_id}/release",
    responses={409: {"model": ErrorView, "description": "The job is not kept: nothing was changed."}},
)
@runs_in(lambda lanes: lanes.urgent)
def release_job(session: WriteSession, app_state: AppStateDep, _caller: Caller, job_id: str) -> JobView:
    """End the time for which the machine of a failed job is kept."""
    job = kept_jobs.release(session, job_id)
    on_commit(session, app_state.wake)
    return job_view(session, app_state, job)


@router.post(
    "/{job_id}/clone",
    status_code=201,
    responses=_CLONE_RESPONSES,
    openapi_extra=json_body_schema(CloneJob, required=False),
)
def clone_job(
    response: Response,
    app_state: AppStateDep,
    origin: Origin,
    job_id: str,
    changes: Annotated[CloneJob, Depends(parse_json_body(CloneJob, may_be_empty=True))],
    query: Annotated[CloneQuery, Query()],
) -> JobView:
    """Submit the same job or array again, with the same workspace, and with changes if the body has some."""
    app_state.limits.submissions.acquire(origin.key_id)
    with app_state.service_metrics.time_submission():
        submitted = create.clone(
            app_state, origin, job_id, changes, pin_image=query.pin_image, only_failed=query.only_failed
        )
    response.status_code = 201 if submitted.created else 200
    return create.present(app_state, submitted)


@router.patch("/{job_id}", openapi_extra=json_body_schema(ChangeJob))
@router.patch("/{job_id}/tags", operation_id="change_tags", openapi_extra=json_body_schema(ChangeJob))
def change_job(
    app_state: AppStateDep,
    job_id: str,
    body: Annotated[ChangeJob, Depends(parse_json_body(ChangeJob))],
    session: WriteSession,
) -> JobView:
    """Change a job's name, tags or note; also after its end."""
    return job_view(session, app_state, edits.edit(session, job_id, **body.model_dump(exclude_unset=True)))


@router.delete("/{job_id}", status_code=204)
def delete_job(session: WriteSession, app_state: AppStateDep, _caller: Caller, job_id: str) -> None:
    """Delete a job, stopping it if it runs."""
    lifecycle.delete(session, job_id)
    on_commit(session, app_state.wake)


@router.get("/{job_id}/events")
def list_events(session: ReadSession, job_id: str) -> Events:
    """List the events of a job, oldest first."""
    return Events(events=event_views(session, queries.get(session, job_id)))
