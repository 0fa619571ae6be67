"""A metadata server that gives the job's programs the job's own tokens, in place of the VM's account."""

import json
import os
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from worker.runner.kept_port import KeptPort

from . import CALL_SECONDS
from .bucket import Bucket

_METADATA = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")


def serve_metadata(file: Path, bucket: Bucket) -> str:
    """Serve the job's tokens in a thread; return the address, whose port the file keeps: the job knows it."""
    kept = KeptPort(file, lambda port: socket.create_server(("127.0.0.1", port)))
    threading.Thread(target=_serve, args=(kept, bucket), name="metadata", daemon=True).start()
    return f"127.0.0.1:{kept.number}"


def _serve(kept: KeptPort, bucket: Bucket) -> None:
    with Metadata(kept.wait(), bucket) as server:
        server.serve_forever()


class LocalServer(ThreadingHTTPServer):
    """Accepts without waiting: a connection that was announced and is gone would hold up all others, and the end."""

    daemon_threads = True

    def get_request(self) -> tuple[socket.socket, Any]:
        self.socket.settimeout(0.0)
        return super().get_request()


class Metadata(LocalServer):
    """Serves the job's token as its account; everything else is forwarded to the VM's own metadata server."""

    def __init__(self, listener: socket.socket, bucket: Bucket) -> None:
        super().__init__(listener.getsockname(), MetadataRequest, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.bucket = bucket


class MetadataRequest(BaseHTTPRequestHandler):
    """A request for a token, or for what else a metadata server tells."""

    server: Any

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        account = url.path.partition("/instance/service-accounts/")[2]
        if account:
            self.answer(*self.of_account(account, url.query))
            return
        headers = {"Metadata-Flavor": self.headers.get("Metadata-Flavor", "")}
        request = urllib.request.Request(f"http://{_METADATA}{self.path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:  # noqa: S310 - the same
                self.answer(200, answer.headers.get("Content-Type", "text/plain"), answer.read())
        except urllib.error.HTTPError as error:
            self.answer(error.code, "text/plain", error.read())
        except OSError as error:
            self.answer(502, "text/plain", str(error).encode())

    def token(self) -> tuple[str, float]:
        """Return the token, and the Unix time at which it expires."""
        token: tuple[str, float] = self.server.bucket.token()
        return token

    def of_account(self, path: str, query: str) -> tuple[int, str, bytes]:
        """Return status, content type and content of what is asked about an account."""
        if self.headers.get("Metadata-Flavor") != "Google":
            return 403, "text/plain", b"Missing Metadata-Flavor:Google header.\n"
        name = path.partition("/")[2].rstrip("/")
        if name == "token":
            token, expires_at = self.token()
            made = {"access_token": token, "expires_in": int(expires_at - time.time()), "token_type": "Bearer"}
            return 200, "application/json", json.dumps(made).encode()
        facts = {"email": "job", "scopes": ["https://www.googleapis.com/auth/cloud-platform"], "aliases": ["default"]}
        if not name and "recursive" in query:
            return 200, "application/json", json.dumps(facts).encode()
        texts = {"email": "job\n", "scopes": f"{facts['scopes'][0]}\n"}
        return (200, "text/plain", texts[name].encode()) if name in texts else (404, "text/plain", b"")

    def answer(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in (("Metadata-Flavor", "Google"), ("Content-Type", kind), ("Content-Length", len(content))):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server names it
        """Log nothing."""
