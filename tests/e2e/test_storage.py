"""Data sets from a user's folder to a job and back, with the client and a real service."""

import json
import os
import pty
import subprocess

import pytest
from support.client_shell import ClientShell
from support.deployment import CLI_PROGRAM

READ = "import os, pathlib; print(pathlib.Path(os.environ['GRADIENT_STORAGE_DIR'], 'data/train.csv').read_text())"
WRITE = "import os, pathlib; pathlib.Path(os.environ['GRADIENT_STORAGE_DIR'], 'data/model.bin').write_bytes(b'weights')"


@pytest.fixture
def shell(service, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / ".gradient.toml").write_text(f'project = "{tmp_path.name}"\n')
    return ClientShell(service, folder, tmp_path)


@pytest.fixture
def data(shell):
    """A local data set: three files, one of them in a folder, and what is not uploaded."""
    folder = shell.folder / "data"
    (folder / "more").mkdir(parents=True)
    (folder / "train.csv").write_text("1,2,3")
    (folder / "test.csv").write_bytes(bytes(range(256)) * 1000)
    (folder / "more" / "ünï %41.csv").write_text("x")
    (folder / "link").symlink_to("more")
    os.mkfifo(folder / "pipe")
    return folder


def paths(shell, *args):
    return [entry["path"] for entry in json.loads(shell("storage", "ls", "--json", *args).stdout)["entries"]]


@pytest.mark.usefixtures("data")
def test_a_job_reads_an_uploaded_data_set_and_its_file_comes_back(shell):
    put = shell("storage", "put", "data")
    assert "3 files (256.0 kB) to /storage/data\n" in put.stderr
    assert "left out: data/link: a link to a folder" in put.stderr
    assert "left out: data/pipe: not a file" in put.stderr
    job = ("jobs", "create", "-m", "CPU", "--workspace", "none", "--")
    assert "1,2,3" in shell(*job, "python3", "-c", READ).stdout
    shell(*job, "python3", "-c", WRITE)
    assert "data/model.bin" in shell("storage", "ls", "/storage/data").stdout
    whole = {entry["path"]: entry["size"] for entry in json.loads(shell("storage", "ls", "--json").stdout)["entries"]}
    deep = json.loads(shell("storage", "ls", "--json", "-r").stdout)["entries"]
    files = sum(entry["size"] for entry in deep if entry["kind"] == "file" and entry["path"].startswith("data/"))
    assert whole["data"] == files > 0
    assert all("/" not in path for path in whole)
    got = shell("storage", "get", "/storage/data/model.bin", "best.bin")
    assert "1 file (7 B) to best.bin" in got.stderr
    assert (shell.folder / "best.bin").read_bytes() == b"weights"


def test_a_folder_of_many_files_is_listed_and_added_up(shell):
    write = "mkdir $GRADIENT_STORAGE_DIR/many $GRADIENT_STORAGE_DIR/none; cd $GRADIENT_STORAGE_DIR/many"
    write += "; for i in $(seq 1100); do echo -n x > $i; done"
    shell("jobs", "create", "-m", "CPU", "--workspace", "none", "--command", write)
    assert len(paths(shell, "many")) == 1100
    listed = shell("storage", "ls")
    sizes = {row.split()[0]: row.split()[1:3] for row in listed.stdout.splitlines()[1:]}
    assert (sizes["many/"], sizes["none/"]) == (["1.1", "kB"], ["0", "B"])
    assert "left out" not in listed.stderr


def test_a_repeated_upload_sends_only_what_has_changed(shell, data):
    shell("storage", "put", "data", "sets/v1")
    again = json.loads(shell("storage", "put", "data", "sets/v1", "--json").stdout)
    assert (again["files"], again["bytes"], again["unchanged"]) == ([], 0, 3)
    (data / "train.csv").write_text("4,5")
    changed = json.loads(shell("storage", "put", "data", "/storage/sets/v1", "--json").stdout)
    assert changed["files"] == ["sets/v1/train.csv"]
    assert (changed["bytes"], changed["unchanged"]) == (3, 2)


def test_a_changed_file_of_equal_size_and_time_is_sent_and_a_touched_one_is_not(shell):
    def put(content, moment):
        (shell.folder / "f").write_text(content)
        os.utime(shell.folder / "f", (moment, moment))
        return json.loads(shell("storage", "put", "f", "/storage/equal/f", "--json").stdout)

    assert put("aaaa", 1_700_000_000)["files"] == ["equal/f"]
    assert put("bbbb", 1_700_000_000)["files"] == ["equal/f"]
    assert put("bbbb", 1_600_000_000)["unchanged"] == 1
    (shell.folder / "f").unlink()
    shell("storage", "get", "equal/f", "f")
    assert (shell.folder / "f").read_text() == "bbbb"
    (shell.folder / "f").write_text("cccc")
    os.utime(shell.folder / "f", (1_700_000_000, 1_700_000_000))
    refused = shell("storage", "get", "equal/f", "f", code=1)
    assert "--force" in refused.stderr


def test_a_folder_comes_back_and_nothing_is_overwritten(shell, data):
    shell("storage", "put", "data")
    got = shell("storage", "get", "data", "copy")
    assert "3 files (256.0 kB) to copy" in got.stderr
    copy = shell.folder / "copy"
    assert (copy / "test.csv").read_bytes() == (data / "test.csv").read_bytes()
    assert (copy / "test.csv").stat().st_mtime_ns // 10**6 == (data / "test.csv").stat().st_mtime_ns // 10**6
    assert (copy / "more" / "ünï %41.csv").read_text() == "x"
    assert "0 files (0 B) to copy; 3 already downloaded" in shell("storage", "get", "data", "copy").stderr
    (copy / "train.csv").write_text("mine")
    refused = shell("storage", "get", "data", "copy", code=1)
    assert "exists with other contents; nothing was downloaded" in refused.stderr
    assert (copy / "train.csv").read_text() == "mine"
    shell("storage", "get", "data", "copy", "--force")
    assert (copy / "train.csv").read_text() == "1,2,3"


@pytest.mark.usefixtures("data")
def test_deletion_asks(service, shell):
    shell("storage", "put", "data")
    assert "--yes" in shell("storage", "rm", "data", code=2).stderr
    assert "not empty" in shell("storage", "rm", "data", "--yes", code=4).stderr
    for answer, code in ((b"n\n", 1), (b"y\n", 0)):
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        done = subprocess.run(
            [str(CLI_PROGRAM), "storage", "rm", "-r", "data"],
            cwd=shell.folder,
            env={**os.environ, "GRADIENT_HOME": str(service.home), "HOME": str(shell.folder)},
            stdin=theirs,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        os.close(ours)
        os.close(theirs)
        assert "Delete /storage/data (3 files, 256.0 kB)? [y/N]" in done.stderr
        assert done.returncode == code
        assert ("data/train.csv" in paths(shell, "-r")) == bool(code)
    assert "The storage has no 'data'" in shell("storage", "rm", "data", "--yes", code=4).stderr
