"""A server that plays scripted answers, and the client: called in the test process, or as a process of its own."""

import email
import email.policy
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, chdir
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock
from urllib.parse import parse_qsl, urlsplit

import pytest

from gradient_cli.main import main
from gradient_cli.workspace.dependencies.declared import RequirementOptions
from gradient_cli.workspace.dependencies.imports import ProgramImports
from gradient_cli.workspace.dependencies.requirements import find_declared

JOB_ID = "jabcdefgh12345"


class FakeReply:
    """A scripted answer of the server: JSON or bytes, or a stream of chunks that may break off."""

    def __init__(self, body=b"", status=200, headers=None, *, stream=None, breaks=False, hold=None, claim=None):
        self.status = status
        self.headers = dict(headers or {})
        self.stream = stream
        self.breaks = breaks
        self.hold = hold
        self.claim = claim
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "text/event-stream" if stream is not None else "application/json"
        self.headers.setdefault("Content-Type", kind)


class ReceivedRequest:
    def __init__(self, method, target, headers, body):
        self.method = method
        self.path = urlsplit(target).path
        self.query = dict(parse_qsl(urlsplit(target).query))
        self.headers = headers
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def parts(self):
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        message = email.message_from_bytes(head + self.body, policy=email.policy.HTTP)
        return {part.get_param("name", header="content-disposition"): part for part in message.iter_parts()}


class FakeServer:
    """Answers each method and path with its replies in turn, the last of them for ever; folders it stores by itself."""

    def __init__(self):
        self.requests = []
        self.workspaces = {}
        """Manifest of each stored folder, by digest."""
        self._replies = {}
        self._http = Server(("127.0.0.1", 0), Handler)
        self._http.fake = self
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def on(self, method, path, *replies):
        self._replies[(method, path)] = [r if isinstance(r, FakeReply) else FakeReply(r) for r in replies]

    def requests_to(self, method, path):
        return [r for r in self.requests if (r.method, r.path) == (method, path)]

    def close(self):
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def answer(self, request):
        self.requests.append(request)
        replies = self._replies.get((request.method, request.path))
        if not replies and request.path.startswith("/workspaces/"):
            return self._answer_workspace(request, request.path.rpartition("/")[2])
        if not replies:
            error = {"name": "NotFound", "status": 404, "message": f"nothing at {request.path}"}
            return FakeReply({"error": error}, 404)
        return replies.pop(0) if len(replies) > 1 else replies[0]

    def _answer_workspace(self, request, name):
        if name == "missing":
            stored = contents_of(self.workspaces.get(request.query.get("base"), {"files": []}))
            return FakeReply({"missing": sorted(contents_of(request.json) - stored)})
        if request.method == "PUT":
            kind = request.headers["Content-Type"]
            form = kind.startswith("multipart/")
            manifest = request.parts["manifest"].get_payload(decode=True) if form else request.body
            self.workspaces[name] = json.loads(manifest)
        elif name not in self.workspaces:
            return FakeReply({"error": {"name": "NotFound", "status": 404, "message": "no such workspace"}}, 404)
        return FakeReply({"sha256": name, "size": 1})


