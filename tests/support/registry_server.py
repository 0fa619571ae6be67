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


def digest_of(content):
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
        self.behave()
        program = [sys.executable, str(Path(__file__)), str(folder)]
        self._process = subprocess.Popen([*network, *program], stdout=subprocess.PIPE, text=True)
        self.host = f"127.0.0.1:{self._process.stdout.readline().strip()}"

    def behave(self, **how):
        """bytes_per_second, break_after (bytes of a layer), stall (say nothing), require (an Authorization)."""
        new = self.folder / "how.new"
        new.write_text(json.dumps(how))
        new.replace(self.folder / "how.json")

    def put(self, name, layers, **config):
        """Add an image from its layers (tar files); return its reference and its digest."""
        packed = [gzip.compress(layer, mtime=0) for layer in layers]
        described = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin"]} | config,
            "rootfs": {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]},
        }
        content = json.dumps(described).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "size": len(content), "digest": digest_of(content)},
            "layers": [{"mediaType": _LAYER, "size": len(one), "digest": digest_of(one)} for one in packed],
        }
        for blob in (content, *packed):
            (self.folder / "blobs" / digest_of(blob)).write_bytes(blob)
        body = json.dumps(manifest).encode()
        repository, _, tag = name.partition(":")
        for reference in (tag, digest_of(body)):
            _manifest_path(self.folder, repository, reference).write_bytes(body)
        return f"{self.host}/{name}", f"{self.host}/{repository}@{digest_of(body)}"

    def has(self, name):
        repository, _, tag = name.partition(":")
        return _manifest_path(self.folder, repository, tag).exists()

    def asked(self):
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

    def how(self):
        return json.loads((self.folder / "how.json").read_text())

    def note(self):
        with self.lock, (self.folder / "asked").open("a") as log:
            log.write(f"{self.command} {self.path} {self.headers.get('Authorization', '')}\n")

    def do_GET(self):
        self.note()
        how = self.how()
        if how.get("require") and self.headers.get("Authorization") != how["require"]:
            return self.answer(
                401,
                b'{"errors":[{"code":"UNAUTHORIZED","message":"who are you?"}]}',
                {"WWW-Authenticate": 'Basic realm="tests"'},
            )
        if self.path.rstrip("/") == "/v2":
            return self.answer(200, b"{}")
        match = re.match(r"/v2/(.+)/(manifests|blobs)/([^/]+)$", self.path)
        path = self.folder / "none"
        if match and match[2] == "manifests":
            path = _manifest_path(self.folder, match[1], match[3])
        elif match:
            path = self.folder / "blobs" / match[3]
        if not path.exists():
            return self.answer(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}')
        while self.how().get("stall"):
            time.sleep(0.05)
        content = path.read_bytes()
        kind = _MANIFEST if match[2] == "manifests" else "application/octet-stream"
        self.answer(
            200, content, {"Content-Type": kind, "Docker-Content-Digest": digest_of(content)}, slow=match[2] == "blobs"
        )
        return None

    def do_HEAD(self):
        self.do_GET()

    def answer(self, status, content, headers=None, *, slow=False):
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        how = self.how() if slow else {}
        for start in range(0, len(content), _BLOCK):
            self.wfile.write(content[start : start + _BLOCK])
            if how.get("break_after") and start >= how["break_after"]:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if how.get("bytes_per_second"):
                time.sleep(_BLOCK / how["bytes_per_second"])
                how = self.how()

    def do_POST(self):
        self.note()
        if self.how().get("require") and self.headers.get("Authorization") != self.how()["require"]:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.answer(401, b"{}", {"WWW-Authenticate": 'Basic realm="tests"'})
            return
        repository = re.match(r"/v2/(.+)/blobs/uploads/", self.path)[1]
        upload = f"{time.monotonic_ns()}"
        (self.folder / f"upload-{upload}").touch()
        self.answer(202, b"", {"Location": f"/v2/{repository}/blobs/uploads/{upload}", "Docker-Upload-UUID": upload})

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
        self.note()
        path, _, upload = self.path.rpartition("/")
        file = self.folder / f"upload-{upload}"
        with file.open("ab") as target:
            target.write(self.body())
        self.answer(202, b"", {"Location": f"{path}/{upload}", "Range": f"0-{file.stat().st_size - 1}"})

    def do_PUT(self):
        self.note()
        content = self.body()
        upload = re.match(r"/v2/(.+)/blobs/uploads/([0-9]+)\?digest=(.+)$", self.path.replace("%3A", ":"))
        if upload:
            file = self.folder / f"upload-{upload[2]}"
            whole = file.read_bytes() + content
            (self.folder / "blobs" / digest_of(whole)).write_bytes(whole)
            file.unlink()
        else:
            match = re.match(r"/v2/(.+)/manifests/([^/]+)$", self.path)
            for reference in (match[2], digest_of(content)):
                _manifest_path(self.folder, match[1], reference).write_bytes(content)
        self.answer(201, b"", {"Docker-Content-Digest": digest_of(content)})

    def log_message(self, *_):
        """Keep quiet."""


def _serve(folder):
    _Handler.folder = folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    print(server.server_address[1], flush=True)  # noqa: T201 - what the test waits for
    server.serve_forever()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
