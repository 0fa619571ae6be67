"""Nobody opens stored artifacts for writing after the end of an attempt, whatever descriptors a job has passed on."""

import hashlib
import os
import stat
import subprocess
import sys
import uuid
from contextlib import contextmanager

import pytest

from core.storage.artifacts.store import DirectoryStore

JOB = "jabc123"
CONTENT = b"weights " * 1024
USER = 61_234

BECOME_USER = """
import ctypes, os, socket, sys
kind, address, user, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if user != os.getuid():
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: as after an exec, it may use its own /proc/self/fd
"""

JOB_PROGRAM = """
flags = os.O_PATH if kind == "path" else os.O_RDONLY
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
got = socket.recv_fds(connection, 1, 1)[1][0]
print("ready", flush=True)
sys.stdin.readline()
try:
    if kind == "folder":
        got = os.open("model", os.O_RDWR, dir_fd=got)
    else:
        try:
            os.chmod(f"/proc/self/fd/{got}", 0o666)
        except OSError:
            pass
        got = os.open(f"/proc/self/fd/{got}", os.O_RDWR)
    os.pwrite(got, b"evil", 0)
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


def assert_unchanged(store):
    (file,) = store.walk(JOB, 1)
    opened = store.open(JOB, 1, "model")
    with opened.file as stream:
        assert stream.read() == CONTENT
    assert opened.size == file.size == len(CONTENT)
    assert opened.sha256 == file.sha256 == hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.skipif(os.geteuid() != 0, reason="jobs have another user only if the worker is root")
@pytest.mark.parametrize("kind", ["read-only", "path", "folder"])
def test_another_job_of_the_same_user_opens_no_stored_file_for_writing(store, source, kind):
    for path in (source, source / "model"):
        os.chown(path, USER, USER)
    with holder(kind, source, USER) as write:
        store.close(JOB, 1, source)
        assert write() == "refused"
    assert_unchanged(store)


def test_a_stored_file_has_no_bits_that_give_rights(store, source, tmp_path):
    (source / "model").chmod(0o6777)
    store.close(JOB, 1, source)
    status = (tmp_path / "store" / JOB[:3] / JOB / "1" / "files" / "model").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 0o755)
