"""A folder submitted again after changes, with the client and a real service: only what changed is sent."""

import json
import os
import subprocess
import time

import pytest
from support.client_shell import ClientShell

LIST = ("bash", "-c", "find . -type f | sort | xargs sha256sum; stat -c '%a %n' run.sh; readlink link")


@pytest.fixture
def shell(service, tmp_path):
    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    for number in range(40):
        (folder / "data" / f"f{number}").write_bytes(os.urandom(2000))
    (folder / "run.sh").write_text("echo 1\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("data/f1")
    return ClientShell(service, folder, tmp_path)


def submit(shell, *options):
    return shell("jobs", "create", "-m", "CPU", *options, "--", *LIST)


def local(shell):
    show = ("bash", "-c", "find . -type f | sort | xargs sha256sum")
    shown = subprocess.run(show, cwd=shell.folder, capture_output=True, text=True, check=True).stdout
    return f"{shown}755 run.sh\ndata/f1\n"


def test_only_changed_files_are_sent_and_the_job_sees_all_of_them(shell):
    assert "workspace uploaded (" in (first := submit(shell)).stderr
    assert local(shell) in first.stdout
    (shell.folder / "run.sh").write_text("echo 2\n")
    (shell.folder / "data" / "f2").unlink()
    (shell.folder / "data" / "f3").rename(shell.folder / "moved")
    planned = json.loads(submit(shell, "--dry-run", "--json").stdout)["upload"]
    assert (planned["size"], planned["alreadyStored"]) == (7, False)
    again = submit(shell)
    assert "workspace uploaded (1 of 40 files, " in again.stderr
    assert local(shell) in again.stdout
    assert "workspace unchanged, not uploaded" in (same := submit(shell)).stderr
    assert local(shell) in same.stdout
    (shell.folder / "moved").rename(shell.folder / "data" / "f3")
    assert "workspace uploaded (0 of 40 files, 0 B)" in submit(shell).stderr


def test_a_file_of_the_same_size_and_time_is_read_again(shell):
    submit(shell)
    program = shell.folder / "run.sh"
    times = program.stat()
    time.sleep(2.1)  # older changes are trusted by their time
    submit(shell)
    program.write_text("echo 3\n")
    os.utime(program, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "workspace uploaded (1 of " in submit(shell).stderr
