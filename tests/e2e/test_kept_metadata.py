"""Times and permissions of files, and empty folders, on all their ways: to jobs, between them and back."""

import os
import subprocess

import pytest
from support.client_shell import ClientShell

NEWEST_FIRST = "ls -t ckpt; ls -td ckpt/*/; stat -c '%a %Y %n' run.sh ckpt/old empty"


@pytest.fixture
def shell(service, tmp_path):
    """A folder in which the order of names, of creation and of times differ."""
    folder = tmp_path / "mine"
    for number, name in enumerate(("b", "c", "a")):
        (folder / "ckpt" / f"{name}-step").mkdir(parents=True)
        (folder / "ckpt" / name).write_text(name)
        os.utime(folder / "ckpt" / name, (1_700_000_000 + number,) * 2)
        os.utime(folder / "ckpt" / f"{name}-step", (1_600_000_000 + number,) * 2)
    (folder / "empty").mkdir(mode=0o750)
    (folder / "ckpt" / "old").write_text("")
    (folder / "ckpt" / "old").chmod(0o600)
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    for name, at in (("ckpt/old", 400_000_000), ("run.sh", 1_650_000_000), ("empty", 1_660_000_000)):
        os.utime(folder / name, (at, at))
    return ClientShell(service, folder, tmp_path)


def seen_here(folder):
    shown = subprocess.run(("bash", "-c", NEWEST_FIRST), cwd=folder, capture_output=True, text=True, check=True)
    return shown.stdout


def test_a_folder_is_in_the_job_as_it_is_here(shell):
    ran = shell("jobs", "create", "-m", "CPU", "--", "bash", "-c", NEWEST_FIRST)
    assert seen_here(shell.folder) in ran.stdout
    assert "unchanged, not uploaded" in shell("jobs", "create", "-m", "CPU", "--", "true").stderr


def test_other_times_are_no_other_program_and_send_no_contents(service, shell):
    first = shell("jobs", "create", "-m", "CPU", "--detach", "--", "bash", "-c", NEWEST_FIRST).stdout.strip()
    os.utime(shell.folder / "ckpt" / "b")
    again = shell("jobs", "create", "-m", "CPU", "--", "bash", "-c", NEWEST_FIRST)
    assert "workspace uploaded (0 of 5 files, 0 B)" in again.stderr
    assert seen_here(shell.folder) in again.stdout
    second = service.request("GET", "/jobs?limit=1").json()["jobs"][0]
    before = service.job(first)
    assert second["workspaceSha256"] != before["workspaceSha256"]
    assert second["workspaceContents"] == before["workspaceContents"]
    service.wait_ended(first)
    made = service.request("POST", "/comparisons/from-jobs", json={"jobs": [first, second["id"]]})
    assert (made.status_code, made.json()["differences"]) == (201, []), made.text
