"""The demo's download of MNIST, from a server that stands in for Keras' own."""

import hashlib
import importlib.util
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "demo_data.py"
CONTENT = bytes(range(256)) * 2000


@pytest.fixture
def demo_data(monkeypatch):
    """The module, which expects CONTENT."""
    spec = importlib.util.spec_from_file_location("demo_data", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.KERAS_URL.startswith("https://storage.googleapis.com/")
    monkeypatch.setattr(module, "KERAS_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 60)
    return module


@pytest.fixture
def origin(monkeypatch):
    """A server that sends `body`, declares `size` bytes, and waits for `stall` half-way."""

    class Origin(BaseHTTPRequestHandler):
        body, size, stall, status = CONTENT, len(CONTENT), None, 200
        requests = 0

        def do_GET(self):
            Origin.requests += 1
            self.send_response(self.status)
            self.send_header("Content-Length", str(self.size))
            self.end_headers()
            if self.stall:
                self.stall.wait(30)
            self.wfile.write(self.body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Origin)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    monkeypatch.setenv("GRADIENT_DEMO_MNIST_URL", f"http://127.0.0.1:{server.server_port}/mnist.npz")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield Origin
    if Origin.stall:
        Origin.stall.set()
    server.shutdown()
    server.server_close()


def refused(demo_data, target):
    with pytest.raises(demo_data.DownloadFailed) as failed:
        demo_data.download(target)
    assert os.listdir(target.parent) == [], "no part is left"  # noqa: PTH208 - names are compared
    return str(failed.value)


def test_it_is_downloaded_once(demo_data, origin, tmp_path):
    target = tmp_path / "mnist.npz"
    for _ in range(2):
        demo_data.download(target)
        assert target.read_bytes() == CONTENT
    assert origin.requests == 1
    target.write_bytes(b"damaged")
    demo_data.download(target)
    assert target.read_bytes() == CONTENT


def test_another_file_is_refused(demo_data, origin, tmp_path):
    origin.body = CONTENT[:-1] + b"x"
    assert "sent another file than Keras expects" in refused(demo_data, tmp_path / "mnist.npz")


def test_a_file_that_breaks_off_is_refused(demo_data, origin, tmp_path):
    origin.body = CONTENT[:1000]
    assert "broke off after 1,000 of 512,000 bytes" in refused(demo_data, tmp_path / "mnist.npz")


def test_a_silent_server_is_given_up(demo_data, origin, tmp_path, monkeypatch):
    monkeypatch.setattr(demo_data, "PATIENCE_SECONDS", 0.5)
    origin.stall = threading.Event()
    assert "timed out" in refused(demo_data, tmp_path / "mnist.npz")


def test_an_error_is_named(demo_data, origin, tmp_path):
    origin.status = 403
    assert "403 Forbidden" in refused(demo_data, tmp_path / "mnist.npz")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/mnist.npz", "no address"])
def test_an_address_that_cannot_be_reached_is_named(demo_data, monkeypatch, tmp_path, url):
    monkeypatch.setenv("GRADIENT_DEMO_MNIST_URL", url)
    monkeypatch.setenv("no_proxy", "*")
    assert f"cannot be downloaded from {url}" in refused(demo_data, tmp_path / "mnist.npz")
