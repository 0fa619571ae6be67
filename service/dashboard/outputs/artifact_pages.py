import base64
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Annotated, Literal, NamedTuple

from fastapi import Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException

from core.errors import NotFound, SpecInvalid
from core.jobs import queries
from core.storage.artifacts.paths import not_found
from core.storage.artifacts.store import OpenArtifact
from core.storage.joblogs.search import FoundLines
from core.storage.retention import OutputKind
from service.app_state import AppState
from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.dashboard.job.header import LIVE, JobHeader, read_header, render_job_page
from service.dashboard.job.log_page import FOUND_LINES, LINES_WITHOUT_SCRIPT
from service.dashboard.outputs.previews import TEXT_BYTES, FileLinks, Preview, TableOrder, image_type, read_preview
from service.dashboard.rendering import PAGE_HEADERS, job_url
from service.deps import AppStateDep, ReadSession
from service.http.routing import Router
from service.presenters.outputs.artifacts import artifact_view, artifacts_page, read_text_page, zip_response
from service.presenters.outputs.logs import SEARCH_SECONDS
from service.presenters.outputs.removed import check_not_removed
from service.schemas.jobs import MAX_LINE
from service.schemas.outputs import ArtifactsPage, ArtifactView, AttemptNumber, TextPage

router = Router(
    prefix="/ui/jobs/{job_id}/artifacts",
    dependencies=[Depends(require_key_or_session)],
    reads_in=lambda lanes: lanes.files,
)

PAGE_ENTRIES = 500
COUNTED_FILES = 20_000  # most files of a job whose folders are counted, sorted and searched
_MAX_HTML = 2 * 1024**2
_MAX_PICTURES = 16 * 1024**2
"""Most bytes of the pictures of an HTML file together."""
_PICTURE = re.compile(rb"""(<img\b[^>]{0,2000}?\bsrc\s*=\s*["'])([^"'>:]{1,2000})(?=["'])""", re.IGNORECASE)
_MAX_OFFSET = 2**62
_FILE_POLICY = PAGE_HEADERS["Content-Security-Policy"] + "; frame-src 'self'; media-src 'self'"
_FRAME_HEADERS = {
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
    ),
    "X-Frame-Options": "SAMEORIGIN",
    "Cache-Control": "private, no-store",
    "Referrer-Policy": "no-referrer",
}

_PAGE_FILES = 200
_LAST_CHARACTER = "\U0010ffff"

ReadPage = Callable[[str | None, int], ArtifactsPage]
"""Reads a page of the files in and below a folder, given the path to start after and the largest number of files."""


Order = Literal["name", "-name", "size", "-size", "modified", "-modified"]
"""An order of entries; descending with a minus."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file (`file` is set) or a folder; a folder's path ends with a slash."""

    name: str  # its name, or its path below the folder if it was found in one
    path: str
    file: ArtifactView | None
    files: int | None = None  # number of files in and below the folder; None: not counted
    size: int | None = None  # bytes of the file, or of those files


def list_entries(read: ReadPage, folder: str, *, after: str | None, limit: int) -> tuple[list[FolderEntry], str | None]:
    """Return the direct entries of a folder, ordered by path, and the cursor of the next page."""
    entries: list[FolderEntry] = []
    last = (after or "").removesuffix(_LAST_CHARACTER)
    while True:
        page = read(after, _PAGE_FILES)
        for file in page.files:
            head, slash, _ = file.path[len(folder) :].partition("/")
            path = f"{folder}{head}{slash}"
            if path == last:
                continue
            if len(entries) == limit:
                return entries, _cursor_after(last)
            entries.append(FolderEntry(head, path, None if slash else file))
            last = path
        if page.next is None:
            return entries, None
        # Names may begin with the very last character: the larger of both cursors always makes progress.
        after = max(page.next, _cursor_after(last))


def _cursor_after(path: str) -> str:
    return path + _LAST_CHARACTER if path.endswith("/") else path  # for a folder, skip everything in it


def summarize_entries(files: Iterable[ArtifactView], folder: str, *, find: str, order: Order) -> list[FolderEntry]:
    """Return the direct entries of a folder with their sizes, folders first; with `find`, the files that match it."""
    counted: dict[str, tuple[int, int]] = {}
    file_entries: list[FolderEntry] = []
    for file in files:
        if not file.path.startswith(folder):
            continue
        below = file.path[len(folder) :]
        head, slash, _ = below.partition("/")
        if find:
            if find.lower() in below.lower():
                file_entries.append(FolderEntry(below, file.path, file, None, file.size))
        elif slash:
            number, size = counted.get(head, (0, 0))
            counted[head] = (number + 1, size + file.size)
        else:
            file_entries.append(FolderEntry(head, file.path, file, None, file.size))
    folders = [FolderEntry(name, f"{folder}{name}/", None, *of) for name, of in counted.items()]
    return [*_ordered(folders, order), *_ordered(file_entries, order)]


