"""The JSON API of Cloud Storage and the token services, with what they have in common with the XML API."""

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.parser import BytesParser
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gradient_server.simulator.gcs import xml_objects
from gradient_server.simulator.gcs.access import LIST, Caller, Tokens, has_access
from gradient_server.simulator.gcs.objects import Bucket, BucketStore, StorageError, StoredObject, Upload

_CHUNK = 256 * 1024  # an unfinished upload keeps a multiple of this many bytes, as at Google
_RANGE = re.compile(r"bytes=(\d*)-(\d*)\Z")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)\Z")
MAX_RESULTS = 1000


@dataclass(frozen=True)
class StorageRequest:
    method: str
    base: str  # the address it was sent to, such as `http://127.0.0.1:9000` or `https://storage.googleapis.com`
    target: str  # path and query, still quoted: a slash within a name is `%2F`
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @cached_property
    def values(self) -> Mapping[str, list[str]]:
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True)

    @cached_property
    def query(self) -> Mapping[str, str]:
        return {name: values[0] for name, values in self.values.items()}

    @cached_property
    def json(self) -> dict[str, Any]:
        """The body as JSON; empty for none."""
        return json.loads(self.body) if self.body else {}


@dataclass(frozen=True)
class StorageResponse:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Hosts = Mapping[str, Callable[[StorageRequest], StorageResponse]]


