"""The API of the Cloud Storage simulator: the JSON API, uploads, downloads by URL, and tokens."""

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.parser import BytesParser
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gradient_server.simulator.gcs import xml_api
from gradient_server.simulator.gcs.access import Access, Caller, Tokens, check_access, has_access
from gradient_server.simulator.gcs.faults import StorageFaults
from gradient_server.simulator.gcs.objects import (
    CHUNK,
    Bucket,
    BucketStore,
    ResumableUpload,
    StorageError,
    StoredObject,
)

_RANGE = re.compile(r"bytes=(\d*)-(\d*)\Z")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)\Z")
_MAX_RESULTS = 1000
_PARTIAL, _RESUME_INCOMPLETE = 206, 308

_MAX_SECONDS = 7 * 24 * 3600


def check_expiry(query: Mapping[str, str]) -> None:
    """Check the dates of a signed URL like Google. The signature itself is not verified."""
    try:
        signed_at = datetime.strptime(query["X-Goog-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        seconds = int(query["X-Goog-Expires"])
    except (KeyError, ValueError) as error:
        raise StorageError(400, "invalid", f"The signed URL is not whole: {error}") from error
    if not 0 < seconds <= _MAX_SECONDS:
        raise StorageError(400, "invalid", "X-Goog-Expires must lie between 1 and 604800 seconds.")
    if datetime.now(UTC) > signed_at + timedelta(seconds=seconds):
        raise StorageError(403, "expired", "The signed URL has expired.")


@dataclass(frozen=True)
class StorageRequest:
    method: str
    base: str  # the address it was sent to, such as `http://127.0.0.1:9000` or `https://storage.googleapis.com`
    path: str  # the path, still quoted: a slash within a name is `%2F`
    query: Mapping[str, str]
    values: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    broken: bool = False

    @classmethod
    def from_target(
        cls, method: str, base: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> "StorageRequest":
        parts = urlsplit(target)
        values = parse_qs(parts.query, keep_blank_values=True)
        return cls(method, base, parts.path, {name: found[0] for name, found in values.items()}, values, headers, body)

    @property
    def json(self) -> dict[str, Any]:
        """The body as JSON; empty for none."""
        return json.loads(self.body) if self.body else {}


@dataclass(frozen=True)
class StorageResponse:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Hosts = Mapping[str, Callable[[StorageRequest], StorageResponse]]


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> StorageResponse:
    return StorageResponse(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})


def error_response(error: StorageError) -> StorageResponse:
    inner = {"message": error.message, "domain": "global", "reason": error.reason}
    return json_response({"error": {"code": error.status, "message": error.message, "errors": [inner]}}, error.status)


class StorageApi:
    def __init__(self, buckets: BucketStore, tokens: Tokens, faults: StorageFaults, others: Hosts) -> None:
        self._buckets, self._tokens, self._faults, self._others = buckets, tokens, faults, others
        name = "([^/]+)"
        routes: list[tuple[str, Callable[..., StorageResponse]]] = [
            ("POST /token", self._sign_in),
            ("POST /v1/token", self._exchange),
            (f"POST /v1/projects/-/serviceAccounts/{name}:generateAccessToken", self._impersonate),
            (f"POST /v1/projects/-/serviceAccounts/{name}:signBlob", self._sign),
            ("POST /storage/v1/b", self._create_bucket),
            (f"(?:GET|DELETE) /storage/v1/b/{name}", self._bucket),
            (f"(?:GET|PUT) /storage/v1/b/{name}/iam", self._policy),
            (f"GET /storage/v1/b/{name}/iam/testPermissions", self._permissions),
            (f"GET /storage/v1/b/{name}/o", self._list),
            (f"(?:GET|DELETE) /storage/v1/b/{name}/o/{name}", self._object),
            (f"POST /storage/v1/b/{name}/o/{name}/rewriteTo/b/{name}/o/{name}", self._copy),
            (f"(?:POST|PUT|DELETE) /upload/storage/v1/b/{name}/o", self._upload),
            (f"GET /download/storage/v1/b/{name}/o/{name}", self._download),
            (f"GET /{name}", self._list_xml),
            (f"(?:GET|HEAD|PUT|POST|DELETE) /{name}/(.+)", self._object_url),
        ]
        self._routes = [(re.compile(pattern), handler) for pattern, handler in routes]

    def answer(self, request: StorageRequest) -> StorageResponse:
        try:
            if not request.broken:
                self._faults.apply_fault(request.method, f"{request.path}?{request.query}")
            return self._dispatch(request)
        except StorageError as error:
            return error_response(error)
        except (KeyError, ValueError) as error:
            return error_response(StorageError(400, "invalid", f"The request cannot be understood: {error!r}"))

    def _dispatch(self, request: StorageRequest) -> StorageResponse:
        if other := self._others.get(request.base.removeprefix("https://")):
            self._caller(request)
            return other(request)
        for pattern, handler in self._routes:
            if found := pattern.fullmatch(f"{request.method} {request.path}"):
                return handler(request, *(unquote(part) for part in found.groups()))
        raise StorageError(404, "notFound", f"The simulator has no {request.method} {request.path}.")

    # ---- Tokens

    def _sign_in(self, _: StorageRequest) -> StorageResponse:
        token = self._tokens.issue(Caller())
        return json_response({"access_token": token, "token_type": "Bearer", "expires_in": 3600})

    def _exchange(self, request: StorageRequest) -> StorageResponse:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        boundary = json.loads(unquote(form["options"]))["accessBoundary"]["accessBoundaryRules"]
        return json_response(self._tokens.downscope(form["subject_token"], boundary))

    def _impersonate(self, request: StorageRequest, account: str) -> StorageResponse:
        lifetime = float(str(request.json.get("lifetime", "3600s")).removesuffix("s"))
        return json_response(self._tokens.impersonate(self._caller(request), account, lifetime))

    def _sign(self, request: StorageRequest, _account: str) -> StorageResponse:
        self._caller(request)
        return json_response({"keyId": "1", "signedBlob": request.json["payload"]})

    def _caller(self, request: StorageRequest) -> Caller:
        return self._tokens.caller(request.headers.get("authorization"))

    def _check_access(self, request: StorageRequest, bucket: str, permission: str, name: str = "") -> Bucket:
        caller, found = self._caller(request), self._buckets.bucket(bucket)
        check_access(caller, found, Access(f"storage.{permission}", name))
        return found

    # ---- Buckets

    def _create_bucket(self, request: StorageRequest) -> StorageResponse:
        self._caller(request)
        fields = request.json
        return json_response(self._buckets.create(fields.pop("name"), fields).resource())

    def _bucket(self, request: StorageRequest, name: str) -> StorageResponse:
        found = self._check_access(request, name, "buckets.get")
        if request.method == "DELETE":
            self._buckets.drop(name)
            return StorageResponse(204)
        return json_response(found.resource())

    def _policy(self, request: StorageRequest, name: str) -> StorageResponse:
        found = self._check_access(request, name, "buckets.getIamPolicy")
        if request.method == "PUT":
            given = request.json
            if given.get("etag", found.policy.get("etag")) != found.policy.get("etag"):
                raise StorageError(412, "conditionNotMet", "The policy was changed by somebody else.")
            number = int(base64.b64decode(found.policy.get("etag", "")) or 0) + 1
            found.policy = {**given, "etag": base64.b64encode(str(number).encode()).decode()}
        return json_response({"kind": "storage#policy", **found.policy})

    def _permissions(self, request: StorageRequest, name: str) -> StorageResponse:
        caller, found = self._caller(request), self._buckets.bucket(name)
        given = [one for one in request.values.get("permissions", []) if has_access(caller, found, Access(one))]
        return json_response({"kind": "storage#testIamPermissionsResponse", "permissions": given})

    # ---- Objects

    def _list(self, request: StorageRequest, bucket: str) -> StorageResponse:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        self._check_access(request, bucket, "objects.list", prefix)
        after = base64.urlsafe_b64decode(query["pageToken"]).decode() if query.get("pageToken") else ""
        found: dict[str, StoredObject | None] = {}
        for one in self._buckets.names(bucket):
            if not one.name.startswith(prefix) or one.name < query.get("startOffset", ""):
                continue
            head, cut, _ = one.name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            key = prefix + head + cut if cut else one.name
            if key > after:
                found.setdefault(key, None if cut else one)
        page = list(found.items())[: min(int(query.get("maxResults") or _MAX_RESULTS), _MAX_RESULTS)]
        shown: dict[str, Any] = {
            "kind": "storage#objects",
            "items": [one.resource(request.base) for _, one in page if one is not None],
            "prefixes": [key for key, one in page if one is None],
        }
        if len(page) < len(found):
            shown["nextPageToken"] = base64.urlsafe_b64encode(page[-1][0].encode()).decode()
        return json_response(shown)

    def _object(self, request: StorageRequest, bucket: str, name: str) -> StorageResponse:
        if request.method == "GET":
            self._check_access(request, bucket, "objects.get", name)
            found = self._buckets.get(bucket, name, request.query)
            return (
                _content_response(request, found)
                if request.query.get("alt") == "media"
                else json_response(found.resource(request.base))
            )
        self._check_access(request, bucket, "objects.delete", name)
        self._buckets.delete(bucket, name, request.query)
        return StorageResponse(204)

    def _copy(self, request: StorageRequest, bucket: str, name: str, to_bucket: str, to_name: str) -> StorageResponse:
        self._check_access(request, bucket, "objects.get", name)
        self._check_access(request, to_bucket, "objects.create", to_name)
        found = self._buckets.get(bucket, name)
        made = self._buckets.put(to_bucket, to_name, found.content, {**found.fields, **request.json}, request.query)
        size = str(len(made.content))
        done = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
        return json_response({**done, "resource": made.resource(request.base)})

    def _download(self, request: StorageRequest, bucket: str, name: str) -> StorageResponse:
        self._check_access(request, bucket, "objects.get", name)
        return _content_response(request, self._buckets.get(bucket, name, request.query))

    def _object_url(self, request: StorageRequest, bucket: str, name: str) -> StorageResponse:
        """Handle object URLs of the XML API, and signed URLs."""
        verb = {"PUT": "create", "POST": "create", "DELETE": "delete"}.get(request.method, "get")
        if "X-Goog-Signature" in request.query:
            check_expiry(request.query)
        else:
            self._check_access(request, bucket, f"objects.{verb}", name)
        if "uploadId" in request.query:
            return self._upload_part(request, self._buckets.upload(request.query["uploadId"]))
        if verb == "get":
            found = self._buckets.get(bucket, name, request.query)
            if request.headers.get("if-match", xml_api.etag(found)) != xml_api.etag(found):
                raise StorageError(412, "conditionNotMet", "The object has another ETag.")
            return _content_response(request, found)
        if verb == "delete":
            self._buckets.delete(bucket, name, {})
            return StorageResponse(204)
        self._faults.apply_fault("UPLOAD", name)
        fields, conditions = _object_fields(request), xml_api.conditions(request.headers)
        if "uploads" in request.query:
            return StorageResponse(200, xml_api.upload_answer(self._buckets.begin(bucket, name, fields, conditions)))
        if request.broken:
            return StorageResponse(499)
        made = self._buckets.put(bucket, name, request.body, fields, conditions)
        return StorageResponse(200, b"", xml_api.object_headers(made))

    def _list_xml(self, request: StorageRequest, bucket: str) -> StorageResponse:
        self._check_access(request, bucket, "objects.list", request.query.get("prefix", ""))
        return StorageResponse(200, xml_api.list_objects(self._buckets, bucket, request.query))

    def _upload_part(self, request: StorageRequest, upload: ResumableUpload) -> StorageResponse:
        if request.broken:
            return StorageResponse(499)
        if request.method == "DELETE":
            self._buckets.cancel(upload.id)
            return StorageResponse(204)
        if request.method == "PUT":
            return StorageResponse(
                200, b"", {"ETag": xml_api.add_part(upload, request.query["partNumber"], request.body)}
            )
        xml_api.join_parts(upload, request.body)
        made = self._buckets.finish(upload)
        return StorageResponse(200, xml_api.completion_answer(made), xml_api.object_headers(made))

    # ---- Uploads

    def _upload(self, request: StorageRequest, bucket: str) -> StorageResponse:
        if "upload_id" in request.query:
            return self._continue_upload(request, request.query["upload_id"])
        kind = request.query.get("uploadType")
        if kind == "multipart":
            fields, content = _parse_multipart(request)
        elif kind == "media":
            fields, content = _content_type_fields(request), request.body
        else:
            fields, content = request.json, b""
            if request.headers.get("x-upload-content-type"):
                fields.setdefault("contentType", request.headers["x-upload-content-type"])
        name = fields.pop("name", None) or request.query["name"]
        fields |= _checksum_fields(request)
        self._check_access(request, bucket, "objects.create", name)
        self._faults.apply_fault("UPLOAD", name)
        if kind == "resumable":
            upload = self._buckets.begin(bucket, name, fields, request.query)
            place = f"{request.base}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={upload.id}"
            return StorageResponse(200, b"", {"Location": place, "X-GUploader-UploadID": upload.id})
        if request.broken:
            return StorageResponse(499)
        return json_response(self._buckets.put(bucket, name, content, fields, request.query).resource(request.base))

    def _continue_upload(self, request: StorageRequest, upload_id: str) -> StorageResponse:
        if request.method == "DELETE":
            self._buckets.cancel(upload_id)
            return StorageResponse(499)
        upload = self._buckets.upload(upload_id)
        upload.fields |= _checksum_fields(request)
        self._check_access(request, upload.bucket, "objects.create", upload.name)
        given = _CONTENT_RANGE.fullmatch(request.headers.get("content-range", ""))
        start, total = (given[1], given[3]) if given else ("0", str(len(request.body)))
        if start is not None:
            _append(upload, int(start), request.body, total)
        if total != "*" and len(upload.content) == int(total):
            return json_response(self._buckets.finish(upload).resource(request.base))
        kept = {"Range": f"bytes=0-{len(upload.content) - 1}"} if upload.content else {}
        return StorageResponse(_RESUME_INCOMPLETE, b"", {**kept, "X-GUploader-UploadID": upload.id})


def _append(upload: ResumableUpload, start: int, body: bytes, total: str) -> None:
    kept = len(upload.content)
    if start > kept:
        raise StorageError(503, "backendError", f"The upload goes on at {kept}, not at {start}.")
    whole = total != "*" and start + len(body) == int(total)
    # As at Google, bytes received before are skipped: a client repeats those it got no response for.
    upload.content += (body if whole else body[: len(body) // CHUNK * CHUNK])[kept - start :]


def _object_fields(request: StorageRequest) -> dict[str, Any]:
    how = request.headers.get("content-disposition")
    return _content_type_fields(request) | ({"contentDisposition": how} if how else {})


def _content_type_fields(request: StorageRequest) -> dict[str, Any]:
    kind = request.headers.get("content-type")
    return {"contentType": kind} if kind else {}


def _checksum_fields(request: StorageRequest) -> dict[str, str]:
    given = dict(
        part.strip().split("=", 1) for part in request.headers.get("x-goog-hash", "").split(",") if "=" in part
    )
    return {"crc32c": given["crc32c"]} if "crc32c" in given else {}


def _parse_multipart(request: StorageRequest) -> tuple[dict[str, Any], bytes]:
    """Parse a multipart/related body into the object's fields and its content."""
    boundary = re.search(r"""boundary=['"]?([^'";]+)""", request.headers["content-type"])
    if boundary is None:
        raise ValueError("no boundary")
    mark = b"--" + boundary[1].encode()
    _, first, rest = request.body.split(mark, 2)
    content, _ = rest.rsplit(b"\r\n" + mark + b"--", 1)
    headers, _, content = content.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    fields = json.loads(first.partition(b"\r\n\r\n")[2])
    kind = BytesParser().parsebytes(headers + b"\r\n\r\n").get_content_type()
    return {"contentType": kind, **fields}, content


def _content_response(request: StorageRequest, found: StoredObject) -> StorageResponse:
    size = len(found.content)
    headers = {
        "Content-Type": str(found.fields.get("contentType", "application/octet-stream")),
        "Accept-Ranges": "bytes",
        **xml_api.object_headers(found),
        "x-goog-hash": f"crc32c={found.crc32c},md5={found.md5}",
    }
    if "contentDisposition" in found.fields:
        headers["Content-Disposition"] = str(found.fields["contentDisposition"])
    wanted = _RANGE.fullmatch(request.headers.get("range", ""))
    if wanted is None or wanted[0] == "bytes=-":
        return StorageResponse(200, found.content, headers)
    first, last = wanted.groups()
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        return StorageResponse(416, b"", {"Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return StorageResponse(_PARTIAL, found.content[start:stop], headers)
