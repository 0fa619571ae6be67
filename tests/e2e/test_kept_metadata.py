"""Times and permissions of files, and empty folders, on all their ways: to jobs, between them and back."""

import io
import os
import struct
import subprocess
import zipfile

import pytest
from support.client_shell import ClientShell

SHOW = "ls -t ckpt; find . -mindepth 1 ! -name '.git*' | sort | xargs stat -c '%n %F %a %Y'"
TO_ARTIFACTS = 'cp -a ckpt empty run.sh "$GRADIENT_ARTIFACTS_DIR"'


@pytest.fixture
def shell(service, tmp_path):
    """A folder in which the order of names, of creation and of times differ."""
    folder = tmp_path / "mine"
    for number, name in enumerate(("b", "c", "a")):
        (folder / "ckpt" / f"{name}-step").mkdir(parents=True)
        (folder / "ckpt" / name).write_text(name)
        os.utime(folder / "ckpt" / name, (1_700_000_000 + number,) * 2)
        os.utime(folder / "ckpt" / f"{name}-step", (1_600_000_000 + number,) * 2)
    (folder / "empty" / "inside").mkdir(parents=True, mode=0o750)
    (folder / "ckpt" / "old").write_text("")
    (folder / "ckpt" / "old").chmod(0o600)
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    for name, at in (("ckpt/old", 400_000_000), ("run.sh", 1_650_000_000), ("empty", 1_660_000_000)):
        os.utime(folder / name, (at, at))
    os.utime(folder / "ckpt", (1_500_000_000,) * 2)
    return ClientShell(service, folder, tmp_path)


def show(folder):
    return subprocess.run(("bash", "-c", SHOW), cwd=folder, capture_output=True, text=True, check=True).stdout


def test_a_folder_is_in_the_job_as_it_is_here(shell):
    ran = shell("jobs", "create", "-m", "CPU", "--", "bash", "-c", SHOW)
    assert show(shell.folder) in ran.stdout
    assert "unchanged, not uploaded" in shell("jobs", "create", "-m", "CPU", "--", "true").stderr


def test_other_times_are_no_other_program_and_send_no_contents(service, shell):
    first = shell("jobs", "create", "-m", "CPU", "--detach", "--", "bash", "-c", SHOW).stdout.strip()
    os.utime(shell.folder / "ckpt" / "b")
    again = shell("jobs", "create", "-m", "CPU", "--", "bash", "-c", SHOW)
    assert "workspace uploaded (0 of 5 files, 0 B)" in again.stderr
    assert show(shell.folder) in again.stdout
    second = service.request("GET", "/jobs?limit=1").json()["jobs"][0]
    before = service.job(first)
    assert second["workspaceSha256"] != before["workspaceSha256"]
    assert second["workspaceContents"] == before["workspaceContents"]
    service.wait_ended(first)
    made = service.request("POST", "/comparisons/from-jobs", json={"jobs": [first, second["id"]]})
    assert (made.status_code, made.json()["differences"]) == (201, []), made.text


@pytest.mark.parametrize("outputs", [False, True], ids=["artifacts", "outputs"])
def test_artifacts_are_in_other_jobs_and_here_as_the_job_left_them(service, shell, tmp_path, outputs):
    here = show(shell.folder)
    given = ("--outputs", "**", "--", "true") if outputs else ("--", "bash", "-c", TO_ARTIFACTS)
    shell("jobs", "create", "-m", "CPU", *given)
    job = service.request("GET", "/jobs?limit=1").json()["jobs"][0]["id"]
    read = ("--workspace", "none", "--input", f"{job}:in", "--", "bash", "-c", f"in/run.sh; cd in; {SHOW}")
    assert f"ran\n{here}" in shell("jobs", "create", "-m", "CPU", *read).stdout
    shell("jobs", "artifacts", "get", job, "--to", str(tmp_path / "got"))
    assert show(tmp_path / "got") == here
    shell("jobs", "artifacts", "get", job, "empty/inside", "ckpt/b", "--to", str(tmp_path / "some"))
    assert sorted(path.name for path in (tmp_path / "some").iterdir()) == [".gitignore", "ckpt", "empty"]
    assert (tmp_path / "some" / "empty" / "inside").stat().st_mode & 0o777 == 0o750
    packed = zipfile.ZipFile(io.BytesIO(service.request("GET", f"/jobs/{job}/artifacts.zip").content))
    packed.extractall(tmp_path / "zip")
    for entry in packed.infolist():
        (tmp_path / "zip" / entry.filename).chmod(entry.external_attr >> 16 & 0o777)
    for entry in reversed(packed.infolist()):
        seconds = struct.unpack("<HHBl", entry.extra)[3]
        assert entry.date_time[0] in {1982, 2014, 2017, 2020, 2022, 2023, 2026}
        os.utime(tmp_path / "zip" / entry.filename, (seconds, seconds))
    os.utime(tmp_path / "zip" / job / "ckpt", (1_500_000_000,) * 2)
    os.utime(tmp_path / "zip" / job / "empty", (1_660_000_000,) * 2)
    assert show(tmp_path / "zip" / job) == here


def test_the_next_attempt_finds_its_artifacts_as_it_left_them(shell):
    program = (
        f'cd "$GRADIENT_ARTIFACTS_DIR"; [ $GRADIENT_ATTEMPT = 2 ] || {{ cd -; {TO_ARTIFACTS}; sleep 60; }}; {SHOW}'
    )
    options = ("-m", "CPU", "--maxAttempts", "2", "-e", "SIMULATE_PREEMPT_AFTER=2")
    assert show(shell.folder) in shell("jobs", "create", *options, "--", "bash", "-c", program).stdout


def test_the_storage_gives_back_times_and_programs_and_names_what_it_does_not_keep(shell, tmp_path):
    (shell.folder / ".gradient.toml").write_text(f'project = "{tmp_path.name}"\n')
    (shell.folder / "ckpt" / "old").chmod(0o644)
    put = shell("storage", "put", "ckpt", "run.sh", "empty", "--to", "/storage/kept")
    assert [line for line in put.stderr.splitlines() if "left out" in line and "folder" not in line] == []
    assert "left out: empty/inside: an empty folder" in put.stderr
    run = "mkdir $GRADIENT_STORAGE_DIR/kept/made; cd $GRADIENT_STORAGE_DIR/kept; ./run.sh; ls -t ckpt"
    assert (
        "ran\na\nc\nb\nold\n"
        in shell("jobs", "create", "-m", "CPU", "--workspace", "none", "--", "bash", "-c", run).stdout
    )
    shell("storage", "get", "kept", str(tmp_path / "got"))
    assert (tmp_path / "got" / "made").is_dir()
    for name in ("ckpt/a", "ckpt/b", "ckpt/old", "run.sh"):
        here, got = (shell.folder / name).stat(), (tmp_path / "got" / name).stat()
        assert (got.st_mtime, got.st_mode & 0o777) == (here.st_mtime, here.st_mode & 0o777), name
    (shell.folder / "run.sh").chmod(0o644)
    again = shell("storage", "put", "run.sh", "--to", "/storage/kept/")
    assert "left out: permission to execute: run.sh" in again.stderr


def test_a_last_source_that_is_a_folder_here_needs_a_named_destination(shell):
    refused = shell("storage", "put", "run.sh", "empty", code=2)
    assert "'empty' is a folder on this machine: upload it, or is it the destination?" in refused.stderr
    assert "Destination: --to empty." in refused.stderr