def json_response(value: object, status: int = 200) -> StorageResponse:
    return StorageResponse(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


class StorageApi:
    def __init__(self, buckets: BucketStore, tokens: Tokens, others: Hosts) -> None:
        self._buckets, self._tokens, self._others = buckets, tokens, others
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
            (f"(?:GET|DELETE) (?:/download)?/storage/v1/b/{name}/o/{name}", self._object),
            (f"POST /storage/v1/b/{name}/o/{name}/rewriteTo/b/{name}/o/{name}", self._copy),
            (f"(?:POST|PUT|DELETE) /upload/storage/v1/b/{name}/o", self._upload),
            (f"GET /{name}", self._list_xml),
            (f"(?:GET|HEAD|PUT|POST|DELETE) /{name}/(.+)", self._object_url),
        ]
        self._routes = [(re.compile(pattern), handler) for pattern, handler in routes]

    def answer(self, request: StorageRequest) -> StorageResponse:
        try:
            return self.dispatch(request)
        except StorageError as error:
            return json_response({"error": {"code": error.status, "message": error.message}}, error.status)
        except (KeyError, ValueError) as error:
            message = f"The request cannot be understood: {error!r}"
            return json_response({"error": {"code": 400, "message": message}}, 400)

    def dispatch(self, request: StorageRequest) -> StorageResponse:
        if other := self._others.get(request.base.removeprefix("https://")):
            self._caller(request)
            return other(request)
        for pattern, handler in self._routes:
            if match := pattern.fullmatch(f"{request.method} {request.path}"):
                return handler(request, *(unquote(part) for part in match.groups()))
        raise StorageError(404, f"The simulator has no {request.method} {request.path}.")

    # ---- Tokens

    def _sign_in(self, _: StorageRequest) -> StorageResponse:
        token = self._tokens.issue(Caller())
        return json_response({"access_token": token, "token_type": "Bearer", "expires_in": 3600})

    def _exchange(self, request: StorageRequest) -> StorageResponse:
        form = parse_qs(request.body.decode())
        rules = json.loads(unquote(form["options"][0]))["accessBoundary"]["accessBoundaryRules"]
        return json_response(self._tokens.downscope(form["subject_token"][0], rules))

    def _impersonate(self, request: StorageRequest, account: str) -> StorageResponse:
        lifetime = float(request.json.get("lifetime", "3600s").removesuffix("s"))
        return json_response(self._tokens.impersonate(self._caller(request), account, lifetime))

    def _sign(self, request: StorageRequest, _account: str) -> StorageResponse:
        self._caller(request)
        return json_response({"keyId": "1", "signedBlob": request.json["payload"]})

    def _caller(self, request: StorageRequest) -> Caller:
        return self._tokens.caller(request.headers.get("authorization"))

    def _check_access(self, request: StorageRequest, bucket: str, permission: str, name: str = "") -> Bucket:
        caller, stored = self._caller(request), self._buckets.bucket(bucket)
        if not has_access(caller, stored, permission, name):
            what = "access to the Google Cloud Storage object"
            raise StorageError(403, f"{caller.account} does not have {permission} {what}.")
        return stored

    # ---- Buckets

    def _create_bucket(self, request: StorageRequest) -> StorageResponse:
        self._caller(request)
        fields = request.json
        return json_response(self._buckets.create(fields.pop("name"), fields).resource())

    def _bucket(self, request: StorageRequest, name: str) -> StorageResponse:
        if request.method == "DELETE":
            self._check_access(request, name, "storage.buckets.delete")
            self._buckets.drop(name)
            return StorageResponse(204)
        return json_response(self._check_access(request, name, "storage.buckets.get").resource())

    def _policy(self, request: StorageRequest, name: str) -> StorageResponse:
        bucket = self._check_access(request, name, "storage.buckets.getIamPolicy")
        if request.method == "PUT":
            etag = bucket.policy.get("etag", "")
            if request.json.get("etag", etag) != etag:
                raise StorageError(412, "The policy was changed by somebody else.")
            number = int(base64.b64decode(etag) or 0) + 1
            bucket.policy = {**request.json, "etag": base64.b64encode(str(number).encode()).decode()}
        return json_response({"kind": "storage#policy", **bucket.policy})

    def _permissions(self, request: StorageRequest, name: str) -> StorageResponse:
        caller, bucket = self._caller(request), self._buckets.bucket(name)
        given = [
            permission for permission in request.values.get("permissions", []) if has_access(caller, bucket, permission)
        ]
        return json_response({"kind": "storage#testIamPermissionsResponse", "permissions": given})

    # ---- Objects

    def _page(
        self, bucket: str, prefix: str, delimiter: str, after: str, most: int
    ) -> tuple[list[tuple[str, StoredObject | None]], str | None]:
        """Return names, those of folders without an object, and the last name, unless nothing follows it."""
        keys: dict[str, StoredObject | None] = {}
        for stored in self._buckets.names(bucket):
            if stored.name.startswith(prefix):
                head, cut, _ = stored.name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
                key = prefix + head + cut if cut else stored.name
                if key > after:
                    keys.setdefault(key, None if cut else stored)
        page = list(keys.items())[:most]
        return page, page[-1][0] if len(page) < len(keys) else None

    def _list(self, request: StorageRequest, bucket: str) -> StorageResponse:
        query = request.query
        self._check_access(request, bucket, LIST, query.get("prefix", ""))
        after = base64.urlsafe_b64decode(query.get("pageToken", "")).decode()
        most = min(int(query.get("maxResults") or MAX_RESULTS), MAX_RESULTS)
        page, last = self._page(bucket, query.get("prefix", ""), query.get("delimiter", ""), after, most)
        start = query.get("startOffset", "")
        shown: dict[str, Any] = {
            "kind": "storage#objects",
            "items": [
                stored.resource(request.base) for _, stored in page if stored is not None and stored.name >= start
            ],
            "prefixes": [key for key, stored in page if stored is None],
        }
        if last is not None:
            shown["nextPageToken"] = base64.urlsafe_b64encode(last.encode()).decode()
        return json_response(shown)

    def _list_xml(self, request: StorageRequest, bucket: str) -> StorageResponse:
        query = request.query
        self._check_access(request, bucket, LIST, query.get("prefix", ""))
        after = query.get("continuation-token", query.get("start-after", ""))
        page, last = self._page(bucket, query.get("prefix", ""), query.get("delimiter", ""), after, MAX_RESULTS)
        return StorageResponse(200, xml_objects.listing(page, last))

    def _object(self, request: StorageRequest, bucket: str, name: str) -> StorageResponse:
        if request.method == "DELETE":
            self._check_access(request, bucket, "storage.objects.delete", name)
            self._buckets.delete(bucket, name, request.query)
            return StorageResponse(204)
        self._check_access(request, bucket, "storage.objects.get", name)
        stored = self._buckets.get(bucket, name, request.query)
        is_content = request.query.get("alt") == "media"
        return _content_response(request, stored) if is_content else json_response(stored.resource(request.base))

    def _copy(self, request: StorageRequest, bucket: str, name: str, to_bucket: str, to_name: str) -> StorageResponse:
        self._check_access(request, bucket, "storage.objects.get", name)
        self._check_access(request, to_bucket, "storage.objects.create", to_name)
        stored = self._buckets.get(bucket, name)
        copy = self._buckets.put(to_bucket, to_name, stored.content, {**stored.fields, **request.json}, request.query)
        size = str(len(copy.content))
        done = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
        return json_response({**done, "resource": copy.resource(request.base)})

    def _object_url(self, request: StorageRequest, bucket: str, name: str) -> StorageResponse:
        """Handle object URLs of the XML API, and signed URLs, whose dates are checked and not their signatures."""
        verb = {"PUT": "create", "POST": "create", "DELETE": "delete"}.get(request.method, "get")
        if "X-Goog-Signature" in request.query:
            _check_expiry(request.query)
        else:
            self._check_access(request, bucket, f"storage.objects.{verb}", name)
        if "uploadId" in request.query:
            return self._upload_part(request, request.query["uploadId"])
        if verb == "get":
            return _content_response(request, self._buckets.get(bucket, name, request.query))
        if verb == "delete":
            self._buckets.delete(bucket, name, {})
            return StorageResponse(204)
        fields, expected = _object_fields(request), xml_objects.conditions(request.headers)
        if "uploads" in request.query:
            return StorageResponse(200, xml_objects.upload_started(self._buckets.begin(bucket, name, fields, expected)))
        stored = self._buckets.put(bucket, name, request.body, fields, expected)
        return StorageResponse(200, b"", xml_objects.headers(stored))

    def _upload_part(self, request: StorageRequest, upload_id: str) -> StorageResponse:
        upload = self._buckets.uploads[upload_id]
        if request.method == "DELETE":
            del self._buckets.uploads[upload_id]
            return StorageResponse(204)
        if request.method == "PUT":
            tag = xml_objects.add_part(upload, int(request.query["partNumber"]), request.body)
            return StorageResponse(200, b"", {"ETag": tag})
        xml_objects.join_parts(upload, request.body)
        stored = self._buckets.finish(upload)
        return StorageResponse(200, xml_objects.completed(stored), xml_objects.headers(stored))

    # ---- Uploads

    def _upload(self, request: StorageRequest, bucket: str) -> StorageResponse:
        if "upload_id" in request.query:
            return self._continue_upload(request, request.query["upload_id"])
        kind = request.query.get("uploadType")
        if kind == "multipart":
            fields, content = _parse_multipart(request)
        elif kind == "media":
            fields, content = _object_fields(request), request.body
        else:
            fields, content = {"contentType": request.headers.get("x-upload-content-type"), **request.json}, b""
        name = fields.pop("name", None) or request.query["name"]
        self._check_access(request, bucket, "storage.objects.create", name)
        if kind == "resumable":
            upload = self._buckets.begin(bucket, name, fields, request.query)
            url = f"{request.base}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={upload.id}"
            return StorageResponse(200, b"", {"Location": url, "X-GUploader-UploadID": upload.id})
        return json_response(self._buckets.put(bucket, name, content, fields, request.query).resource(request.base))

    def _continue_upload(self, request: StorageRequest, upload_id: str) -> StorageResponse:
        if request.method == "DELETE":
            self._buckets.uploads.pop(upload_id, None)
            return StorageResponse(499)
        if (upload := self._buckets.uploads.get(upload_id)) is None:
            raise StorageError(404, "No such upload.")
        self._check_access(request, upload.bucket, "storage.objects.create", upload.name)
        given = _CONTENT_RANGE.fullmatch(request.headers.get("content-range", ""))
        start, total = (given[1], given[3]) if given else ("0", str(len(request.body)))
        if start is not None:
            _append(upload, int(start), request.body, total)
        if total != "*" and len(upload.content) == int(total):
            return json_response(self._buckets.finish(upload).resource(request.base))
        kept = {"Range": f"bytes=0-{len(upload.content) - 1}"} if upload.content else {}
        return StorageResponse(308, b"", {**kept, "X-GUploader-UploadID": upload.id})


