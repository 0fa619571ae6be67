"""Workspaces from git: a real server with a password, and real git."""

import os
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from gitserver import GitServer, commit, run_git

from worker import git
from worker.backends.base import BackendError

PASSWORD = "s3cret-in-the-mine"


@pytest.fixture
def repository(tmp_path):
    """A repository with two branches."""
    folder = tmp_path / "served" / "repo.git"
    for branch in ("main", "other"):
        commit(folder, {"name": branch}, branch)
    run_git("checkout", "--quiet", "main", cwd=folder)
    return folder


@pytest.fixture
def server(repository):
    """host:port of a server that serves the repository to who knows the password."""
    served = GitServer(repository.parent, f"me:{PASSWORD}")
    yield served.address
    served.close()


@pytest.mark.parametrize(("ref", "expected"), [("", "main"), ("#other", "other")])
def test_a_branch_is_fetched_with_the_password_of_the_address(server, repository, tmp_path, ref, expected):
    folder = tmp_path / "workspace"
    folder.mkdir()
    fetched = git.fetch(f"http://me:{PASSWORD}@{server}/repo.git{ref}", folder, lambda: None)
    assert (folder / "name").read_text() == expected
    assert fetched == run_git("rev-parse", expected, cwd=repository)
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
