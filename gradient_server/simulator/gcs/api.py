"""The API of the Cloud Storage simulator: the JSON API, uploads, downloads by URL, and tokens."""

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.parser import BytesParser
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gradient_server.simulator.gcs.access import Access, Caller, Tokens, check_access, has_access
from gradient_server.simulator.gcs.faults import Faults
from gradient_server.simulator.gcs.objects import CHUNK, Bucket, Buckets, Refused, StoredObject, Upload
from gradient_server.simulator.gcs.signed_urls import check_signature

_RANGE = re.compile(r"bytes=(\d*)-(\d*)\Z")
_UPLOADED = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)\Z")
_MOST = 1000
_PARTIAL, _RESUME = 206, 308


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        base: The address it was sent to, such as `http://127.0.0.1:9000` or `https://storage.googleapis.com`.
        path: The path, still quoted: a slash within a name is `%2F`.
        query: The first value of each query parameter.
        values: All values of each query parameter.
        headers: The headers by name in lower case.
        broken: Whether the body is incomplete.
    """

    method: str
    base: str
    path: str
    query: Mapping[str, str]
    values: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    broken: bool = False

    @classmethod
    def of(cls, method: str, base: str, target: str, headers: Mapping[str, str], body: bytes) -> "Asked":
        """Build a request from the target in its request line."""
        parts = urlsplit(target)
        values = parse_qs(parts.query, keep_blank_values=True)
        return cls(method, base, parts.path, {name: found[0] for name, found in values.items()}, values, headers, body)

    @property
    def json(self) -> dict[str, Any]:
        """The body as JSON; empty for none."""
        return json.loads(self.body) if self.body else {}


@dataclass(frozen=True)
class Answer:
    """A response: a status, headers and a body."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def as_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Build a JSON response."""
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})


def refusal(error: Refused) -> Answer:
    """Build an error response in Google's format."""
    if error.status == 304:  # noqa: PLR2004 - Not Modified, which has no body
        return Answer(304)
    inner = {"message": error.message, "domain": "global", "reason": error.reason}
    return as_json({"error": {"code": error.status, "message": error.message, "errors": [inner]}}, error.status)


