"""The scratch directory: what is fetched into it, and what a later attempt finds."""

import errno
import os
import resource
import stat
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from core.jobs.spec.job_spec import JobSpec
from core.settings import Settings
from core.storage.artifacts.store import DirectoryStore
from core.storage.workspaces import WorkspaceStore
from core.storage.workspaces.limits import WorkspaceLimits
from worker.attempt.git_fetch import GitFetcher
from worker.attempt.scratch import Scratch
from worker.backends.base import LaunchError


@pytest.fixture
def forbidding():
    """Address of a git server that believes no user."""

    class Forbid(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Forbid)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("user", ["hunter2", "me:hunter2"])
def test_no_secret_of_an_address_is_told_when_it_cannot_be_fetched(tmp_path, forbidding, user):
    scratch = Scratch(tmp_path / "attempts", "j1", 1)
    scratch.root.mkdir(parents=True)
    spec = JobSpec(machine_type="CPU", command="true", workspace=f"http://{user}@{forbidding}/repo.git")
    fetcher = GitFetcher(Settings(egress={"allowed": ["127.0.0.1"]}))

    def fetch(folder):
        return fetcher.fetch(spec.workspace, None, folder, lambda: None, "pr1").commit

    with pytest.raises(LaunchError) as caught:
        scratch.unpack_workspace(
            spec, WorkspaceStore(tmp_path / "workspaces"), WorkspaceLimits(), fetch, lambda _folder: None
        )
    assert caught.value.reason == "workspace_fetch"
    assert forbidding in caught.value.detail
    assert "hunter2" not in caught.value.detail


def test_a_later_attempt_finds_what_is_there_though_the_listing_says_more(tmp_path):
    store = DirectoryStore(tmp_path / "store")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("kept", "gone"):
        (source / name).write_text(name)
    store.sync("j1", 1, source)
    next((tmp_path / "store").rglob("files/gone")).unlink()  # a sync was killed before it wrote the new listing
    scratch = Scratch(tmp_path / "attempts", "j1", 2)
    scratch.make(store)
    assert {path.name: path.read_text() for path in scratch.artifacts.iterdir()} == {"kept": "kept"}


def test_a_later_attempt_looks_past_one_that_never_began(tmp_path):
    store = DirectoryStore(tmp_path / "store")
    source = tmp_path / "source"
    source.mkdir()
    (source / "checkpoint").write_text("step 10")
    store.close("j1", 1, source)
    scratch = Scratch(tmp_path / "attempts", "j1", 3)
    scratch.make(store)
    assert (scratch.artifacts / "checkpoint").read_text() == "step 10"


OTHER_USER = 61_234
DEEP = 1500
"""Levels: more than Python calls itself, and more than a path may be long."""


def dig(folder):
    """Folders in folders; what is made last lies deepest."""
    opened = os.open(folder, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("deep", dir_fd=opened)
        inner = os.open("deep", os.O_RDONLY, dir_fd=opened)
        os.close(opened)
        opened = inner
    os.close(opened)


@pytest.mark.parametrize("few_descriptors", [False, True])
def test_folders_of_any_depth_are_removed(tmp_path, few_descriptors):
    scratch = Scratch(tmp_path, "jabc", 1)
    scratch.workspace.mkdir(parents=True)
    dig(scratch.workspace)
    kept = tmp_path / "kept"
    (kept / "inner").mkdir(parents=True)
    (scratch.workspace / "link").symlink_to(kept)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(os.listdir("/proc/self/fd")) + 100 if few_descriptors else soft  # noqa: PTH208 - names alone
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        scratch.remove()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not scratch.root.exists()
    assert (kept / "inner").is_dir()


def test_a_folder_replaced_by_a_link_during_the_removal_is_not_followed(tmp_path, monkeypatch):
    """Another job may still have a folder of this one open, with the same user."""
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner").chmod(0o755)
    (outside / "inner" / "file").write_text("not the job's")
    scratch = Scratch(tmp_path / "attempts", "jabc", 1)
    folder = scratch.workspace / "folder"
    (folder / "inner").mkdir(parents=True)
    real = os.rmdir

    def replace_first(name, **options):
        if os.path.basename(name) == "inner" and not folder.is_symlink():  # noqa: PTH119 - a string
            folder.rename(scratch.workspace / "moved")
            folder.symlink_to(outside)
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        real(name, **options)

    monkeypatch.setattr(os, "rmdir", replace_first)
    scratch.remove()
    assert (outside / "inner" / "file").read_text() == "not the job's"
    assert stat.S_IMODE((outside / "inner").stat().st_mode) == 0o755
    assert not scratch.root.exists()


def test_folders_without_permissions_are_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # other users may not enter the folders above
    scratch = Scratch(Path("attempts"), "jabc", 1)
    for number in range(100):
        folder = scratch.workspace.joinpath(*["deeper"] * number)
        folder.mkdir(parents=True)
        (folder / "file").touch()
    if os.geteuid() == 0:
        for path in (tmp_path, *tmp_path.rglob("*")):
            os.chown(path, OTHER_USER, OTHER_USER)
    for folder in sorted(scratch.workspace.rglob("deeper"), reverse=True):
        folder.chmod(0)
    own = os.geteuid()
    if own == 0:
        os.seteuid(OTHER_USER)
    try:
        scratch.remove()
    finally:
        os.seteuid(own)
    assert not scratch.root.exists()
