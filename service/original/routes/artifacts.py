"""Artifacts of jobs: listed, deleted, fetched by link or by S3's read protocol (`signed_links.py`, `s3_read.py`)."""

import re
import secrets
import time
from collections.abc import Callable, Iterable
from fnmatch import translate
from functools import partial
from typing import Any

from fastapi import Request

from core.db.models.jobs import Job
from core.errors import SpecInvalid
from core.jobs import queries
from core.storage import prune
from core.storage.artifacts.store import ArtifactFile
from core.storage.retention import OutputKind
from service.auth.authentication import Caller, SearchSlot
from service.auth.ownership import OwnerCheck
from service.deps import AppStateDep, ReadSession
from service.http.routing import Router
from service.original.error_messages import OriginalRoute
from service.original.params import MAX_PATTERNS, OriginalParams, Params, check_count, openapi_params
from service.original.routes import s3_read
from service.original.routes.signed_links import signed_link
from service.presenters.outputs.removed import REMOVED_RESPONSE, check_not_removed

router = Router(route_class=OriginalRoute, dependencies=[OwnerCheck], reads_in=lambda lanes: lanes.files)

_PAGE_FILES = 1000
_MAX_PATTERN_LENGTH = 255  # longest pattern. Matching takes its length times the path's, and blocks this process
MATCH_SECONDS = 10.0  # time limit for matching the files of one request with its patterns
_LIST_PARAMS = ("jobId", "files", "size", "links")


@router.get(
    "/jobs/artifactsList",
    name="original_list_artifacts",
    openapi_extra=openapi_params(*_LIST_PARAMS),
    responses=REMOVED_RESPONSE,
    dependencies=[SearchSlot],
)
def list_artifacts(
    request: Request, given: OriginalParams, session: ReadSession, app_state: AppStateDep, caller: Caller
) -> list[dict[str, Any]]:
    """List all files, by path."""
    job = _get_job(session, given)
    link = partial(signed_link, request, app_state, caller, job.id)
    return _file_shapes(given, app_state.artifacts.walk(job.id, job.attempt), link)


@router.get(
    "/jobs/artifactsListV2",
    name="original_list_artifacts_by_page",
    openapi_extra=openapi_params(*_LIST_PARAMS, "startAfter"),
    responses=REMOVED_RESPONSE,
    dependencies=[SearchSlot],
)
def list_artifacts_by_page(
    request: Request, given: OriginalParams, session: ReadSession, app_state: AppStateDep, caller: Caller
) -> dict[str, Any]:
    """List one page of files, by path; the next page begins at `startAfter`, which the last page does not have."""
    job = _get_job(session, given)
    page = app_state.artifacts.list(job.id, job.attempt, after=given.text("startAfter"), limit=_PAGE_FILES)
    following = {} if page.next is None else {"startAfter": page.next}
    link = partial(signed_link, request, app_state, caller, job.id)
    return {"data": _file_shapes(given, page.files, link)} | following


@router.get(
    "/jobs/artifactsGet",
    name="original_get_artifacts",
    openapi_extra=openapi_params("jobId", "files"),
    responses=REMOVED_RESPONSE,
)
def get_artifacts(
    given: OriginalParams, session: ReadSession, app_state: AppStateDep, caller: Caller
) -> dict[str, Any]:
    """Return credentials to download a job's files with S3's protocol, valid for an hour."""
    job = _get_job(session, given)
    keys = {"AccessKeyId": f"GRADIENT{secrets.token_hex(6).upper()}", "SecretAccessKey": secrets.token_urlsafe(30)}
    return {
        "Credentials": keys | {"SessionToken": s3_read.issue_token(app_state, caller, job.id)},
        "bucket": s3_read.BUCKET,
        "folder": job.id,
    }


@router.post(
    "/jobs/{job_id}/artifactsDestroy",
    status_code=204,
    name="original_destroy_artifacts",
    openapi_extra=openapi_params("files", body=True),
    responses=REMOVED_RESPONSE,
    dependencies=[SearchSlot],
)
def destroy_artifacts(given: OriginalParams, session: ReadSession, app_state: AppStateDep, job_id: str) -> None:
    """Delete files of an ended job: all, or those named in `files`."""
    job = queries.get(session, job_id)
    check_not_removed(session, job, OutputKind.ARTIFACTS)
    if given.is_empty("files"):
        raise SpecInvalid(
            "files: empty. Name files or patterns, or leave `files` out to delete all artifacts.", field="files"
        )
    wanted = given.text("files")
    prune.remove_artifacts(app_state, job, None if wanted is None else path_matcher(wanted))


def path_matcher(wanted: str | None) -> Callable[[str], bool]:
    """Build a function that returns whether a path matches `wanted`: names and patterns, separated by commas."""
    if wanted is None:
        return lambda _: True
    parts = [part.strip() for part in wanted.split(",") if part.strip()]
    named = {wanted, *parts}
    globs = sorted({part for part in parts if "*" in part or "?" in part})
    check_count(globs, MAX_PATTERNS, "patterns", "files")
    longest = max(map(len, globs), default=0)
    if longest > _MAX_PATTERN_LENGTH:
        raise SpecInvalid(
            f"files: a pattern has {longest:,} characters; at most {_MAX_PATTERN_LENGTH} are allowed.", field="files"
        )
    patterns, end = [re.compile(translate(glob)) for glob in globs], time.monotonic() + MATCH_SECONDS

    def matches(path: str) -> bool:
        if path in named:
            return True
        for pattern in patterns:
            if time.monotonic() > end:
                raise SpecInvalid(
                    f"files: matching takes longer than {MATCH_SECONDS:g} seconds. Name fewer or shorter patterns.",
                    field="files",
                )
            if pattern.match(path):
                return True
        return False

    return matches


def _get_job(session: ReadSession, given: Params) -> Job:
    job = queries.get(session, given.required("jobId"))
    check_not_removed(session, job, OutputKind.ARTIFACTS)
    return job


def _file_shapes(given: Params, files: Iterable[ArtifactFile], link: Callable[[str], str]) -> list[dict[str, Any]]:
    selected, sized, linked = path_matcher(given.text("files")), given.flag("size"), given.flag("links")
    return [
        {"file": file.path} | ({"size": file.size} if sized else {}) | ({"url": link(file.path)} if linked else {})
        for file in files
        if selected(file.path)
    ]