class StorageApi:
    """Handles requests to the buckets."""

    def __init__(self, buckets: Buckets, tokens: Tokens, faults: Faults) -> None:
        self._buckets, self._tokens, self._faults = buckets, tokens, faults
        name = "([^/]+)"
        routes: list[tuple[str, Callable[..., Answer]]] = [
            ("POST /v1/token", self._exchange),
            (f"POST /v1/projects/-/serviceAccounts/{name}:generateAccessToken", self._impersonate),
            ("GET /storage/v1/b", self._list_buckets),
            ("POST /storage/v1/b", self._create_bucket),
            (f"(?:GET|PATCH|DELETE) /storage/v1/b/{name}", self._bucket),
            (f"(?:GET|PUT) /storage/v1/b/{name}/iam", self._policy),
            (f"GET /storage/v1/b/{name}/iam/testPermissions", self._permissions),
            (f"GET /storage/v1/b/{name}/o", self._list),
            (f"(?:GET|PATCH|PUT|DELETE) /storage/v1/b/{name}/o/{name}", self._object),
            (f"POST /storage/v1/b/{name}/o/{name}/(?:rewriteTo|copyTo)/b/{name}/o/{name}", self._copy),
            (f"POST /storage/v1/b/{name}/o/{name}/compose", self._compose),
            (f"(?:POST|PUT|DELETE) /upload/storage/v1/b/{name}/o", self._upload),
            (f"GET /download/storage/v1/b/{name}/o/{name}", self._download),
            (f"(?:GET|HEAD|PUT) /{name}/(.+)", self._by_url),
        ]
        self._routes = [(re.compile(pattern), handler) for pattern, handler in routes]

    def answer(self, asked: Asked) -> Answer:
        """Handle any request; an error becomes an error response."""
        try:
            if not asked.broken:
                self._faults.strike(asked.method, f"{asked.path}?{asked.query}")
            return self._routed(asked)
        except Refused as error:
            return refusal(error)
        except (KeyError, ValueError) as error:
            return refusal(Refused(400, "invalid", f"The request cannot be understood: {error!r}"))

    def _routed(self, asked: Asked) -> Answer:
        for pattern, handler in self._routes:
            if found := pattern.fullmatch(f"{asked.method} {asked.path}"):
                return handler(asked, *(unquote(part) for part in found.groups()))
        raise Refused(404, "notFound", f"The simulator has no {asked.method} {asked.path}.")

    # ---- Tokens

    def _exchange(self, asked: Asked) -> Answer:
        form = {name: values[0] for name, values in parse_qs(asked.body.decode()).items()}
        boundary = json.loads(unquote(form["options"]))["accessBoundary"]["accessBoundaryRules"]
        return as_json(self._tokens.downscope(form["subject_token"], boundary))

    def _impersonate(self, asked: Asked, account: str) -> Answer:
        lifetime = float(str(asked.json.get("lifetime", "3600s")).removesuffix("s"))
        return as_json(self._tokens.impersonate(self._caller(asked), account, lifetime))

    def _caller(self, asked: Asked) -> Caller:
        caller = self._tokens.caller(asked.headers.get("authorization"))
        self._faults.check(caller.account)
        return caller

    def _allowed(self, asked: Asked, bucket: str, permission: str, name: str = "") -> Bucket:
        caller, found = self._caller(asked), self._buckets.bucket(bucket)
        check_access(caller, found, Access(f"storage.{permission}", name))
        return found

    # ---- Buckets

    def _list_buckets(self, asked: Asked) -> Answer:
        self._caller(asked)
        return as_json({"kind": "storage#buckets", "items": [one.resource(asked.base) for one in self._buckets.all()]})

    def _create_bucket(self, asked: Asked) -> Answer:
        self._caller(asked)
        self._faults.check_creation()
        fields = asked.json
        return as_json(self._buckets.create(fields.pop("name"), fields).resource(asked.base))

    def _bucket(self, asked: Asked, name: str) -> Answer:
        found = self._allowed(asked, name, "buckets.get")
        if asked.method == "DELETE":
            self._buckets.drop(name)
            return Answer(204)
        if asked.method == "PATCH":
            found.fields.update(asked.json)
        return as_json(found.resource(asked.base))

    def _policy(self, asked: Asked, name: str) -> Answer:
        found = self._allowed(asked, name, "buckets.getIamPolicy")
        if asked.method == "PUT":
            given = asked.json
            if given.get("etag", found.policy.get("etag")) != found.policy.get("etag"):
                raise Refused(412, "conditionNotMet", "The policy was changed by somebody else.")
            number = int(base64.b64decode(found.policy.get("etag", "")) or 0) + 1
            found.policy = {**given, "etag": base64.b64encode(str(number).encode()).decode()}
        return as_json({"kind": "storage#policy", **found.policy})

    def _permissions(self, asked: Asked, name: str) -> Answer:
        caller, found = self._caller(asked), self._buckets.bucket(name)
        given = [one for one in asked.values.get("permissions", []) if has_access(caller, found, Access(one))]
        return as_json({"kind": "storage#testIamPermissionsResponse", "permissions": given})

    # ---- Objects

    def _list(self, asked: Asked, bucket: str) -> Answer:
        query = asked.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        self._allowed(asked, bucket, "objects.list", prefix)
        after = base64.urlsafe_b64decode(query["pageToken"]).decode() if query.get("pageToken") else ""
        found: dict[str, StoredObject | None] = {}
        for one in self._buckets.names(bucket):
            if not one.name.startswith(prefix) or one.name < query.get("startOffset", ""):
                continue
            head, cut, _ = one.name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            key = prefix + head + cut if cut else one.name
            if key > after:
                found.setdefault(key, None if cut else one)
        page = list(found.items())[: min(int(query.get("maxResults") or _MOST), _MOST)]
        shown: dict[str, Any] = {
            "kind": "storage#objects",
            "items": [one.resource(asked.base) for _, one in page if one is not None],
            "prefixes": [key for key, one in page if one is None],
        }
        if len(page) < len(found):
            shown["nextPageToken"] = base64.urlsafe_b64encode(page[-1][0].encode()).decode()
        return as_json(shown)

    def _object(self, asked: Asked, bucket: str, name: str) -> Answer:
        if asked.method == "GET":
            self._allowed(asked, bucket, "objects.get", name)
            found = self._buckets.get(bucket, name, asked.query)
            return _content(asked, found) if asked.query.get("alt") == "media" else as_json(found.resource(asked.base))
        if asked.method == "DELETE":
            self._allowed(asked, bucket, "objects.delete", name)
            self._buckets.delete(bucket, name, asked.query)
            return Answer(204)
        self._allowed(asked, bucket, "objects.update", name)
        found = self._buckets.update(self._buckets.get(bucket, name, asked.query), asked.json)
        return as_json(found.resource(asked.base))

    def _copy(self, asked: Asked, bucket: str, name: str, to_bucket: str, to_name: str) -> Answer:
        self._allowed(asked, bucket, "objects.get", name)
        self._allowed(asked, to_bucket, "objects.create", to_name)
        found = self._buckets.get(bucket, name)
        made = self._buckets.put(to_bucket, to_name, found.content, {**found.fields, **asked.json}, asked.query)
        if "/copyTo/" in asked.path:
            return as_json(made.resource(asked.base))
        size = str(len(made.content))
        done = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
        return as_json({**done, "resource": made.resource(asked.base)})

    def _compose(self, asked: Asked, bucket: str, name: str) -> Answer:
        self._allowed(asked, bucket, "objects.create", name)
        given = asked.json
        parts = [self._buckets.get(bucket, source["name"]).content for source in given["sourceObjects"]]
        made = self._buckets.put(bucket, name, b"".join(parts), given.get("destination", {}), asked.query)
        return as_json(made.resource(asked.base))

    def _download(self, asked: Asked, bucket: str, name: str) -> Answer:
        self._allowed(asked, bucket, "objects.get", name)
        return _content(asked, self._buckets.get(bucket, name, asked.query))

    def _by_url(self, asked: Asked, bucket: str, name: str) -> Answer:
        """Handle object URLs, as TensorFlow reads them, and signed URLs."""
        signed = "X-Goog-Signature" in asked.query
        if signed:
            check_signature(asked.query)
        if asked.method == "PUT":
            if not signed:
                self._allowed(asked, bucket, "objects.create", name)
            made = self._buckets.put(bucket, name, asked.body, _typed(asked), {})
            return Answer(200, b"", {"ETag": f'"{made.generation}"'})
        if not signed:
            self._allowed(asked, bucket, "objects.get", name)
        return _content(asked, self._buckets.get(bucket, name, asked.query))

    # ---- Uploads

    def _upload(self, asked: Asked, bucket: str) -> Answer:
        if "upload_id" in asked.query:
            return self._go_on(asked, asked.query["upload_id"])
        kind = asked.query.get("uploadType")
        if kind == "multipart":
            fields, content = _two_parts(asked)
        elif kind == "media":
            fields, content = _typed(asked), asked.body
        else:
            fields, content = asked.json, b""
            if asked.headers.get("x-upload-content-type"):
                fields.setdefault("contentType", asked.headers["x-upload-content-type"])
        name = fields.pop("name", None) or asked.query["name"]
        fields |= _hashes(asked)
        self._allowed(asked, bucket, "objects.create", name)
        self._faults.strike("UPLOAD", name)
        if kind == "resumable":
            upload = self._buckets.begin(bucket, name, fields, asked.query)
            place = f"{asked.base}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={upload.id}"
            return Answer(200, b"", {"Location": place, "X-GUploader-UploadID": upload.id})
        if asked.broken:
            return Answer(499)
        return as_json(self._buckets.put(bucket, name, content, fields, asked.query).resource(asked.base))

    def _go_on(self, asked: Asked, upload_id: str) -> Answer:
        if asked.method == "DELETE":
            self._buckets.cancel(upload_id)
            return Answer(499)
        upload = self._buckets.upload(upload_id)
        upload.fields |= _hashes(asked)
        self._allowed(asked, upload.bucket, "objects.create", upload.name)
        given = _UPLOADED.fullmatch(asked.headers.get("content-range", ""))
        start, total = (given[1], given[3]) if given else ("0", str(len(asked.body)))
        if start is not None:
            _append(upload, int(start), asked.body, total)
        if total != "*" and len(upload.content) == int(total):
            return as_json(self._buckets.finish(upload).resource(asked.base))
        return _so_far(upload)


