"""Output of commands in containers, from an engine that sends its response and the first output in one piece."""

import http.server
import socketserver
import struct
import threading

import pytest

from core.settings.docker import DockerSettings
from worker.backends.docker.container.container_exec import run_in_container
from worker.backends.docker.engine.client import Engine
from worker.runner.streams import ExecRequest, Terminal


class PromptEngine(socketserver.ThreadingUnixStreamServer):
    """Its commands have printed before the response is sent; afterwards they print what they read."""

    daemon_threads = True

    class RequestHandlerClass(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        address_string = log_message = lambda *_: ""

        def do_GET(self):
            self._respond(b'{"ApiVersion": "1.41"}')

        def do_POST(self):
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            if not self.path.endswith("/start"):
                self._respond(b'{"Id": "e1"}')
                return
            framed = b'"Tty": false' in asked
            head = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
            self.wfile.write(head + _output(b"first\n", framed=framed))
            while data := self.rfile.read1(100):
                self.wfile.write(_output(data, framed=framed))
            self.close_connection = True

        def _respond(self, body):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


def _output(data, *, framed):
    return (struct.pack("!BxxxI", 1, len(data)) if framed else b"") + data


@pytest.fixture
def engine(tmp_path):
    with PromptEngine(str(tmp_path / "docker.sock"), PromptEngine.RequestHandlerClass) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Engine(DockerSettings(url=f"unix://{server.server_address}"))
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("terminal", [None, Terminal(rows=24, columns=80, kind="xterm")], ids=["pipes", "terminal"])
def test_output_that_arrives_with_the_head_of_the_response_is_not_lost(engine, tmp_path, terminal):
    handle = {"name": "j1-1", "control": str(tmp_path)}
    stream = run_in_container(engine, handle, ExecRequest("s1", ("sh",), terminal))
    outputs = stream.outputs()
    assert next(outputs) == (1, b"first\n")
    stream.write(b"typed\n")
    assert next(outputs) == (1, b"typed\n")
    stream.close()
    assert list(outputs) == []
