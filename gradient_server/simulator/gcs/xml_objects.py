"""Google's XML API as far as its JSON API lacks it: lists as S3 gives them, and uploads in parts."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from email.utils import format_datetime
from xml.sax.saxutils import escape

from gradient_server.simulator.gcs.objects import StorageError, StoredObject, Upload, format_time


def listing(page: Sequence[tuple[str, StoredObject | None]], last: str | None) -> bytes:
    entries = [
        f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>"
        if stored is None
        else f"<Contents><Key>{escape(key)}</Key><LastModified>{format_time(stored.created)}</LastModified>"
        f'<ETag>"{stored.etag}"</ETag><Size>{len(stored.content)}</Size></Contents>'
        for key, stored in page
    ]
    if last is not None:
        entries.append(f"<NextContinuationToken>{escape(last)}</NextContinuationToken>")
    return f"<ListBucketResult>{''.join(entries)}</ListBucketResult>".encode()


def conditions(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the conditions of a request in the names of the JSON API."""
    expected = headers.get("x-goog-if-generation-match")
    return {} if expected is None else {"ifGenerationMatch": expected}


def headers(stored: StoredObject) -> dict[str, str]:
    return {
        "ETag": f'"{stored.etag}"',
        "Last-Modified": format_datetime(stored.created, usegmt=True),
        "x-goog-generation": str(stored.generation),
        "x-goog-metageneration": "1",
    }


def upload_started(upload: Upload) -> bytes:
    return f"<InitiateMultipartUploadResult><UploadId>{upload.id}</UploadId></InitiateMultipartUploadResult>".encode()


def add_part(upload: Upload, number: int, content: bytes) -> str:
    """Keep a part of an upload; return its ETag."""
    upload.parts[number] = content
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def join_parts(upload: Upload, body: bytes) -> None:
    """Make the upload's content of the parts that the request names."""
    numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
    if not numbers or not upload.parts.keys() >= set(numbers):
        raise StorageError(400, "The request names parts that were not uploaded.")
    upload.content = b"".join(upload.parts[number] for number in numbers)


def completed(stored: StoredObject) -> bytes:
    tag = f'<ETag>"{stored.etag}"</ETag>'
    return f"<CompleteMultipartUploadResult>{tag}</CompleteMultipartUploadResult>".encode()
