"""S3's read protocol over a job's files, as far as the npm client speaks it: ListObjects (version 1) and GET.

Requests are authorized by the session token from `artifactsGet`; their signature is not checked. The bucket's name
has a dot, so that clients put it into the path and not into the host name. Requests count as those of the token's key,
and a list takes one of its slots for searches until it is sent.
"""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Annotated
from xml.sax.saxutils import escape

from fastapi import Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import LimitReached, NotFound
from core.formatting import iso_time, iso_time_ms
from core.jobs import queries
from core.security.visibility import see_as
from core.storage.artifacts.store import ArtifactFile
from core.storage.retention import OutputKind
from service.app_state import AppState
from service.auth.authentication import Principal, viewer_of
from service.deps import AppStateDep, ReadSession
from service.http.path_convertor import FILE
from service.http.responses import file_responses
from service.http.routing import Router
from service.presenters.outputs.artifacts import file_response
from service.presenters.outputs.removed import check_not_removed

PREFIX = "/_s3"
BUCKET = "gradient.artifacts"
TOKEN_SECONDS = 3600
_PURPOSE = "s3-session"
_XML = "application/xml"
_XML_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_PIECE_LENGTH = 64 * 1024  # length from which on a part of a list is sent: each part is a hop to another thread
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f]")
_TEXT = {"content": {_XML: {"schema": {"type": "string"}}}}
_RESPONSES = {
    **file_responses.RESPONSES,
    200: {"content": {_XML: {"schema": {"type": "string"}}, **file_responses.RESPONSES[200]["content"]}},
    304: {"description": "Not modified: the client has this version."},
    403: {"description": "The session token is missing or not valid.", **_TEXT},
    404: {"description": "The bucket or key does not exist.", **_TEXT},
    429: {"description": "A limit of the token's key is reached.", **_TEXT},
}

router = Router(prefix=PREFIX, reads_in=lambda lanes: lanes.files)

Token = Annotated[str, Header(alias="x-amz-security-token", description="as `artifactsGet` gave it")]


def issue_token(app_state: AppState, caller: Principal, job_id: str) -> str:
    """Issue a session token for the files of one job, which works no longer than the caller's key."""
    return f"{job_id}.{app_state.signer.sign(_PURPOSE, job_id, caller.id)}"


async def _admit(request: Request, app_state: AppStateDep, token: Token = "") -> AsyncIterator[str | Response]:
    """Yield the id of the token's job, or a refusal; count the request, and hold a slot while a list is sent."""
    job_id, _, stamp = token.partition(".")
    key_id = await app_state.lanes.urgent.run(app_state.signer.key_id, _PURPOSE, job_id, stamp, TOKEN_SECONDS)
    if key_id is None:
        yield _error_response(
            403, "InvalidToken", "The provided token is malformed or otherwise invalid, or has expired."
        )
        return
    see_as(await app_state.lanes.urgent.run(viewer_of, app_state, key_id))
    async with AsyncExitStack() as held:
        admitted: str | Response = job_id
        try:
            app_state.limits.requests.acquire(key_id)
            if not request.path_params.get("key"):
                await held.enter_async_context(app_state.limits.searches.slot(key_id))
        except LimitReached as error:
            admitted = _error_response(429, "SlowDown", error.message)
            admitted.headers["Retry-After"] = str(error.retry_after)
        yield admitted


# Until the response was sent, not only until the function returns: a list is read while it is sent.
Admitted = Annotated[str | Response, Depends(_admit, scope="request")]


@router.get("/{bucket}", name="s3_list_bucket", response_class=Response, responses=_RESPONSES)
@router.get(f"/{{bucket}}/{{key:{FILE}}}", name="s3_read", response_class=Response, responses=_RESPONSES)
def read_bucket(
    admitted: Admitted,
    request: Request,
    session: ReadSession,
    app_state: AppStateDep,
    bucket: str,
    key: str = "",
    prefix: Annotated[str, Query(description="only keys with this prefix")] = "",
) -> Response:
    """Read a file, or, without a key, list the files."""
    if isinstance(admitted, Response):
        return admitted
    if bucket != BUCKET:
        return _error_response(404, "NoSuchBucket", "The specified bucket does not exist.")
    try:
        return _response(request, session, app_state, queries.get(session, admitted), key, prefix)
    except NotFound as error:
        return _error_response(404, "NoSuchKey", error.message)


def _response(request: Request, session: Session, app_state: AppState, job: Job, key: str, prefix: str) -> Response:
    check_not_removed(session, job, OutputKind.ARTIFACTS)
    if not key:
        files = app_state.artifacts.walk(job.id, job.attempt)
        return StreamingResponse(list_xml(job, files, prefix), media_type=_XML)
    folder, _, path = key.partition("/")
    if folder != job.id:
        return _error_response(403, "AccessDenied", "This token is for the files of another job.")
    opened = app_state.artifacts.open(job.id, job.attempt, path)
    return file_response(request, opened, path)


def list_xml(job: Job, files: Iterator[ArtifactFile], prefix: str) -> Iterator[str]:
    """Yield the whole list as one page, in large parts: the client does not request a second one."""
    head = (
        f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="{_XML_NAMESPACE}"><Name>{BUCKET}</Name>'
        f"<Prefix>{_escape_xml(prefix)}</Prefix><Marker/><MaxKeys>1000000</MaxKeys><IsTruncated>false</IsTruncated>"
    )
    parts, length = [head], len(head)
    for file in files:
        key = f"{job.id}/{file.path}"
        if key.startswith(prefix):
            parts.append(_list_entry(key, file))
            length += len(parts[-1])
        if length >= _PIECE_LENGTH:
            yield "".join(parts)
            parts, length = [], 0
    yield "".join([*parts, "</ListBucketResult>"])


def _list_entry(key: str, file: ArtifactFile) -> str:
    etag = file.sha256 or f"{file.size:x}-{file.mtime_ms:x}"
    return (
        f"<Contents><Key>{_escape_xml(key)}</Key><LastModified>{iso_time_ms(file.mtime_ms)}</LastModified>"
        f"<ETag>&quot;{etag}&quot;</ETag><Size>{file.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _error_response(status: int, code: str, message: str) -> Response:
    at = iso_time(datetime.now(UTC))
    text = f"<Code>{code}</Code><Message>{_escape_xml(message)}</Message><Time>{at}</Time>"
    return Response(f'<?xml version="1.0" encoding="UTF-8"?><Error>{text}</Error>', status, media_type=_XML)


def _escape_xml(text: str) -> str:
    """Escape text for XML, with character references for control characters: not valid XML, but parsers accept them."""
    return _CONTROL_CHARACTERS.sub(lambda match: f"&#{ord(match[0])};", escape(text))
