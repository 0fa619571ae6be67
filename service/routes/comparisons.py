from functools import partial
from typing import Annotated

from fastapi import Depends, Query, Request, Response

from core.comparison import comparisons
from service.app_state import AppState
from service.auth.authentication import Caller, SearchSlot
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.body_limit import allow_json
from service.http.json_body import json_body_schema, parse_json_body, run_with_json
from service.http.routing import api_router
from service.presenters.comparison_files import read_file, write_file
from service.presenters.comparisons import comparison_summary, comparison_view, comparisons_page
from service.routes.jobs import (
    FULL,
    NoQuery,
    Origin,
    SentSubmission,
    create_from_jobs,
    creation_responses,
    submission_schema,
)
from service.schemas.comparisons import (
    CompareJobs,
    ComparisonFile,
    ComparisonsPage,
    ComparisonSummary,
    ComparisonView,
    RenameComparison,
    RepeatComparison,
    SubmitComparison,
)
from service.submission import compare

router = api_router(prefix="/comparisons", tags=["comparisons"])

_CREATE_RESPONSES = creation_responses(ComparisonView)


@router.post("", status_code=201, responses=_CREATE_RESPONSES, openapi_extra=submission_schema(SubmitComparison))
async def submit_comparison(
    response: Response,
    app_state: AppStateDep,
    sent: SentSubmission,
    _query: NoQuery,
) -> ComparisonView:
    """Submit one program to several machine types, as JSON or as a form with an archive in `workspace`."""
    comparison_id, created = await create_from_jobs(app_state, sent, SubmitComparison, compare.submit)
    response.status_code = 201 if created else 200
    if created:  # nothing is measured yet
        return await app_state.lanes.reading.run(_show, app_state, comparison_id)
    async with app_state.limits.searches.slot(sent[0].key_id):
        return await app_state.lanes.reading.run(_show, app_state, comparison_id)


@router.post(
    "/from-jobs",
    status_code=201,
    responses=_CREATE_RESPONSES,
    openapi_extra=json_body_schema(CompareJobs),
    dependencies=[SearchSlot],
)
def compare_jobs(
    response: Response,
    app_state: AppStateDep,
    origin: Origin,
    body: Annotated[CompareJobs, Depends(parse_json_body(CompareJobs))],
) -> ComparisonView:
    """Compare jobs that exist already."""
    with app_state.database.write() as session:
        comparison_id, created = compare.compare_jobs(session, app_state, origin, body)
    response.status_code = 201 if created else 200
    return _show(app_state, comparison_id)


@router.post(
    "/{comparison_id}/repeats",
    responses=FULL,
    openapi_extra=json_body_schema(RepeatComparison),
    dependencies=[SearchSlot],
)
def repeat_comparison(
    app_state: AppStateDep,
    origin: Origin,
    comparison_id: str,
    body: Annotated[RepeatComparison, Depends(parse_json_body(RepeatComparison))],
) -> ComparisonView:
    """Submit one more job on machine types of a comparison: a clone of its last one there, with the next SEED."""
    compare.repeat(app_state, origin, comparison_id, body)
    return _show(app_state, comparison_id)


async def _read_import(request: Request, app_state: AppStateDep, caller: Caller) -> tuple[bytes, ComparisonFile]:
    allow_json(request)
    body = await request.body()
    return body, await run_with_json(app_state, caller.id, body, partial(read_file, body))


@router.post(
    "/import",
    status_code=201,
    responses={200: {"model": ComparisonView, "description": "The caller has already imported this file."}},
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}},
)
def import_comparison(
    response: Response,
    app_state: AppStateDep,
    caller: Caller,
    given: Annotated[tuple[bytes, ComparisonFile], Depends(_read_import)],
) -> ComparisonView:
    """Import a file of `GET /comparisons/{id}/export`; its figures are shown, and never ranked beside own ones."""
    with app_state.database.write() as session:
        comparison_id, created = compare.import_file(session, app_state, caller.id, *given)
    response.status_code = 201 if created else 200
    return _show(app_state, comparison_id)


@router.get("", dependencies=[SearchSlot])
def list_comparisons(
    session: ReadSession,
    app_state: AppStateDep,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    after: Annotated[str | None, Query(description="id of the last comparison of the previous page")] = None,
) -> ComparisonsPage:
    """List comparisons, newest first."""
    return comparisons_page(session, app_state, limit, after)


@router.get("/{comparison_id}", dependencies=[SearchSlot])
def show_comparison(session: ReadSession, app_state: AppStateDep, comparison_id: str) -> ComparisonView:
    """Return a comparison with its table, measured from the metrics stored so far."""
    return comparison_view(session, app_state, comparisons.get(session, comparison_id))


@router.get("/{comparison_id}/export", response_model=ComparisonFile, dependencies=[SearchSlot])
def export_comparison(session: ReadSession, app_state: AppStateDep, comparison_id: str) -> Response:
    """Return a comparison as a file that another installation imports; an imported one as it was imported."""
    comparison = comparisons.get(session, comparison_id)
    text = comparison.imported_file
    if text is None:
        view = comparison_view(session, app_state, comparison)
        text = write_file(app_state, view, comparisons.jobs_of(session, comparison.id))
    name = f'attachment; filename="comparison-{comparison.id}.json"'
    return Response(text, media_type="application/json", headers={"Content-Disposition": name})


@router.patch("/{comparison_id}", openapi_extra=json_body_schema(RenameComparison))
def rename_comparison(
    app_state: AppStateDep,
    _caller: Caller,
    comparison_id: str,
    body: Annotated[RenameComparison, Depends(parse_json_body(RenameComparison))],
    session: WriteSession,
) -> ComparisonSummary:
    """Name a comparison, or take its name away."""
    comparison = comparisons.rename(session, comparison_id, body.name)
    counts = comparisons.job_counts(session, [comparison_id])
    return comparison_summary(app_state, comparison, counts.get(comparison_id, (0, 0)))


@router.delete("/{comparison_id}", status_code=204)
def delete_comparison(session: WriteSession, _caller: Caller, comparison_id: str) -> None:
    """Delete a comparison; its jobs stay."""
    comparisons.delete(session, comparison_id)


def _show(app_state: AppState, comparison_id: str) -> ComparisonView:
    with app_state.database.read() as session:
        return comparison_view(session, app_state, comparisons.get(session, comparison_id))
