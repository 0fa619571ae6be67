"""Workspaces from git: a real server with a password, and real git."""

import base64
import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from worker import git
from worker.backends.base import BackendError

PASSWORD = "s3cret-in-the-mine"


def run(*arguments, cwd):
    names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    done = subprocess.run(
        ["git", *arguments], cwd=cwd, env=os.environ | names, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository with two branches."""
    folder = tmp_path / "served" / "repo.git"
    folder.mkdir(parents=True)
    run("init", "--quiet", "--initial-branch=main", cwd=folder)
    for branch in ("main", "other"):
        run("checkout", "--quiet", "-B", branch, cwd=folder)
        (folder / "name").write_text(branch)
        run("add", "name", cwd=folder)
        run("commit", "--quiet", "-m", branch, cwd=folder)
    run("checkout", "--quiet", "main", cwd=folder)
    return folder


@pytest.fixture
def server(repository):
    """host:port of a server that serves the repository to who knows the password."""

    class Serve(BaseHTTPRequestHandler):
        def do_GET(self):
            expected = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
            if self.headers.get("Authorization") != f"Basic {expected}":
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            env = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(repository.parent),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path.replace("repo.git", "repo.git/.git"),
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type") or "",
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
            }
            done = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True, check=True)
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            self.send_response(200)
            for line in head.decode().splitlines():
                name, _, value = line.partition(": ")
                if name != "Status":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - the base class asks for it by this name

        def log_message(self, *_):
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Serve)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield f"127.0.0.1:{served.server_port}"
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.mark.parametrize(("ref", "expected"), [("", "main"), ("#other", "other")])
def test_a_branch_is_fetched_with_the_password_of_the_address(server, repository, tmp_path, ref, expected):
    folder = tmp_path / "workspace"
    folder.mkdir()
    commit = git.fetch(f"http://me:{PASSWORD}@{server}/repo.git{ref}", folder, lambda: None)
    assert (folder / "name").read_text() == expected
    assert commit == run("rev-parse", expected, cwd=repository)
    stored = [path.read_bytes() for path in (folder / ".git").rglob("*") if path.is_file()]
    assert not any(PASSWORD.encode() in content for content in stored)


def test_the_password_is_in_no_command_line(server, tmp_path, monkeypatch):
    real = shutil.which("git")
    (tmp_path / "bin").mkdir()
    spy = tmp_path / "bin" / "git"
    spy.write_text(f'#!/bin/sh\necho "$@" >>"{tmp_path}/lines"\nexec {real} "$@"\n')
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    folder = tmp_path / "workspace"
    folder.mkdir()
    git.fetch(f"http://me:{PASSWORD}@{server}/repo.git", folder, lambda: None)
    lines = (tmp_path / "lines").read_text()
    assert server in lines
    assert PASSWORD not in lines


def test_a_stop_ends_a_fetch_that_hangs(tmp_path):
    """A server that takes the connection and says nothing."""
    silent = threading.Event()

    class Hang(BaseHTTPRequestHandler):
        def do_GET(self):
            silent.wait(60)

        def log_message(self, *_):
            pass

    hanging = ThreadingHTTPServer(("127.0.0.1", 0), Hang)
    hanging.daemon_threads = True
    thread = threading.Thread(target=hanging.serve_forever)
    thread.start()
    looks = []

    def check():
        looks.append(1)
        if len(looks) > 5:
            raise BackendError("stopped_by_user", "before it was started")

    folder = tmp_path / "workspace"
    folder.mkdir()
    with pytest.raises(BackendError, match="stopped_by_user"):
        git.fetch(f"http://127.0.0.1:{hanging.server_port}/repo.git", folder, check)
    silent.set()
    hanging.shutdown()
    thread.join()
    hanging.server_close()
