"""Cloud Storage's JSON API as Google documents it, with its token services; shares no code with the simulator."""

import base64
import hashlib
import json
import re
import threading
import time
import urllib.parse
from datetime import UTC, datetime
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler
from typing import BinaryIO

from google_crc32c import Checksum

PAGE = 1000
UPLOAD_BLOCK = 1024**2
BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_BOUNDARY = re.compile(r"objects/([^']+)'")


class LargeUpload:
    """Content of one object that is counted and summed as it arrives, and not kept.

    Args:
        name: A part of the object's name.
        seconds: Time in which it arrives at least.

    Attributes:
        took: Seconds in which it arrived.
    """

    def __init__(self, name: str, seconds: float = 0.0) -> None:
        self.name = name
        self.size = 0
        self.checksum = Checksum()
        self.uploads = 0
        self.took = 0.0
        self._seconds = seconds

    def read(self, file: BinaryIO, size: int) -> None:
        began, self.size, self.checksum = time.monotonic(), 0, Checksum()
        while self.size < size and (block := file.read(min(UPLOAD_BLOCK, size - self.size))):
            self.size += len(block)
            self.checksum.update(block)
            time.sleep(max(0.0, began + self._seconds * self.size / size - time.monotonic()))
        self.took = time.monotonic() - began
        self.uploads += self.size == size