def _ordered(entries: list[FolderEntry], order: Order) -> list[FolderEntry]:
    keys: dict[str, Callable[[FolderEntry], object]] = {
        "name": lambda entry: entry.name,
        "size": lambda entry: (entry.size or 0, entry.name),
        "modified": lambda entry: (entry.file.modified.timestamp() if entry.file else 0.0, entry.name),
    }
    return sorted(entries, key=keys[order.lstrip("-")], reverse=order.startswith("-"))  # type: ignore[arg-type]  # each key's values can be compared


@dataclass(frozen=True, slots=True)
class Crumb:
    name: str
    path: str


def crumbs(path: str) -> list[Crumb]:
    """Return the folders of a path, outermost first; a folder's path includes the folder itself."""
    parts = path.split("/")[:-1]
    return [Crumb(part, "/".join(parts[: number + 1]) + "/") for number, part in enumerate(parts)]


class FolderQuery(BaseModel):
    """The folder to show, and its order."""

    folder: str = ""
    after: str = Field("", description="entry that the page starts after, of a list that is not counted")
    skip: int = Field(0, ge=0, le=COUNTED_FILES, description="entries of the pages before, of a list that is counted")
    find: str = Field("", max_length=200)
    order: Order = "name"
    view: Literal["", "gallery"] = ""


class FileQuery(BaseModel):
    """The file to show, and the part of it."""

    path: str
    start: int = Field(0, ge=0, le=_MAX_OFFSET, description="offset of the part of a text to show")
    column: int = Field(0, ge=0, le=1000, description="column of a table to sort by, from 1; 0: the file's order")
    desc: bool = False
    view: Literal["", "lines"] = Field("", description="`lines`: a text as lines, without a preview")
    line: int | None = Field(None, ge=1, le=MAX_LINE, description="first line to show without scripts")
    find: str = Field("", max_length=200, description="text to find without scripts")
    part: str = Field("", description="`live`: only the header, without the file")


class _Beside(NamedTuple):
    """The entries of a file's folder around it, and the paths of the files before and after it."""

    entries: list[FolderEntry]
    previous: str | None
    next: str | None


@dataclass(frozen=True, slots=True)
class _Listed:
    entries: list[FolderEntry]
    counted: bool
    following: dict[str, str | int]


@router.get("")
def show_folder(
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    job_id: str,
    shown: Annotated[FolderQuery, Query()],
    attempt: AttemptNumber = None,
) -> Response:
    header = read_header(session, app_state, caller, job_id, attempt, waits=False)
    earlier = header.attempt
    prefix = f"{shown.folder.strip('/')}/" if shown.folder.strip("/") else ""
    outputs = artifacts_page(session, app_state, header.row, limit=1, attempt=earlier)
    listed = _list_folder(session, app_state, header, prefix, shown, outputs)
    if prefix and not listed.entries and not shown.after and not shown.find:
        raise not_found(prefix)
    if shown == FolderQuery() and len(listed.entries) == 1 and listed.entries[0].file is None:
        return RedirectResponse(job_url(job_id, "/artifacts", folder=listed.entries[0].path, attempt=attempt), 307)
    images = [entry for entry in listed.entries if entry.file is not None and image_type(entry.path)]
    return render_job_page(
        "artifacts/folder.html",
        app_state,
        caller,
        header,
        tab="artifacts",
        live_files=header.job.state in LIVE and earlier is None,
        outputs=outputs,
        folder=prefix,
        crumbs=crumbs(prefix),
        folders=[entry for entry in listed.entries if entry.file is None],
        files=[entry for entry in listed.entries if entry.file is not None],
        images=images,
        listed=listed,
        shown=shown,
    )


def _list_folder(
    session: Session,
    app_state: AppState,
    header: JobHeader,
    prefix: str,
    shown: FolderQuery,
    outputs: ArtifactsPage,
) -> _Listed:
    if 0 < outputs.total_files <= COUNTED_FILES:
        entries = _summarize(app_state, header, prefix, shown.find.strip(), shown.order)
        stop = shown.skip + PAGE_ENTRIES
        following: dict[str, str | int] = {"skip": stop} if len(entries) > stop else {}
        return _Listed(entries[shown.skip : stop], counted=True, following=following)

    def read(follows: str | None, limit: int) -> ArtifactsPage:
        return artifacts_page(
            session, app_state, header.row, prefix=prefix, limit=limit, after=follows, attempt=header.attempt
        )

    entries, after = list_entries(read, prefix, after=shown.after or None, limit=PAGE_ENTRIES)
    return _Listed(entries, counted=False, following={"after": after} if after else {})


def _summarize(
    app_state: AppState, header: JobHeader, prefix: str, find: str = "", order: Order = "name"
) -> list[FolderEntry]:
    files = (artifact_view(file) for file in app_state.artifacts.walk(header.row.id, header.number))
    return summarize_entries(files, prefix, find=find, order=order)


