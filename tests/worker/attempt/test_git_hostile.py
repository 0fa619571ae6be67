"""Repositories made to attack the machine that fetches them; real git, real servers."""

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.servers.git_server import GitServer, commit_files, commit_tree, run_git

from core.settings import Settings
from worker.attempt import git_fetch
from worker.attempt.git_fetch import GitFetcher
from worker.backends.base import LaunchError

pytestmark = pytest.mark.integration

OPEN = {"allowed": ["127.0.0.1"]}


@pytest.fixture
def released():
    """Set at the end of a test: whatever waits for it goes on."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def served(tmp_path):
    """Serves repositories with these files; their address."""
    servers = []

    def serve(files, **where):
        commit_files(tmp_path / "served" / "repo.git", files)
        servers.append(GitServer(tmp_path / "served", **where))
        return f"http://{servers[-1].address}/repo.git"

    yield serve
    for server in servers:
        server.close()


@pytest.fixture
def served_tree(tmp_path):
    """Serves a repository as `commit_tree` makes it; its address."""
    servers = []

    def serve(depth, names):
        commit_tree(tmp_path / "served" / "repo.git", depth, names)
        servers.append(GitServer(tmp_path / "served"))
        return f"http://{servers[-1].address}/repo.git"

    yield serve
    for server in servers:
        server.close()


@pytest.fixture(params=["auto", pytest.param("off", marks=pytest.mark.slow)])
def fetch(request, tmp_path):
    """Fetches into a workspace as an attempt does, with a sandbox and without."""

    def run(url, login=None):
        folder = tmp_path / "workspace"
        folder.mkdir()
        fetcher = GitFetcher(Settings(process={"sandbox": request.param}, egress=OPEN))
        fetcher.fetch(url, login, folder, lambda: None, "pr1")
        return folder

    return run


@pytest.mark.parametrize("name", [".gitconfig", ".config/git/config"])
def test_a_gitconfig_in_the_repository_writes_no_file_outside(served, fetch, tmp_path, name):
    """trace2 appends to any file that configuration names, lines of the configuration's choice among others."""
    victim = tmp_path / "site-packages" / "run-me.pth"
    victim.parent.mkdir()
    config = f"""[trace2]
        normalTarget = {victim}
        eventTarget = {victim}
        normalBrief = true
        configParams = evil.*
    [evil]
        payload = "\\nimport os; os.system('id >{tmp_path}/executed')\\n"
    """
    folder = fetch(served({name: config, "main.py": "pass\n"}))
    assert (folder / "main.py").read_text() == "pass\n"
    assert (folder / name).read_text() == config
    assert list(victim.parent.iterdir()) == []


def test_a_gitconfig_in_the_repository_speaks_to_no_socket(served, fetch, tmp_path):
    """trace2 can also name a unix socket, as an engine's or a broker's."""
    path = str(tmp_path / "s")
    heard = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def listen():
            try:
                heard.append(listening.accept()[0].recv(100))
            except OSError:
                return

        thread = threading.Thread(target=listen)
        thread.start()
        fetch(served({".gitconfig": f"[trace2]\n\tnormalTarget = af_unix:stream:{path}\n"}))
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert heard == []


def test_hooks_and_filters_of_the_repository_do_not_run(served, fetch, tmp_path):
    mark = tmp_path / "ran"
    folder = fetch(
        served(
            {
                ".gitattributes": "* filter=evil diff=evil merge=evil\n",
                ".gitconfig": f'[filter "evil"]\n\tsmudge = touch {mark}\n[core]\n\thooksPath = hooks\n\tfsmonitor = '
                f"touch {mark}\n",
                "hooks/post-checkout": f"#!/bin/sh\ntouch {mark}\n",
                "main.py": "pass\n",
            }
        )
    )
    assert (folder / "main.py").is_file()
    assert not mark.exists()


@pytest.fixture
def answering():
    """Starts servers that answer every request in a way of their own; (address, requests) of each."""
    servers = []

    def start(answer, *, at="127.0.0.1", port=0):
        requests = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                requests.append(self.path)
                answer(self)

            def log_message(self, *_):
                pass

        servers.append(ThreadingHTTPServer((at, port), Handler))
        servers[-1].daemon_threads = True
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return f"{at}:{servers[-1].server_port}", requests

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def respond(status, body=b"", **headers):
    def answer(handler):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@pytest.mark.usefixtures("linked_networks")
@pytest.mark.parametrize("fetch", [pytest.param("auto", id="linked")], indirect=True)
def test_a_redirect_leads_to_nothing_on_this_host(fetch, answering):
    victim, requests = answering(respond(200))
    address, asked = answering(respond(302, Location=f"http://{victim}/info/refs?service=git-upload-pack"))
    with pytest.raises(LaunchError, match="nothing listens"):
        fetch(f"http://{address}/repo.git")
    assert asked
    assert requests == []


