"""Artifact pages: the files of a job folder by folder, and a preview of one file."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from core.jobs import queries
from core.storage.artifacts.paths import not_found
from core.storage.retention import OutputKind
from service.auth.authentication import PageCaller, require_key_or_session
from service.dashboard.folder_view import crumbs, list_entries
from service.dashboard.job_pages import LIVE
from service.dashboard.rendering import render_page
from service.deps import AppState, AppStateDep, ReadSession
from service.http.file_responses import INLINE_TYPES
from service.presenters.jobs import job_view
from service.presenters.removed import check_not_removed
from service.routes.artifacts import list_artifacts
from service.schemas.jobs import ArtifactsPage

router = APIRouter(prefix="/ui/jobs/{job_id}/artifacts", dependencies=[Depends(require_key_or_session)])

PAGE_ENTRIES = 500
PREVIEW_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Preview:
    """The preview of one file.

    Attributes:
        kind: `image`, `text`, or `none` if a page cannot show it.
        text: Its first 256 KiB, if it is text.
        cut: Whether the file is larger than that.
    """

    size: int
    modified: datetime
    sha256: str | None
    kind: str
    text: str
    cut: bool


@router.get("")
def show_folder(
    session: ReadSession, app_state: AppStateDep, caller: PageCaller, job_id: str, folder: str = "", after: str = ""
) -> Response:
    """Show the entries of one folder."""
    job = job_view(session, app_state, queries.get(session, job_id))
    prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""

    def read(follows: str | None, limit: int) -> ArtifactsPage:
        return list_artifacts(session, app_state, job_id, prefix, limit, follows)

    found, following = list_entries(read, prefix, after=after or None, limit=PAGE_ENTRIES)
    if prefix and not found and not after:
        raise not_found(prefix)
    return render_page(
        "artifacts.html",
        caller=caller,
        job=job,
        live=job.state in LIVE,
        outputs=list_artifacts(session, app_state, job_id, limit=1),
        folder=prefix,
        crumbs=crumbs(prefix),
        folders=[entry for entry in found if entry.file is None],
        files=[entry for entry in found if entry.file is not None],
        following=following,
    )


@router.get("/view")
def show_file(session: ReadSession, app_state: AppStateDep, caller: PageCaller, job_id: str, path: str) -> Response:
    """Show the preview of one file."""
    row = queries.get(session, job_id)
    check_not_removed(session, row, OutputKind.ARTIFACTS)
    return render_page(
        "artifact.html",
        caller=caller,
        job=job_view(session, app_state, row),
        path=path,
        name=PurePosixPath(path).name,
        crumbs=crumbs(path),
        preview=_read_preview(app_state, row.id, row.attempt, path),
    )


def _read_preview(app_state: AppState, job_id: str, attempt: int, path: str) -> Preview:
    opened = app_state.artifacts.open(job_id, attempt, path)
    image = INLINE_TYPES.get(PurePosixPath(path).suffix.lower(), "").startswith("image/")
    with opened.file as file:
        start = b"" if image else file.read(PREVIEW_BYTES)
    binary = b"\0" in start
    return Preview(
        size=opened.size,
        modified=datetime.fromtimestamp(opened.mtime_ms / 1000, UTC),
        sha256=opened.sha256,
        kind="image" if image else "none" if binary else "text",
        text="" if binary else start.decode("utf-8", "replace"),
        cut=opened.size > PREVIEW_BYTES,
    )