def _check_expiry(query: Mapping[str, str]) -> None:
    signed_at = datetime.strptime(query["X-Goog-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if datetime.now(UTC) > signed_at + timedelta(seconds=int(query["X-Goog-Expires"])):
        raise StorageError(403, "The signed URL has expired.")


def _append(upload: Upload, start: int, body: bytes, total: str) -> None:
    kept = len(upload.content)
    if start > kept:
        raise StorageError(503, f"The upload goes on at {kept}, not at {start}.")
    whole = total != "*" and start + len(body) == int(total)
    # As at Google, bytes received before are skipped: a client repeats those it got no response for.
    upload.content += (body if whole else body[: len(body) // _CHUNK * _CHUNK])[kept - start :]


def _object_fields(request: StorageRequest) -> dict[str, Any]:
    headers = {"contentType": "content-type", "contentDisposition": "content-disposition"}
    return {name: request.headers[header] for name, header in headers.items() if header in request.headers}


def _parse_multipart(request: StorageRequest) -> tuple[dict[str, Any], bytes]:
    """Parse a multipart/related body into the object's fields and its content."""
    boundary = re.findall(r"""boundary=['"]?([^'";]+)""", request.headers["content-type"])[0]
    mark = b"--" + boundary.encode()
    _, first, rest = request.body.split(mark, 2)
    headers, _, content = rest.rsplit(b"\r\n" + mark + b"--", 1)[0].removeprefix(b"\r\n").partition(b"\r\n\r\n")
    kind = BytesParser().parsebytes(headers + b"\r\n\r\n").get_content_type()
    return {"contentType": kind, **json.loads(first.partition(b"\r\n\r\n")[2])}, content


def _content_response(request: StorageRequest, stored: StoredObject) -> StorageResponse:
    if request.headers.get("if-match", f'"{stored.etag}"') != f'"{stored.etag}"':
        raise StorageError(412, "The object has another ETag.")
    size = len(stored.content)
    crc, md5 = stored.checksums
    headers = {
        "Content-Type": str(stored.fields.get("contentType", "application/octet-stream")),
        "Accept-Ranges": "bytes",
        **xml_objects.headers(stored),
        "x-goog-hash": f"crc32c={crc},md5={md5}",
    }
    if "contentDisposition" in stored.fields:
        headers["Content-Disposition"] = str(stored.fields["contentDisposition"])
    wanted = _RANGE.fullmatch(request.headers.get("range", ""))
    if wanted is None or wanted[0] == "bytes=-":
        return StorageResponse(200, stored.content, headers)
    first, last = wanted.groups()
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        return StorageResponse(416, b"", {"Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return StorageResponse(206, stored.content[start:stop], headers)