@pytest.mark.usefixtures("linked_networks")
def test_a_submodule_leads_to_nothing_on_this_host(served, answering, tmp_path):
    """A repository may name any address, and is fetched all the same; what is missing is named."""
    victim, requests = answering(respond(200))
    address = served({".gitmodules": f'[submodule "s"]\n\tpath = lib\n\turl = http://{victim}/s.git\n'})
    repository = tmp_path / "served" / "repo.git"
    run_git("update-index", "--add", "--cacheinfo", f"160000,{'a' * 40},lib", cwd=repository)
    run_git("commit", "--quiet", "-m", "submodule", cwd=repository)
    folder = tmp_path / "workspace"
    folder.mkdir()
    settings = Settings(process={"sandbox": "auto"}, egress=OPEN)
    fetched = GitFetcher(settings).fetch(address, None, folder, lambda: None, "pr1")
    assert requests == []
    assert "lib" in fetched.notes[0]


@pytest.mark.parametrize("status", [200, 403, 404, 500])
def test_an_answer_of_a_server_is_not_repeated(fetch, answering, status):
    """Else a job could read what services answer that only this machine reaches."""
    body = b"INTERNAL-TOKEN=abc123\nfatal: INTERNAL-TOKEN\r\nerror: INTERNAL-TOKEN"
    address, requests = answering(respond(status, body, Content_Type="text/plain; charset=utf-8"))
    with pytest.raises(LaunchError) as caught:
        fetch(f"http://{address}/repo.git")
    assert requests, caught.value.detail
    assert "INTERNAL" not in str(caught.value)
    assert address in caught.value.detail


def test_alternates_of_a_plain_server_are_not_followed(fetch, answering):
    """A server that is not git's own can name other servers to get objects from."""
    victim, requests = answering(respond(404))

    def answer(handler):
        if handler.path.endswith("http-alternates"):
            respond(200, f"http://{victim}/objects\n".encode())(handler)
        elif "info/refs" in handler.path:
            respond(200, f"{'a' * 40}\trefs/heads/main\n".encode(), Content_Type="text/plain")(handler)
        elif handler.path.endswith("HEAD"):
            respond(200, b"ref: refs/heads/main\n")(handler)
        else:
            respond(404)(handler)

    address, asked = answering(answer)
    with pytest.raises(LaunchError):
        fetch(f"http://{address}/repo.git")
    assert asked
    assert requests == []


def test_a_server_that_never_answers_is_given_up(answering, tmp_path, released):
    address, _ = answering(lambda _: released.wait(60))
    folder = tmp_path / "workspace"
    folder.mkdir()
    settings = Settings(egress=OPEN)
    with pytest.raises(LaunchError, match="did not respond in time"):
        GitFetcher(settings, silent_seconds=1).fetch(f"http://{address}/repo.git", None, folder, lambda: None, "pr1")


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_a_server_that_sends_a_byte_now_and_then_is_given_up(answering, tmp_path, released, mode):
    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Type", "application/x-git-upload-pack-advertisement")
        handler.end_headers()
        with contextlib.suppress(OSError):
            while not released.wait(0.05):
                handler.wfile.write(b"0")

    address, _ = answering(answer)
    folder = tmp_path / "workspace"
    folder.mkdir()
    settings = Settings(process={"sandbox": mode}, egress=OPEN)
    with pytest.raises(LaunchError, match="took more than 1 seconds"):
        GitFetcher(settings, seconds=1).fetch(f"http://{address}/repo.git", None, folder, lambda: None, "pr1")


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_a_repository_that_fills_the_disk_is_refused(served, tmp_path, mode):
    """A few kilobytes that are sent become megabytes that are checked out."""
    address = served({f"zeros-{number}": "0" * 1_000_000 for number in range(20)})
    folder = tmp_path / "workspace"
    folder.mkdir()
    settings = Settings(process={"sandbox": mode}, egress=OPEN, api={"max_upload_bytes": 5_000_000})
    with pytest.raises(LaunchError, match="GRADIENT_API__MAX_UPLOAD_BYTES"):
        GitFetcher(settings).fetch(address, None, folder, lambda: None, "pr1")


def test_a_repository_of_countless_empty_files_is_refused(served_tree, fetch, monkeypatch):
    """One tree that is named again and again: a kilobyte that is sent becomes as many files as there are inodes."""
    monkeypatch.setattr(git_fetch, "MAX_FILES", 500)
    with pytest.raises(LaunchError, match="more than 500 files and folders"):
        fetch(served_tree(3, [f"entry-{number}" for number in range(10)]))


def test_a_path_that_this_system_does_not_take_is_refused_by_name(served_tree, fetch, tmp_path):
    """Git writes it from within the folder; from outside it cannot be measured. The host's own folders are not told."""
    length = (4096 - len(str(tmp_path / "workspace")) // 2) // 19
    with pytest.raises(LaunchError, match="longer than this system allows") as caught:
        fetch(served_tree(19, ["d" * (length - 1)]))
    assert str(tmp_path) not in str(caught.value)
