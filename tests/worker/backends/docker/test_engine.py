"""Connections to an engine: closed when they fail, few, and lost for no answer that is merely odd."""

import gc
import http.server
import socketserver
import threading

import psutil
import pytest

from core.settings.docker import DockerSettings
from worker.backends.docker.engine.client import Engine, EngineRefused, EngineUnavailable


class FlakyEngine(socketserver.ThreadingUnixStreamServer):
    """Tells its version; hangs up on whoever asks for anything else but statistics, which are empty."""

    daemon_threads = True

    class RequestHandlerClass(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        address_string = log_message = lambda *_: ""

        def do_GET(self):
            if "stats" not in self.path and "version" not in self.path:
                self.close_connection = True
                return
            body = b'{"ApiVersion": "1.41"}' if self.path.endswith("/version") else b""
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def __init__(self, path):
        super().__init__(str(path), self.RequestHandlerClass)
        self.connections = 0

    def process_request(self, request, client_address):
        self.connections += 1
        super().process_request(request, client_address)


@pytest.fixture
def flaky(tmp_path):
    with FlakyEngine(tmp_path / "docker.sock") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def engine(flaky):
    return Engine(DockerSettings(url=f"unix://{flaky.server_address}"))


def descriptors():
    return psutil.Process().num_fds()


def ask(engine, path):
    return engine.call(lambda api: api._result(api._get(api._url(path)), json=True))


def test_an_engine_that_hangs_up_25_times_leaves_no_connection_open(engine):
    def hiccup():
        with pytest.raises(EngineUnavailable):
            ask(engine, "/info")

    hiccup()
    gc.collect()
    gc.disable()
    try:
        before = descriptors()
        for _ in range(25):
            hiccup()
        # The server's ends close a moment later, in threads of its own.
        assert descriptors() - before <= 2
    finally:
        gc.enable()


def test_an_engine_that_answers_statistics_with_nothing_is_not_away(engine, flaky):
    for number in range(30):
        with pytest.raises(EngineRefused, match="not JSON"):
            ask(engine, f"/containers/job-{number}/stats")
    assert flaky.connections <= 2, "one for the version, one for all that follows"
