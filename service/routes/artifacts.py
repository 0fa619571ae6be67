import contextlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from sqlalchemy.orm import Session

from core.errors import StoreUnavailable
from core.jobs import queries
from core.storage.artifacts.paths import not_found
from core.storage.artifacts.store import ArtifactFile, ArtifactStore
from core.storage.artifacts.text_lines import TextLines
from core.storage.retention import OutputKind
from service.app_state import AppState
from service.auth.authentication import SearchSlot
from service.deps import AppStateDep, ReadSession
from service.http import openapi_links
from service.http.json_body import json_body_schema, parse_json_body
from service.http.path_convertor import FILE, FilePath
from service.http.responses import file_responses
from service.http.routing import api_router
from service.presenters.outputs.artifacts import artifacts_page, file_response, read_text_page, zip_response
from service.presenters.outputs.logs import SEARCH_SECONDS
from service.presenters.outputs.removed import REMOVED_RESPONSE, check_not_removed
from service.schemas.outputs import (
    TEXT_BYTES,
    ArtifactsPage,
    AttemptNumber,
    LogMatches,
    ReadContents,
    ReadText,
    SearchText,
    TextPage,
)

_MAX_CHOSEN = 1000


router = api_router(prefix="/jobs/{job_id}", tags=["artifacts"], reads_in=lambda lanes: lanes.files)

_FILE_RESPONSES = {
    **file_responses.RESPONSES,
    307: {"description": "Browsers are redirected to a signed URL of the bucket."},
    304: {"description": "Not modified: the client has this version."},
    **REMOVED_RESPONSE,
}
_CONTENTS_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
    **REMOVED_RESPONSE,
}
_ZIP_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}},
    **REMOVED_RESPONSE,
}

_BLOCK = 64 * 1024


def joined_blocks(store: ArtifactStore, job_id: str, attempt: int, files: Sequence[ArtifactFile]) -> Iterator[bytes]:
    pending = bytearray()
    for file, opened in zip(files, store.open_many(job_id, attempt, files), strict=True):
        with opened.file:
            left = file.size
            while left:
                block = opened.file.read(min(_BLOCK, left))
                if not block:
                    raise StoreUnavailable(f"The artifact {file.path!r} is shorter than its listed size.")
                left -= len(block)
                pending += block
                if len(pending) >= _BLOCK:
                    yield bytes(pending)
                    pending.clear()
    yield bytes(pending)


@router.get("/artifacts", responses={200: {"links": openapi_links.LINKS_FROM_ARTIFACTS}})
def list_artifacts(
    session: ReadSession,
    app_state: AppStateDep,
    job_id: str,
    prefix: Annotated[str, Query(description="return only paths with this prefix")] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    after: Annotated[str | None, Query(description="`next` of the previous page")] = None,
    attempt: AttemptNumber = None,
) -> ArtifactsPage:
    """List a job's artifacts by path; for a running job, as of the last copy."""
    job = queries.get(session, job_id)
    return artifacts_page(session, app_state, job, prefix=prefix, limit=limit, after=after, attempt=attempt)


@router.get(
    f"/artifacts/file/{{path:{FILE}}}",
    response_class=Response,
    responses=_FILE_RESPONSES,
    openapi_extra=file_responses.declare_request_headers("Range", "If-Range", "If-None-Match"),
)
def read_artifact(
    request: Request,
    session: ReadSession,
    app_state: AppStateDep,
    job_id: str,
    path: FilePath,
    inline: Annotated[bool, Query(description="display an image or text in the browser")] = False,  # noqa: FBT002 - a query parameter
    attempt: AttemptNumber = None,
) -> Response:
    """Read one artifact, or a range of it. Its ETag is its sha256 once the job has ended."""
    job = queries.get(session, job_id)
    check_not_removed(session, job, OutputKind.ARTIFACTS)
    # Only a browser is sure not to send the key along with a redirect.
    if request.headers.get("sec-fetch-mode") == "navigate" and not inline:
        url = app_state.artifacts.link(job.id, attempt or job.attempt, path)
        if url is not None:
            return RedirectResponse(url, 307, {"Cache-Control": "no-store"})
    opened = app_state.artifacts.open(job.id, attempt or job.attempt, path)
    return file_response(request, opened, path, inline=inline)


