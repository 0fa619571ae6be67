"""The objects by which a worker and a VM exchange messages, where the job can write too."""

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from worker.backends.tpu.storage.mailbox import Mailbox

UNPACKED_BYTES = 64 << 20
PACKED = gzip.compress(b"\0" * UNPACKED_BYTES)


class Media(BaseHTTPRequestHandler):
    """Serves two objects as Cloud Storage does: one that is marked as compressed, and an empty one."""

    failures = iter(())

    def do_GET(self):
        if self.headers["range"] is None:  # an empty listing, or the bucket itself, which the client reads meanwhile
            self.send_response(next(self.failures, 200) if "/o?" in self.path else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
            return
        content = PACKED if "packed" in self.path else b""
        assert self.headers["accept-encoding"] == "gzip"
        end = int(self.headers["range"].partition("-")[2]) + 1
        part = content[:end]
        self.send_response(206 if content else 416)
        headers = {"Content-Encoding": "gzip", "Content-Range": f"bytes 0-{len(part) - 1}/{len(content)}"}
        for name, value in (headers if content else {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_):
        pass


@pytest.fixture
def mailbox():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Media)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    options = {"api_endpoint": f"http://127.0.0.1:{server.server_address[1]}"}
    client = storage.Client(project="p", credentials=AnonymousCredentials(), client_options=options)
    yield Mailbox(client.bucket("b"), "jobs/j1/vm/1/", 1)
    server.shutdown()
    server.server_close()


def test_an_empty_object_is_no_failure_of_the_bucket(mailbox):
    """The worker would take such a VM for one that cannot report, and wait for ever."""
    assert mailbox.get("empty") == b""


def test_pauses_after_an_outage_stay_short(mailbox, monkeypatch):
    """A VM whose job has ended is billed until its end is read."""
    pauses, failures, thread = [], iter([503] * 12), threading.current_thread()
    monkeypatch.setattr(Media, "failures", failures)

    def sleep(seconds):
        if threading.current_thread() is thread:
            pauses.append(seconds)
        else:  # the client reads the bucket itself, perhaps still that of the test before, whose server is gone
            time.sleep(seconds)

    monkeypatch.setattr(
        "google.api_core.retry.retry_unary.time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    )
    monkeypatch.setattr("google.api_core.retry.retry_base.random.uniform", lambda _, most: most)
    mailbox.clear()
    assert len(pauses) == 12
    assert max(pauses) <= 4