class StorageState:
    """Buckets, objects, tokens, and all requests so far."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.buckets: dict[str, dict] = {}
        self.objects: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.policies: dict[str, dict] = {}
        self.requests: list[str] = []
        self.slow: dict[str, float] = {}
        self.refuse: list[tuple[str, int]] = []
        self.prefixes: dict[str, str] = {}
        self.sessions: dict[str, tuple[str, str, bytes]] = {}
        self.large: LargeUpload | None = None
        self._generation = int(time.time() * 1e6)

    def put(self, bucket: str, name: str, content: bytes) -> int:
        with self.lock:
            self._generation += 1
            self.objects[bucket, name] = content, self._generation
            return self._generation

    def names(self, prefix: str = "") -> list[str]:
        with self.lock:
            return sorted(name for _, name in self.objects if name.startswith(prefix))

    def content(self, name: str) -> bytes | None:
        with self.lock:
            return next((content for (_, one), (content, _) in self.objects.items() if one == name), None)

    def new_token(self, prefix: str = "") -> str:
        with self.lock:
            token = f"ya29.{len(self.prefixes)}"
            self.prefixes[token] = prefix
            return token


class GoogleHandler(BaseHTTPRequestHandler):
    """Requests to `*.googleapis.com` over HTTP/1.1, once TLS is set up; `cloud` is set by the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - as http.server names them

    def _handle(self) -> None:
        self.state: StorageState = self.server.cloud.storage
        self.body = self._read_body()
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query))
        host = self.headers["Host"].partition(":")[0]
        self.state.requests.append(f"{self.command} {host}{self.path}")
        begin = self.body[:500].decode(errors="replace").replace("\r\n", " ")  # an upload's name is in its body
        for pattern, seconds in list(self.state.slow.items()):
            if re.search(pattern, f"{self.command} {self.path} {begin}"):
                self.server.cloud.wait(seconds)
        for index, (pattern, status) in enumerate(self.state.refuse):
            if re.search(pattern, f"{self.command} {self.path} {begin}"):
                del self.state.refuse[index]
                self._fail(status, "as the test wants it")
                return
        if host == "storage.googleapis.com":
            self._storage(url.path)
        elif host == "tpu.googleapis.com" and self.headers.get("Authorization", "") in ("", "Bearer "):
            self._fail(401, "Request had invalid authentication credentials.")
        elif host == "tpu.googleapis.com" and self.command == "POST":
            self._json(*self.server.cloud.tpu.create_by_rest(url.path, self.query, self.body))
        elif host == "tpu.googleapis.com":
            self._json(200 if self.server.cloud.tpu.delete_by_rest(url.path) else 404, {})
        elif host == "compute.googleapis.com":
            known = self.headers.get("Authorization", "").removeprefix("Bearer ") in self.state.prefixes
            self._json(*(self.server.cloud.compute.answer(self.command, url.path, self.query) if known else (401, {})))
        else:
            self._tokens(host, url.path)

    def _read_body(self) -> bytes:
        length, large = int(self.headers.get("Content-Length") or 0), self.state.large
        if large is None or large.name not in self.path or length <= UPLOAD_BLOCK:
            return self.rfile.read(length)
        large.read(self.rfile, length)
        return b""  # the object is there, and empty

    def _tokens(self, host: str, path: str) -> None:
        if host == "oauth2.googleapis.com":
            self._json(200, {"access_token": self.state.new_token(), "expires_in": 3600, "token_type": "Bearer"})
        elif host == "sts.googleapis.com":
            form = dict(urllib.parse.parse_qsl(self.body.decode()))
            found = _BOUNDARY.search(urllib.parse.unquote(form["options"]))
            token = self.state.new_token(found.group(1))
            kind = "urn:ietf:params:oauth:token-type:access_token"
            made = {"access_token": token, "issued_token_type": kind, "token_type": "Bearer", "expires_in": 3600}
            self._json(200, made)
        elif path.endswith(":generateAccessToken"):
            until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
            self._json(200, {"accessToken": self.state.new_token(), "expireTime": until})
        else:
            self._json(404, {"error": {"code": 404, "message": path, "status": "NOT_FOUND"}})

    def _storage(self, path: str) -> None:
        if "X-Goog-Signature" in self.query:
            _, bucket, name = path.split("/", 2)
            self._media(bucket, urllib.parse.unquote(name))
            return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.state.prefixes:
            self._fail(401, "Invalid Credentials")
            return
        upload, plain = path.startswith("/upload/"), path.startswith(("/storage/", "/download/", "/upload/"))
        parts = [urllib.parse.unquote(part) for part in path.split("/v1/")[1].split("/")] if plain else []
        if parts == ["b"]:
            self._insert_bucket()
        elif len(parts) >= 2 and parts[1] not in self.state.buckets:
            self._fail(404, "The specified bucket does not exist.")
        elif len(parts) == 2:
            self._bucket(parts[1])
        elif parts[2] == "iam":
            self._iam(parts[1])
        elif not self._allowed(token, parts[3] if len(parts) > 3 else None):
            self._fail(403, "The caller does not have storage.objects access.")
        elif upload:
            self._upload(parts[1])
        elif len(parts) == 3:
            self._list(parts[1])
        else:
            self._object(parts[1], "/".join(parts[3:]))

    def _allowed(self, token: str, name: str | None) -> bool:
        named = name or self.query.get("name") or self.query.get("prefix") or ""
        if not named and self.headers.get("Content-Type", "").startswith("multipart"):
            return True  # the name is in the body
        return named.startswith(self.state.prefixes[token])

    def _insert_bucket(self) -> None:
        made = json.loads(self.body)
        if BUCKET_NAME.fullmatch(made["name"]) is None:
            self._fail(400, f"Invalid bucket name: '{made['name']}'")
        elif made["name"] in self.state.buckets:
            self._fail(409, "Your previous request to create the named bucket succeeded and you already own it.")
        else:
            made["project"] = self.query["project"]
            made["location"] = made.get("location", "US").upper()
            made.setdefault("softDeletePolicy", {"retentionDurationSeconds": "604800"})
            self.state.buckets[made["name"]] = made
            self._json(200, made)

    def _bucket(self, name: str) -> None:
        if self.command in {"PATCH", "PUT"}:
            self.state.buckets[name] |= json.loads(self.body)
        self._json(200, self.state.buckets[name])

    def _iam(self, name: str) -> None:
        if self.command == "PUT":
            self.state.policies[name] = json.loads(self.body) | {"etag": str(time.time_ns())}
        self._json(200, self.state.policies.get(name, {"version": 1, "etag": "0", "bindings": []}))

    def _list(self, bucket: str) -> None:
        prefix, start = self.query.get("prefix", ""), self.query.get("startOffset", "")
        after, delimiter = self.query.get("pageToken", ""), self.query.get("delimiter")
        with self.state.lock:
            names = sorted(name for where, name in self.state.objects if where == bucket and name.startswith(prefix))
            names = [name for name in names if name >= start and name > after]
            if delimiter:
                folders = {
                    prefix + name[len(prefix) :].partition("/")[0] + "/" for name in names if "/" in name[len(prefix) :]
                }
                self._json(200, {"prefixes": sorted(folders)})
                return
            items = [self._resource(bucket, name) for name in names[:PAGE]]
        more = {"nextPageToken": names[PAGE - 1]} if len(names) > PAGE else {}
        self._json(200, {"items": items, **more})

    def _object(self, bucket: str, name: str) -> None:
        if (bucket, name) not in self.state.objects:
            self._fail(404, f"No such object: {bucket}/{name}")
        elif self.command == "DELETE":
            self.state.objects.pop((bucket, name), None)
            self._reply(204, "", b"")
        elif self.query.get("alt") == "media":
            self._media(bucket, name)
        else:
            self._json(200, self._resource(bucket, name))

    def _media(self, bucket: str, name: str) -> None:
        found = self.state.objects.get((bucket, name))
        if found is None:
            self._fail(404, f"No such object: {bucket}/{name}")
            return
        content, generation = found
        headers = {"x-goog-generation": str(generation), "x-goog-hash": f"crc32c={_crc(content)}"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            self._reply(200, "application/octet-stream", content, headers)
            return
        first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
        if first >= len(content):
            self._fail(416, "Requested range not satisfiable")
            return
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self._reply(206, "application/octet-stream", content[first : last + 1], headers)

    def _upload(self, bucket: str) -> None:
        if self.command == "PUT":
            self._resume(self.query["upload_id"])
        elif self.query["uploadType"] == "resumable":
            name = self.query.get("name") or json.loads(self.body)["name"]
            session = f"s{len(self.state.sessions)}"
            self.state.sessions[session] = bucket, name, b""
            location = f"https://storage.googleapis.com/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={session}"
            self._reply(200, "application/json", b"{}", {"Location": location})
        elif self.query["uploadType"] == "multipart":
            whole = message_from_bytes(
                b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + self.body
            )
            about, _ = whole.get_payload()
            # The e-mail parser changes line ends: the content is cut out of the body instead.
            mark = b"--" + whole.get_boundary().encode()
            content = self.body.split(mark)[2].partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
            self._store(bucket, json.loads(about.get_payload())["name"], content)
        else:
            self._store(bucket, self.query["name"], self.body)

    def _resume(self, session: str) -> None:
        bucket, name, sofar = self.state.sessions[session]
        content = sofar + self.body
        total = self.headers["Content-Range"].rpartition("/")[2]
        if total == "*" or int(total) > len(content):
            self.state.sessions[session] = bucket, name, content
            self._reply(308, "", b"", {"Range": f"bytes=0-{len(content) - 1}"})
        else:
            self._store(bucket, name, content)

    def _store(self, bucket: str, name: str, content: bytes) -> None:
        if self.query.get("ifGenerationMatch") == "0" and (bucket, name) in self.state.objects:
            self._fail(412, "At least one of the pre-conditions you specified did not hold.")
            return
        if {"\n", "\r"} & set(name) or len(name.encode()) > 1024:
            self._fail(400, "Disallowed unicode characters present in object name, or it is too long.")
            return
        self.state.put(bucket, name, content)
        self._json(200, self._resource(bucket, name))

    def _resource(self, bucket: str, name: str) -> dict:
        content, generation = self.state.objects[bucket, name]
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "size": str(len(content)),
            "generation": str(generation),
            "metageneration": "1",
            "updated": f"{datetime.fromtimestamp(generation / 1e6, UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
            "crc32c": _crc(content),
            "md5Hash": base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode(),
        }

    def _fail(self, status: int, message: str) -> None:
        self._json(status, {"error": {"code": status, "message": message, "errors": [{"message": message}]}})

    def _json(self, status: int, value: object) -> None:
        self._reply(status, "application/json", json.dumps(value).encode())

    def _reply(self, status: int, kind: str, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(content), **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server names it
        """Log nothing."""


def _crc(content: bytes) -> str:
    return base64.b64encode(Checksum(content).digest()).decode()
