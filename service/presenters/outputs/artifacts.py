import contextlib
from datetime import UTC, datetime
from pathlib import PurePosixPath

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.jobs import queries
from core.storage.artifacts.paths import not_found
from core.storage.artifacts.store import ArtifactFile, OpenArtifact
from core.storage.artifacts.text_lines import TextLines
from core.storage.retention import OutputKind
from service.app_state import AppState
from service.http.responses import file_responses
from service.http.responses.zip_stream import zip_blocks
from service.presenters.outputs.removed import check_not_removed, find_removed
from service.schemas.outputs import ArtifactFolderView, ArtifactsPage, ArtifactView, TextLine, TextPage

_MIN_TIME_MS, _MAX_TIME_MS = -62_135_596_800_000, 253_402_300_799_000  # of the years 1 to 9999


def artifacts_page(
    session: Session,
    app_state: AppState,
    job: Job,
    *,
    prefix: str = "",
    limit: int = 1000,
    after: str | None = None,
    attempt: int | None = None,
) -> ArtifactsPage:
    """Return a page of a job's artifacts, in order of path; of a running job, as of the last copy."""
    if removed := find_removed(session, job, OutputKind.ARTIFACTS):
        return ArtifactsPage(
            state="removed", files=[], folders=[], skipped=[], next=None, total_files=0, total_bytes=0, removed=removed
        )
    number = attempt or job.attempt
    page = app_state.artifacts.list(job.id, number, prefix=prefix, after=after, limit=limit)
    state: str = "failed" if job.artifacts_state == "failed" else page.state
    if state == "none" and (closed := queries.attempt(session, job.id, number)) and closed.artifact_bytes is not None:
        state = "complete"  # it was closed without artifacts, and no more will come
    folders = [
        ArtifactFolderView(path=folder.path, modified=_time(folder.mtime_ms), mode=folder.mode)
        for folder in page.folders
    ]
    return ArtifactsPage.of(page, state=state, files=[artifact_view(file) for file in page.files], folders=folders)


def artifact_view(file: ArtifactFile) -> ArtifactView:
    """Convert a stored file to its public form."""
    modified = _time(file.mtime_ms)
    return ArtifactView(path=file.path, size=file.size, sha256=file.sha256, modified=modified, mode=file.mode)


def _time(ms: int) -> datetime:
    """Return a time of a file, of which a program can set any, as one that has a name."""
    return datetime.fromtimestamp(min(max(ms, _MIN_TIME_MS), _MAX_TIME_MS) / 1000, UTC)


def zip_response(
    session: Session,
    app_state: AppState,
    job_id: str,
    *,
    prefix: str = "",
    chosen: frozenset[str],
    attempt: int | None = None,
) -> Response:
    """Build the response with a job's artifacts as a zip, created while it is sent; `chosen`: these alone, if any."""
    job = queries.get(session, job_id)
    check_not_removed(session, job, OutputKind.ARTIFACTS)
    number = attempt or job.attempt
    for given in chosen | ({prefix} if prefix else set()):
        page = app_state.artifacts.list(job.id, number, prefix=given, limit=1)
        # The list is sorted: a file of exactly this name comes before all others that begin with it.
        exact = given in chosen and not given.endswith("/")
        if not (page.files or page.folders) or (exact and [file.path for file in page.files] != [given]):
            raise not_found(given)
    folders = tuple(path for path in chosen if path.endswith("/"))

    def selected(file: str) -> bool:
        return file.startswith(prefix) and (not chosen or file in chosen or file.startswith(folders))

    blocks = zip_blocks(app_state.artifacts, job.id, number, job.id, selected=selected)
    name = "-".join([job.id, *PurePosixPath(prefix).parts])
    headers = file_responses.user_content_headers(f"{name}.zip") | {"Content-Type": "application/zip"}
    return StreamingResponse(blocks, headers=headers)


def file_response(request: Request, opened: OpenArtifact, path: str, *, inline: bool = False) -> Response:
    """Build the response with an open file's bytes or the requested range, which closes the file in any case."""
    etag = f'"{opened.sha256 or f"{opened.size:x}-{opened.mtime_ms:x}"}"'
    headers = file_responses.user_content_headers(path, inline=inline) | {"ETag": etag}
    with contextlib.ExitStack() as unless_sent:
        unless_sent.callback(opened.file.close)
        if file_responses.not_modified(request, etag):
            return Response(status_code=304, headers=headers)
        byte_range = file_responses.parse_range(request, opened.size, etag)
        answer = file_responses.range_response(file_responses.file_blocks(opened.file, byte_range), byte_range, headers)
        unless_sent.pop_all()
        return answer


def read_text_page(text: TextLines, after: int, limit: int) -> TextPage:
    rows = [TextLine(line=line, message=message) for line, message in text.read(after, limit)]
    last = rows[-1].line if rows else after
    return TextPage(lines=rows, total=text.total, complete=last >= text.total)