def _list_beside(session: Session, app_state: AppState, header: JobHeader, path: str) -> _Beside:
    total = artifacts_page(session, app_state, header.row, limit=1, attempt=header.attempt).total_files
    folder = path[: path.rfind("/") + 1]
    entries = _summarize(app_state, header, folder) if total <= COUNTED_FILES else []
    files = [entry.path for entry in entries if entry.file is not None]
    if path not in files:
        return _Beside([], None, None)
    previous, following = ([None, *files], [*files[1:], None])
    index = files.index(path)
    start = max(0, len(entries) - len(files) + index - PAGE_ENTRIES // 2)  # folders come first
    return _Beside(entries[start : start + PAGE_ENTRIES], previous[index], following[index])


@router.get("/selected")
def download_selected(
    session: ReadSession,
    app_state: AppStateDep,
    job_id: str,
    path: Annotated[list[str] | None, Query(max_length=PAGE_ENTRIES)] = None,
    attempt: AttemptNumber = None,
) -> Response:
    """Download the files and folders selected in the list as zip."""
    if not path:
        raise SpecInvalid(
            "Nothing is selected. Go back and select files or folders, or download everything.", field="path"
        )
    return zip_response(session, app_state, job_id, chosen=frozenset(path), attempt=attempt)


@router.get("/view", dependencies=[SearchSlot])
def show_file(
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    job_id: str,
    shown: Annotated[FileQuery, Query()],
    attempt: AttemptNumber = None,
) -> Response:
    header = read_header(session, app_state, caller, job_id, attempt, waits=False)
    name = PurePosixPath(shown.path).name
    if shown.part == "live":
        return render_job_page("job/base.html", app_state, caller, header, tab="artifacts", name=name)
    opened = _open(session, app_state, job_id, shown.path, attempt)
    with opened.file as file:
        order, links = TableOrder(shown.column, shown.desc), FileLinks(job_id, shown.path, attempt)
        whole = shown.view == "lines"
        preview = Preview("lines") if whole else read_preview(file, opened.size, shown.path, shown.start, order, links)
        text = _read_lines(app_state, header, opened, shown) if preview.kind == "lines" else None
    page = render_job_page(
        "artifacts/file.html",
        app_state,
        caller,
        header,
        tab="artifacts",
        path=shown.path,
        name=name,
        beside=_list_beside(session, app_state, header, shown.path),
        crumbs=crumbs(shown.path),
        size=opened.size,
        modified=datetime.fromtimestamp(opened.mtime_ms / 1000, UTC),
        sha256=opened.sha256,
        preview=preview,
        text=text,
        begin=shown.line or 1,
        find=shown.find,
        page_lines=LINES_WITHOUT_SCRIPT,
        part_bytes=TEXT_BYTES,
    )
    page.headers["Content-Security-Policy"] = _FILE_POLICY
    return page


def _read_lines(
    app_state: AppState, header: JobHeader, opened: OpenArtifact, shown: FileQuery
) -> tuple[TextPage, FoundLines | None]:
    """Return the lines for browsers without scripts, and those that have the text to find."""
    text = app_state.text_indexes.open(opened, header.row.id, header.number, shown.path)
    page = read_text_page(text, min(shown.line or 1, max(1, text.total)) - 1, LINES_WITHOUT_SCRIPT)
    if not shown.find.strip():
        return page, None
    return page, text.search(shown.find, after=0, limit=FOUND_LINES, match_case=False, seconds=SEARCH_SECONDS)


@router.get("/frame")
def show_html(
    request: Request,
    session: ReadSession,
    app_state: AppStateDep,
    job_id: str,
    path: str,
    attempt: AttemptNumber = None,
) -> Response:
    """Show an HTML file in a frame of its page: without scripts, forms, links out of the frame, or other files.

    Pictures beside it are put into it: the frame has no session to ask for them.
    """
    if request.headers.get("sec-fetch-dest", "iframe") != "iframe":
        raise HTTPException(404, "This address is only for the frame of a preview.")
    with _open(session, app_state, job_id, path, attempt).file as file:
        text, links, left = file.read(_MAX_HTML), FileLinks(job_id, path, attempt), [_MAX_PICTURES]

    def embed(match: re.Match[bytes]) -> bytes:
        named = links.target(match[2].decode("utf-8", "replace"))
        if named is None or not image_type(named):
            return match[0]
        try:
            opened = _open(session, app_state, job_id, named, attempt)
        except NotFound:
            return match[0]
        with opened.file as picture:
            if opened.size > left[0]:
                return match[0]
            left[0] -= opened.size
            return match[1] + b"data:%s;base64,%s" % (image_type(named).encode(), base64.b64encode(picture.read()))

    return HTMLResponse(_PICTURE.sub(embed, text), headers=_FRAME_HEADERS)


def _open(session: Session, app_state: AppState, job_id: str, path: str, attempt: int | None) -> OpenArtifact:
    row = queries.get(session, job_id)
    check_not_removed(session, row, OutputKind.ARTIFACTS)
    return app_state.artifacts.open(row.id, attempt or row.attempt, path)
