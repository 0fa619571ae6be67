"""A registry (distribution API, version 2) for tests: it takes pushes, serves pulls, and does so slowly, brokenly or
not at all when told to. It listens inside a private engine's network, where 127.0.0.1 may be spoken to in the clear.
"""

import gzip
import hashlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_BLOCK = 64 * 1024


def sha256_digest(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Registry:
    """The registry's side that a test holds: what it serves lies in a folder, how it serves in a file there.

    Args:
        folder: Of its own.
        network: The words that run a program in the engine's network.
    """

    def __init__(self, folder, network):
        self.folder = folder
        for name in ("blobs", "manifests"):
            (folder / name).mkdir(parents=True)
        self.configure()
        program = [sys.executable, str(Path(__file__)), str(folder)]
        self._process = subprocess.Popen([*network, *program], stdout=subprocess.PIPE, text=True)
        self.host = f"127.0.0.1:{self._process.stdout.readline().strip()}"

    def configure(self, **behaviour):
        """bytes_per_second, break_after (bytes of a layer), stall (say nothing), require (an Authorization)."""
        new = self.folder / "how.new"
        new.write_text(json.dumps(behaviour))
        new.replace(self.folder / "how.json")

    def add_image(self, name, layers, **config):
        """Add an image from its layers (tar files); return its reference and its digest."""
        packed = [gzip.compress(layer, mtime=0) for layer in layers]
        described = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin"]} | config,
            "rootfs": {"type": "layers", "diff_ids": [sha256_digest(layer) for layer in layers]},
        }
        content = json.dumps(described).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "size": len(content), "digest": sha256_digest(content)},
            "layers": [{"mediaType": _LAYER, "size": len(one), "digest": sha256_digest(one)} for one in packed],
        }
        for blob in (content, *packed):
            (self.folder / "blobs" / sha256_digest(blob)).write_bytes(blob)
        body = json.dumps(manifest).encode()
        repository, _, tag = name.partition(":")
        for reference in (tag, sha256_digest(body)):
            _manifest_path(self.folder, repository, reference).write_bytes(body)
        return f"{self.host}/{name}", f"{self.host}/{repository}@{sha256_digest(body)}"

    def has_manifest(self, name):
        repository, _, tag = name.partition(":")
        return _manifest_path(self.folder, repository, tag).exists()

    def read_requests(self):
        """Return the requests received so far."""
        log = self.folder / "asked"
        return log.read_text().splitlines() if log.exists() else []

    def stop(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


def _manifest_path(folder, repository, reference):
    return folder / "manifests" / f"{repository.replace('/', '~')}~{reference}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    lock = threading.Lock()

    def behaviour(self):
        return json.loads((self.folder / "how.json").read_text())

    def _log_request(self):
        with self.lock, (self.folder / "asked").open("a") as log:
            log.write(f"{self.command} {self.path} {self.headers.get('Authorization', '')}\n")

    def do_GET(self):
        self._log_request()
        how = self.behaviour()
        if how.get("require") and self.headers.get("Authorization") != how["require"]:
            return self._respond(
                401,
                b'{"errors":[{"code":"UNAUTHORIZED","message":"who are you?"}]}',
                {"WWW-Authenticate": 'Basic realm="tests"'},
            )
        if self.path.rstrip("/") == "/v2":
            return self._respond(200, b"{}")
        match = re.match(r"/v2/(.+)/(manifests|blobs)/([^/]+)$", self.path)
        path = self.folder / "none"
        if match and match[2] == "manifests":
            path = _manifest_path(self.folder, match[1], match[3])
        elif match:
            path = self.folder / "blobs" / match[3]
        if not path.exists():
            return self._respond(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}')
        while self.behaviour().get("stall"):
            time.sleep(0.05)
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        content = path.read_bytes()
        kind = _MANIFEST if match[2] == "manifests" else "application/octet-stream"
        headers = {"Content-Type": kind, "Docker-Content-Digest": sha256_digest(content)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._respond(206 if start else 200, content[start:], headers, slow=match[2] == "blobs")
        return None

    def do_HEAD(self):
        self.do_GET()

    def _respond(self, status, content, headers=None, *, slow=False):
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        how = self.behaviour() if slow else {}
        for start in range(0, len(content), _BLOCK):
            self.wfile.write(content[start : start + _BLOCK])
            if how.get("break_after") and start >= how["break_after"]:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if how.get("bytes_per_second"):
                time.sleep(_BLOCK / how["bytes_per_second"])
                how = self.behaviour()

    def do_POST(self):
        self._log_request()
        if self.behaviour().get("require") and self.headers.get("Authorization") != self.behaviour()["require"]:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._respond(401, b"{}", {"WWW-Authenticate": 'Basic realm="tests"'})
            return
        repository = re.match(r"/v2/(.+)/blobs/uploads/", self.path)[1]
        upload = f"{time.monotonic_ns()}"
        (self.folder / f"upload-{upload}").touch()
        self._respond(202, b"", {"Location": f"/v2/{repository}/blobs/uploads/{upload}", "Docker-Upload-UUID": upload})

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def do_PATCH(self):
        self._log_request()
        path, _, upload = self.path.rpartition("/")
        file = self.folder / f"upload-{upload}"
        with file.open("ab") as target:
            target.write(self.body())
        self._respond(202, b"", {"Location": f"{path}/{upload}", "Range": f"0-{file.stat().st_size - 1}"})

    def do_PUT(self):
        self._log_request()
        content = self.body()
        upload = re.match(r"/v2/(.+)/blobs/uploads/([0-9]+)\?digest=(.+)$", self.path.replace("%3A", ":"))
        if upload:
            file = self.folder / f"upload-{upload[2]}"
            whole = file.read_bytes() + content
            (self.folder / "blobs" / sha256_digest(whole)).write_bytes(whole)
            file.unlink()
        else:
            match = re.match(r"/v2/(.+)/manifests/([^/]+)$", self.path)
            for reference in (match[2], sha256_digest(content)):
                _manifest_path(self.folder, match[1], reference).write_bytes(content)
        self._respond(201, b"", {"Docker-Content-Digest": sha256_digest(content)})

    def log_message(self, *_):
        """Keep quiet."""


def _serve(folder):
    _Handler.folder = folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    print(server.server_address[1], flush=True)  # noqa: T201 - what the test waits for
    server.serve_forever()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
