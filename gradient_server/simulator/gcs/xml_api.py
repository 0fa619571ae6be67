"""Parts of Google's XML API that its JSON API has not: lists as S3 gives them, and uploads in parts."""

import base64
import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import format_datetime
from xml.sax.saxutils import escape

from gradient_server.simulator.gcs.objects import BucketStore, ResumableUpload, StorageError, StoredObject

_MAX_KEYS = 1000


def list_objects(buckets: BucketStore, bucket: str, query: Mapping[str, str]) -> bytes:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    token = query.get("continuation-token")
    after = base64.urlsafe_b64decode(token).decode() if token else query.get("start-after", "")
    found: dict[str, StoredObject | None] = {}
    for one in buckets.names(bucket):
        head, cut, _ = one.name.removeprefix(prefix).partition(delimiter) if delimiter else ("", "", "")
        key = prefix + head + cut if cut else one.name
        if one.name.startswith(prefix) and key > after:
            found.setdefault(key, None if cut else one)
    page = list(found.items())[:_MAX_KEYS]
    lines = [_entry(key, one) for key, one in page]
    if len(page) < len(found):
        lines.append(_tag("NextContinuationToken", base64.urlsafe_b64encode(page[-1][0].encode()).decode()))
    return _tag("ListBucketResult", "".join(lines), raw=True).encode()


def conditions(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the conditions of a request in the names of the JSON API."""
    expected = headers.get("x-goog-if-generation-match")
    return {} if expected is None else {"ifGenerationMatch": expected}


def object_headers(found: StoredObject) -> dict[str, str]:
    return {
        "ETag": etag(found),
        "Last-Modified": format_datetime(found.created, usegmt=True),
        "x-goog-generation": str(found.generation),
        "x-goog-metageneration": "1",
    }


def etag(found: StoredObject) -> str:
    return f'"{found.generation}-1"'


def upload_answer(upload: ResumableUpload) -> bytes:
    return _tag("InitiateMultipartUploadResult", _tag("UploadId", upload.id), raw=True).encode()


def add_part(upload: ResumableUpload, number: str, content: bytes) -> str:
    """Keep a part of an upload; return its ETag."""
    upload.parts[int(number)] = content
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def join_parts(upload: ResumableUpload, body: bytes) -> None:
    """Make the upload's content of the parts that the request names."""
    numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
    if not numbers or not upload.parts.keys() >= set(numbers):
        raise StorageError(400, "invalid", "The request names parts that were not uploaded.")
    upload.content = bytearray(b"".join(upload.parts[number] for number in numbers))


def completion_answer(made: StoredObject) -> bytes:
    return _tag("CompleteMultipartUploadResult", _tag("ETag", etag(made)), raw=True).encode()


def _entry(key: str, found: StoredObject | None) -> str:
    if found is None:
        return _tag("CommonPrefixes", _tag("Prefix", key), raw=True)
    fields = {"Key": key, "LastModified": _time(found.created), "ETag": etag(found), "Size": str(len(found.content))}
    return _tag("Contents", "".join(_tag(name, value) for name, value in fields.items()), raw=True)


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _tag(name: str, value: str, *, raw: bool = False) -> str:
    return f"<{name}>{value if raw else escape(value)}</{name}>"
