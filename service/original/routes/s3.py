"""S3's read protocol over a job's files, as far as the npm client speaks it: ListObjects (version 1) and GET.

Requests are authorized by the session token from `artifactsGet`; their signature is not checked. The bucket's name
has a dot, so that clients put it into the path and not into the host name.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated
from xml.sax.saxutils import escape

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import NotFound
from core.formatting import iso_time, iso_time_ms
from core.jobs import queries
from core.storage.artifacts.store import ArtifactFile
from core.storage.retention import OutputKind
from service.auth.api_keys import KeyHolder
from service.deps import OpenStores, Reading, Stores
from service.http import ranges
from service.http.file_paths import FILE
from service.presenters.removed import refuse_removed
from service.routes.artifacts import file_answer

PREFIX = "/_s3"
BUCKET = "gradient.artifacts"
SECONDS = 3600
_PURPOSE = "s3-session"
_XML = "application/xml"
_SPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_TEXT = {"content": {_XML: {"schema": {"type": "string"}}}}
_ANSWERS = {
    **ranges.RESPONSES,
    200: {"content": {_XML: {"schema": {"type": "string"}}, **ranges.RESPONSES[200]["content"]}},
    304: {"description": "The client has this version."},
    403: {"description": "The session token is missing, or no longer good.", **_TEXT},
    404: {"description": "There is no such bucket or key.", **_TEXT},
}

router = APIRouter(prefix=PREFIX)

Token = Annotated[str, Header(alias="x-amz-security-token", description="as `artifactsGet` gave it")]


def issue_token(stores: OpenStores, caller: KeyHolder, job_id: str) -> str:
    """Issue a session token for the files of one job, which works no longer than the caller's key."""
    return f"{job_id}.{stores.signer.stamp(_PURPOSE, job_id, caller.id)}"


@router.get("/{bucket}", name="s3_list_bucket", response_class=Response, responses=_ANSWERS)
@router.get(f"/{{bucket}}/{{key:{FILE}}}", name="s3_read", response_class=Response, responses=_ANSWERS)
def read(
    request: Request,
    session: Reading,
    stores: Stores,
    bucket: str,
    key: str = "",
    prefix: Annotated[str, Query(description="only keys that begin so")] = "",
    token: Token = "",
) -> Response:
    """A file, or, without a key, the list of them."""
    job_id, _, stamp = token.partition(".")
    if not stores.signer.holds(_PURPOSE, job_id, stamp, SECONDS):
        return _error(403, "InvalidToken", "The provided token is malformed or otherwise invalid, or has expired.")
    if bucket != BUCKET:
        return _error(404, "NoSuchBucket", "The specified bucket does not exist.")
    try:
        return _answer(request, session, stores, queries.get(session, job_id), key, prefix)
    except NotFound as error:
        return _error(404, "NoSuchKey", error.message)


def _answer(request: Request, session: Session, stores: OpenStores, job: Job, key: str, prefix: str) -> Response:
    refuse_removed(session, job, OutputKind.ARTIFACTS)
    if not key:
        files = stores.artifacts.walk(job.id, job.attempt)
        return StreamingResponse(_list(job, files, prefix), media_type=_XML)
    folder, _, path = key.partition("/")
    if folder != job.id:
        return _error(403, "AccessDenied", "This token is for the files of another job.")
    opened = stores.artifacts.open(job.id, job.attempt, path)
    return file_answer(request, opened, path)


def _list(job: Job, files: Iterator[ArtifactFile], prefix: str) -> Iterator[str]:
    """Yield the whole list as one page: the client does not request a second one."""
    yield f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="{_SPACE}"><Name>{BUCKET}</Name>'
    yield f"<Prefix>{_text(prefix)}</Prefix><Marker/><MaxKeys>1000000</MaxKeys><IsTruncated>false</IsTruncated>"
    for one in files:
        key = f"{job.id}/{one.path}"
        if key.startswith(prefix):
            etag = one.sha256 or f"{one.size:x}-{one.mtime_ms:x}"
            yield f"<Contents><Key>{_text(key)}</Key><LastModified>{iso_time_ms(one.mtime_ms)}</LastModified>"
            yield f"<ETag>&quot;{etag}&quot;</ETag><Size>{one.size}</Size>"
            yield "<StorageClass>STANDARD</StorageClass></Contents>"
    yield "</ListBucketResult>"


def _error(status: int, code: str, message: str) -> Response:
    at = iso_time(datetime.now(UTC))
    text = f"<Code>{code}</Code><Message>{_text(message)}</Message><Time>{at}</Time>"
    return Response(f'<?xml version="1.0" encoding="UTF-8"?><Error>{text}</Error>', status, media_type=_XML)


def _text(text: str) -> str:
    """Escape text for XML, with character references for control characters: not valid XML, but parsers accept them."""
    return "".join(one if one >= " " else f"&#{ord(one)};" for one in escape(text))
