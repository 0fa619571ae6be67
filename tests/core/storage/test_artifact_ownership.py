"""Stored artifacts do not change after the end of an attempt, whatever other processes have kept of the job's files.

A job passes a descriptor to another job over an abstract socket, and ends. The other job writes after the close.
"""

import errno
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager

import pytest

from core.storage.artifacts import ownership
from core.storage.artifacts.store import DirectoryStore

JOB = "jabc123"
CONTENT = b"weights " * 1024
USER = 61_234
WRITERS = ("descriptor", "mapping", "message")
REOPENERS = ("read-only", "path", "folder")
"""Only a user who may change the file can open it anew."""

BECOME_USER = """
import ctypes, mmap, os, socket, sys
kind, address, user, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if user != os.getuid():
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: as after an exec, it may use its own /proc/self/fd
"""

JOB_PROGRAM = """
flags = {"read-only": os.O_RDONLY, "path": os.O_PATH}.get(kind, os.O_RDWR)
passed = folder if kind == "folder" else os.open("model", flags, dir_fd=folder)
with socket.socket(socket.AF_UNIX) as other:
    other.connect("\\0" + address)
    socket.send_fds(other, [b"x"], [passed])
"""

OTHER_JOB_PROGRAM = """
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind("\\0" + address)
    listener.listen()
    print("listening", flush=True)
    connection, _ = listener.accept()
if kind != "message":  # else it stays in the socket until the attack
    got = socket.recv_fds(connection, 1, 1)[1][0]
if kind == "mapping":
    mapped = mmap.mmap(got, 0)
    os.close(got)
print("ready", flush=True)
sys.stdin.readline()
try:
    if kind == "message":
        got = socket.recv_fds(connection, 1, 1)[1][0]
    elif kind == "folder":
        got = os.open("model", os.O_RDWR, dir_fd=got)
    elif kind in {"read-only", "path"}:
        try:
            os.chmod(f"/proc/self/fd/{got}", 0o666)
        except OSError:
            pass
        got = os.open(f"/proc/self/fd/{got}", os.O_RDWR)
    if kind == "mapping":
        mapped[:4] = b"evil"
        mapped.flush()
    else:
        os.pwrite(got, b"evil", 0)
        os.pwrite(got, b"more", os.fstat(got).st_size)
    print("written", flush=True)
except PermissionError:
    print("refused", flush=True)
"""


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "attempt" / "artifacts"
    folder.mkdir(parents=True)
    (folder / "model").write_bytes(CONTENT)
    return folder


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path / "store")


@contextmanager
def holder(kind, source, user=None):
    """Run a job that passes what it has of its file to another job, and ends; yields a function with which that writes.

    The function returns `written` or `refused`.
    """
    folder = os.open(source, os.O_RDONLY)
    words = [kind, f"gradient-test-{uuid.uuid4().hex}", str(os.getuid() if user is None else user), str(folder)]

    def command(program):
        return [sys.executable, "-c", BECOME_USER + program, *words]

    other = subprocess.Popen(
        command(OTHER_JOB_PROGRAM), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    )

    def write():
        other.stdin.write("now\n")
        other.stdin.flush()
        return other.stdout.readline().strip()

    try:
        assert other.stdout.readline() == "listening\n"
        subprocess.run(command(JOB_PROGRAM), check=True, pass_fds=[folder], cwd="/")
        assert other.stdout.readline() == "ready\n"
        yield write
    finally:
        other.kill()
        other.communicate()
        os.close(folder)


def stored_path(tmp_path):
    return tmp_path / "store" / JOB[:3] / JOB / "1" / "files" / "model"


def assert_unchanged(store):
    (file,) = store.walk(JOB, 1)
    opened = store.open(JOB, 1, "model")
    with opened.file as stream:
        assert stream.read() == CONTENT
    assert opened.size == file.size == len(CONTENT)
    assert opened.sha256 == file.sha256 == hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("synced", [False, True])
def test_a_file_that_another_process_can_write_is_copied(store, source, kind, synced):
    with holder(kind, source) as write:
        if synced:
            store.sync(JOB, 1, source)
        manifest = store.close(JOB, 1, source)
        assert (manifest.state, manifest.files, manifest.skipped) == ("complete", 1, ())
        assert write() == "written"
    assert (source / "model").read_bytes() != CONTENT
    assert_unchanged(store)


@pytest.mark.skipif(os.geteuid() != 0, reason="jobs have another user only if the worker is root")
@pytest.mark.parametrize("kind", WRITERS + REOPENERS)
def test_another_job_of_the_same_user_cannot_write(store, source, kind):
    for path in (source, source / "model"):
        os.chown(path, USER, USER)
    with holder(kind, source, USER) as write:
        store.close(JOB, 1, source)
        assert write() == ("written" if kind in WRITERS else "refused")
    assert_unchanged(store)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EAGAIN])
def test_without_leases_files_stay_links(store, source, tmp_path, monkeypatch, number):
    """A local file system without leases answers EINVAL; NFS answers EAGAIN, also if nobody has the file open."""

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ownership.fcntl, "fcntl", refuse)
    assert store.close(JOB, 1, source).files == 1
    assert stored_path(tmp_path).stat().st_ino == (source / "model").stat().st_ino


def test_whoever_opens_a_file_at_the_check_does_not_kill_the_worker(store, source, monkeypatch):
    real, signals = fcntl.fcntl, []

    def open_meanwhile(descriptor, command, argument):
        if command == fcntl.F_SETLEASE and argument == fcntl.F_UNLCK:
            with pytest.raises(BlockingIOError):
                os.open(source / "model", os.O_WRONLY | os.O_NONBLOCK)
        return real(descriptor, command, argument)

    monkeypatch.setattr(ownership.fcntl, "fcntl", open_meanwhile)
    before = signal.signal(signal.SIGIO, lambda number, _: signals.append(number))
    try:
        assert store.close(JOB, 1, source).files == 1
    finally:
        signal.signal(signal.SIGIO, before)
    assert signals == []


def test_a_file_that_is_not_copied_because_of_a_stop_is_not_listed(store, source):
    with holder("descriptor", source):
        (source / "empty").touch()
        store.sync(JOB, 1, source)
        manifest = store.close(JOB, 1, source, stopped=lambda: True)
    assert (manifest.state, [file.path for file in store.walk(JOB, 1)]) == ("partial", ["empty"])
    assert [path for path, _ in manifest.skipped] == ["model"]