def _append(upload: Upload, start: int, body: bytes, total: str) -> None:
    kept = len(upload.content)
    if start > kept:
        raise Refused(503, "backendError", f"The upload goes on at {kept}, not at {start}.")
    whole = total != "*" and start + len(body) == int(total)
    # As at Google, bytes received before are skipped: a client repeats those it got no response for.
    upload.content += (body if whole else body[: len(body) // CHUNK * CHUNK])[kept - start :]


def _so_far(upload: Upload) -> Answer:
    kept = {"Range": f"bytes=0-{len(upload.content) - 1}"} if upload.content else {}
    return Answer(_RESUME, b"", {**kept, "X-GUploader-UploadID": upload.id})


def _typed(asked: Asked) -> dict[str, Any]:
    kind = asked.headers.get("content-type")
    return {"contentType": kind} if kind else {}


def _hashes(asked: Asked) -> dict[str, str]:
    given = dict(part.strip().split("=", 1) for part in asked.headers.get("x-goog-hash", "").split(",") if "=" in part)
    return {"crc32c": given["crc32c"]} if "crc32c" in given else {}


def _two_parts(asked: Asked) -> tuple[dict[str, Any], bytes]:
    """Parse a multipart/related body into the object's fields and its content."""
    boundary = re.search(r"""boundary=['"]?([^'";]+)""", asked.headers["content-type"])
    if boundary is None:
        raise ValueError("no boundary")
    mark = b"--" + boundary[1].encode()
    _, first, rest = asked.body.split(mark, 2)
    content, _ = rest.rsplit(b"\r\n" + mark + b"--", 1)
    headers, _, content = content.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    fields = json.loads(first.partition(b"\r\n\r\n")[2])
    kind = BytesParser().parsebytes(headers + b"\r\n\r\n").get_content_type()
    return {"contentType": kind, **fields}, content


def _content(asked: Asked, found: StoredObject) -> Answer:
    """Build the response with an object's bytes, or the requested range of them."""
    size = len(found.content)
    headers = {
        "Content-Type": str(found.fields.get("contentType", "application/octet-stream")),
        "Accept-Ranges": "bytes",
        "ETag": f'"{found.generation}-{found.metageneration}"',
        "x-goog-generation": str(found.generation),
        "x-goog-metageneration": str(found.metageneration),
        "x-goog-hash": f"crc32c={found.crc32c},md5={found.md5}",
        "x-goog-stored-content-length": str(size),
        "x-goog-stored-content-encoding": "identity",
    }
    if "response-content-disposition" in asked.query:
        headers["Content-Disposition"] = asked.query["response-content-disposition"]
    if "response-content-type" in asked.query:
        headers["Content-Type"] = asked.query["response-content-type"]
    wanted = _RANGE.fullmatch(asked.headers.get("range", ""))
    if wanted is None or wanted[0] == "bytes=-":
        return Answer(200, found.content, headers)
    first, last = wanted.groups()
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        return Answer(416, b"", {"Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return Answer(_PARTIAL, found.content[start:stop], headers)