def contents_of(manifest):
    return {digest for *_, digest in manifest["files"]}


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that has ended
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self):
        length = int(self.headers.get("Content-Length") or 0)
        request = ReceivedRequest(self.command, self.path, self.headers, self.rfile.read(length))
        reply = self.server.fake.answer(request)
        if reply.breaks == "unanswered":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.stream is None:
            self._send_body(reply)
        else:
            self._send_chunks(reply)

    def _send_body(self, reply):
        self.send_header("Content-Length", str(reply.claim or len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)
        if reply.claim:
            self.close_connection = True

    def _send_chunks(self, reply):
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in reply.stream:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        if reply.hold:
            reply.hold.wait(60)
        if not reply.breaks:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815  names that http.server looks for

    def log_message(self, *_):
        pass


_STREAMS = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


class CliRunner:
    """Runs the client as a user would, in a home and a folder of its own."""

    def __init__(self, home, folder, url):
        self.in_process = True
        self.home = home
        self.folder = folder
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "COLUMNS": "100",
            "GRADIENT_URL": url,
            "GRADIENT_API_KEY": "key-of-the-test",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "LC_ALL": "C.UTF-8",
        }

    def start(self, *args, **settings):
        env = {name: value for name, value in {**self.env, **settings.pop("env", {})}.items() if value is not None}
        return subprocess.Popen(
            [sys.executable, "-m", "gradient_cli", *map(str, args)],
            **{"cwd": self.folder, "text": True, **_STREAMS, **settings},
            env=env,
        )

    def __call__(self, *args, given=None, env=None, cwd=None):
        """Run a command to its end, in this process unless `in_process` is false or it gets variables, `env`.

        Args:
            given: The content of its standard input.
        """
        cwd = cwd or self.folder
        done = (
            self._run_here(args, given, cwd)
            if env is None and self.in_process
            else self.run_process(*args, given=given, env=env or {}, cwd=cwd)
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def run_process(self, *args, given=None, **settings):
        """Run a command as a process of its own."""
        with self.start(*args, **{"stdin": subprocess.PIPE} if given is not None else {}, **settings) as process:
            out, err = process.communicate(given, timeout=30)
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def _run_here(self, args, given, cwd):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            (folder / "in").write_text(given or "", encoding="utf-8")
            modes = {"stdin": ("in", "r"), "stdout": ("out", "w"), "stderr": ("err", "w")}
            streams = {
                name: stack.enter_context((folder / file).open(mode, encoding="utf-8"))
                for name, (file, mode) in modes.items()
            }
            stack.enter_context(mock.patch.dict(os.environ, self.env, clear=True))
            stack.enter_context(mock.patch.multiple(sys, argv=["gradient-cli", *map(str, args)], **streams))
            stack.enter_context(chdir(cwd))
            try:
                code = main()
            except SystemExit as ended:
                code = ended.code
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            out, err = ((folder / name).read_text(encoding="utf-8") for name in ("out", "err"))
            return subprocess.CompletedProcess(args, code, out, err)


def job(**fields):
    base = {
        "id": JOB_ID,
        "name": "mnist",
        "project": "default",
        "state": "Pending",
        "phase": "queued",
        "machineType": "CPU",
        "command": "python main.py",
        "createdAt": "2024-05-01T10:00:00.000Z",
        "finishedAt": None,
        "exitCode": None,
        "reason": None,
        "message": None,
        "attempt": 1,
        "stopGrace": 60,
        "url": f"http://x/ui/jobs/{JOB_ID}",
    }
    return {**base, **fields}


def ended(code=0, state="Stopped", **fields):
    times = {"finishedAt": "2024-05-01T10:01:00.000Z", "durationSeconds": 12.0, "cost": 0.0123, "pricePerHour": 3.06}
    return job(state=state, phase=None, exitCode=code, message="The command ended.", **{**times, **fields})


def event(name, data, identity=None):
    head = f"id: {identity}\n" if identity else ""
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def line(number, text):
    row = {"line": number, "timestamp": "2024-05-01T10:00:00.000Z", "message": text}
    return event("line", row, number)


@pytest.fixture
def protocol():
    """Builders of the protocol's messages, for scripted answers."""

    class Wire:
        pass

    words = Wire()
    words.Reply, words.job, words.ended, words.event, words.line, words.id = FakeReply, job, ended, event, line, JOB_ID
    words.end = lambda code=0, state="Stopped": event("end", {"state": state, "exitCode": code})
    words.error = lambda status, message, field=None, name="BadRequest": FakeReply(
        {"error": {"name": name, "status": status, "message": message, "field": field}}, status
    )
    return words


@pytest.fixture
def server():
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture
def cli(tmp_path, server):
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()
    return CliRunner(home, folder, server.url)


@pytest.fixture
def find(tmp_path):
    """Find what files declare."""

    def look(files, command="python main.py", start=".", **requested):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return find_declared(ProgramImports(tmp_path, tmp_path / start, command), RequirementOptions(**requested))

    return look
