"""Workspaces from git: a real server with a password, and real git."""

import base64
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.servers.git_server import GitServer, commit_files, run_git

from core.settings import Settings
from worker.attempt.git_fetch import GitFetcher
from worker.backends.base import LaunchError

pytestmark = pytest.mark.integration

PASSWORD = "s3cret-in-the-mine"
ENCODED = base64.b64encode(f"me:{PASSWORD}".encode())


@pytest.fixture
def repository(tmp_path):
    """A repository with two branches."""
    folder = tmp_path / "served" / "repo.git"
    for branch in ("main", "other"):
        commit_files(folder, {"name": branch}, branch)
    run_git("checkout", "--quiet", "main", cwd=folder)
    return folder


@pytest.fixture
def server(repository):
    """host:port of a server that serves the repository to who knows the password."""
    served = GitServer(repository.parent, f"me:{PASSWORD}")
    yield served
    served.close()


@pytest.fixture(params=["auto", pytest.param("off", marks=pytest.mark.slow)])
def fetcher(request):
    """With a sandbox, and without."""
    return GitFetcher(Settings(process={"sandbox": request.param}, egress={"allowed": ["127.0.0.1"]}))


@pytest.mark.parametrize(("ref", "expected"), [("", "main"), ("#other", "other")])
def test_a_branch_is_fetched_with_the_password_of_the_address(server, repository, fetcher, tmp_path, ref, expected):
    folder = tmp_path / "workspace"
    folder.mkdir()
    fetched = fetcher.fetch(f"http://{server.address}/repo.git{ref}", f"me:{PASSWORD}", folder, lambda: None, "pr1")
    assert (folder / "name").read_text() == expected
    assert fetched == (run_git("rev-parse", expected, cwd=repository), [])
    stored = [path.read_bytes() for path in (folder / ".git").rglob("*") if path.is_file()]
    assert not any(PASSWORD.encode() in content for content in stored)


def test_the_password_is_in_no_command_line(server, fetcher, tmp_path):
    """Everybody on the machine can list those, and the server looks at them while it is asked."""
    lines = []
    server.on_request = lambda: lines.extend(
        path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()
    )
    folder = tmp_path / "workspace"
    folder.mkdir(mode=0o700)
    fetcher.fetch(f"http://{server.address}/repo.git", f"me:{PASSWORD}", folder, lambda: None, "pr1")
    assert any(server.address.encode() in line for line in lines)
    assert not any(PASSWORD.encode() in line or ENCODED in line for line in lines)


@pytest.mark.parametrize("fetcher", [pytest.param("auto", id="linked")], indirect=True)
@pytest.mark.parametrize("attributes", [{}, {".gitattributes": "*.bin filter=lfs\n"}])
def test_submodules_are_fetched_and_pointers_of_lfs_are_named(server, repository, fetcher, tmp_path, attributes):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n"
    commit = commit_files(repository.parent / "lib.git", {"lib.py": "LIB = 1\n", "c.bin": pointer})
    modules = f'[submodule "lib"]\n\tpath = third/lib\n\turl = http://{server.address}/lib.git\n'
    commit_files(
        repository, {".gitmodules": modules, **attributes, "a.bin": pointer, "b.txt": "b", "long.md": pointer * 50}
    )
    run_git("update-index", "--add", "--cacheinfo", f"160000,{commit},third/lib", cwd=repository)
    run_git("commit", "--quiet", "-m", "submodule", cwd=repository)
    folder = tmp_path / "workspace"
    folder.mkdir()
    fetched = fetcher.fetch(f"http://{server.address}/repo.git", f"me:{PASSWORD}", folder, lambda: None, "pr1")
    assert (folder / "third" / "lib" / "lib.py").read_text() == "LIB = 1\n"
    (note,) = fetched.notes
    assert "Git LFS" in note
    assert "a.bin" in note
    assert "third/lib/c.bin" in note
    assert not {"b.txt", "long.md"} & {word.strip(",.") for word in note.split()}


def test_a_stop_ends_a_fetch_that_hangs(fetcher, tmp_path):
    """A server that takes the connection and says nothing."""
    silent = threading.Event()

    class Hang(BaseHTTPRequestHandler):
        def do_GET(self):
            silent.wait(60)

        def log_message(self, *_):
            pass

    hanging = ThreadingHTTPServer(("127.0.0.1", 0), Hang)
    hanging.daemon_threads = True
    thread = threading.Thread(target=hanging.serve_forever, args=(0.02,))
    thread.start()
    looks = []

    def check():
        looks.append(1)
        if len(looks) > 5:
            raise LaunchError("stopped_by_user", "before it was started")

    folder = tmp_path / "workspace"
    folder.mkdir()
    with pytest.raises(LaunchError, match="stopped_by_user"):
        fetcher.fetch(f"http://127.0.0.1:{hanging.server_port}/repo.git", None, folder, check, "pr1")
    silent.set()
    hanging.shutdown()
    thread.join()
    hanging.server_close()
