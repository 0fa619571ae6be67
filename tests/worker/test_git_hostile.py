"""Repositories made to attack the machine that fetches them; real git, real servers."""

import socket
import threading

import pytest
from gitserver import GitServer, commit

from core.settings import Settings
from worker.git import Fetcher


@pytest.fixture
def served(tmp_path):
    """Serves repositories with these files; their address."""
    servers = []

    def serve(files):
        commit(tmp_path / "served" / "repo.git", files)
        servers.append(GitServer(tmp_path / "served"))
        return f"http://{servers[-1].address}/repo.git"

    yield serve
    for server in servers:
        server.close()


@pytest.fixture(params=["auto", "off"])
def fetch(request, tmp_path):
    """Fetches into a workspace as an attempt does, with a sandbox and without."""

    def run(url, login=None, **egress):
        egress = {"schemes": ["https", "http"], "allowed": ["127.0.0.1"]} | egress
        folder = tmp_path / "workspace"
        folder.mkdir()
        Fetcher(Settings(worker={"sandbox": request.param}, egress=egress)).fetch(url, login, folder, lambda: None)
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