@router.get("/artifacts/lines", responses=REMOVED_RESPONSE, dependencies=[SearchSlot])
def read_lines(
    session: ReadSession, app_state: AppStateDep, job_id: str, wanted: Annotated[ReadText, Query()]
) -> TextPage:
    """Read lines of a text artifact; of a running job, as of the last copy."""
    with open_lines(session, app_state, job_id, wanted.path, wanted.attempt) as text:
        after = wanted.line if wanted.tail is None else max(wanted.line, text.total - wanted.tail)
        return read_text_page(text, after, wanted.limit)


@router.get("/artifacts/lines/search", responses=REMOVED_RESPONSE, dependencies=[SearchSlot])
def search_lines(
    session: ReadSession, app_state: AppStateDep, job_id: str, wanted: Annotated[SearchText, Query()]
) -> LogMatches:
    """Find the lines of a text artifact that contain a text, or look like errors.

    Searches for at most a second: a larger text is searched in several requests.
    """
    with open_lines(session, app_state, job_id, wanted.path, wanted.attempt) as text:
        matches = text.search(
            wanted.text(), after=wanted.line, limit=wanted.most(), match_case=wanted.match_case, seconds=SEARCH_SECONDS
        )
        pages = (text.read(line - 1, 1, TEXT_BYTES) for line in matches.lines) if wanted.texts else ()
        texts = [message for page in pages for _, message in page]
    return LogMatches.of(matches, texts=texts if wanted.texts else None)


@router.get("/artifacts.zip", response_class=Response, responses=_ZIP_RESPONSES)
def read_zip(
    session: ReadSession,
    app_state: AppStateDep,
    job_id: str,
    prefix: Annotated[str, Query(description="only files whose path begins with this prefix, such as `model/`")] = "",
    path: Annotated[
        list[str] | None,
        Query(
            max_length=_MAX_CHOSEN,
            description="only files with exactly these paths, and folders (with a trailing slash)",
        ),
    ] = None,
    attempt: AttemptNumber = None,
) -> Response:
    """Read the artifacts of a job, or some of them, as one zip, created while it is sent."""
    return zip_response(session, app_state, job_id, prefix=prefix, chosen=frozenset(path or ()), attempt=attempt)


@router.post(
    "/artifacts/contents",
    response_class=Response,
    responses=_CONTENTS_RESPONSES,
    openapi_extra=json_body_schema(ReadContents),
)
def read_contents(
    app_state: AppStateDep,
    job_id: str,
    body: Annotated[ReadContents, Depends(parse_json_body(ReadContents))],
    session: ReadSession,
    attempt: AttemptNumber = None,
) -> Response:
    """Read many artifacts of an ended job in one response: their bytes, joined in the order of the list of artifacts.

    The list has the size and sha256 of each.
    """
    job = queries.get(session, job_id)
    check_not_removed(session, job, OutputKind.ARTIFACTS)
    number = attempt or job.attempt
    files = list(_find_files(app_state.artifacts, job.id, number, set(body.paths)))
    headers = file_responses.user_content_headers(job.id) | {"Content-Length": str(sum(file.size for file in files))}
    return StreamingResponse(joined_blocks(app_state.artifacts, job.id, number, files), headers=headers)


def _find_files(store: ArtifactStore, job_id: str, attempt: int, paths: set[str]) -> Iterator[ArtifactFile]:
    for file in store.walk(job_id, attempt, min(paths)):
        if file.path in paths and file.sha256 is not None:
            paths.remove(file.path)
            yield file
            if not paths:
                return
    raise not_found(min(paths))


@contextlib.contextmanager
def open_lines(
    session: Session, app_state: AppState, job_id: str, path: str, attempt: int | None
) -> Iterator[TextLines]:
    job = queries.get(session, job_id)
    check_not_removed(session, job, OutputKind.ARTIFACTS)
    number = attempt or job.attempt
    opened = app_state.artifacts.open(job.id, number, path)
    with opened.file:
        yield app_state.text_indexes.open(opened, job.id, number, path)
