"""Programs that try to get out of a sandbox."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.deployment import wait_until

from core.system import bubblewrap_command
from worker.sandbox import program_sandbox
from worker.sandbox.program_sandbox import Limits, Sandbox, SandboxError

pytestmark = pytest.mark.integration

PYTHON = "/usr/bin/python3"  # one that every user may start
LIMITS = Limits(60, 1024**3, 1024**3, 1000)
CANARY = "canary-7f3a"

PROBE = """
import ctypes, json, os, socket, sys

port, pid, *paths = sys.argv[1:]
libc = ctypes.CDLL(None)


def works(action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return False
    return True


def connect(kind, address):
    with socket.socket(kind) as made:
        made.settimeout(5)
        made.connect(address)


found = {"before": {path: os.path.exists(path) for path in paths}}
libc.unshare(0x10000000 | 0x20000)  # user and mount namespaces of its own, with every capability in them
libc.mount(b"x", b"/usr", b"tmpfs", 0, None)
libc.umount2(b"/usr", 2)
libc.umount2(b"/workspace", 2)
libc.mount(None, b"/", None, 0x1000 | 32, None)  # to be written again
found |= {
    "environment": dict(os.environ),
    "reached": [path for path in paths if os.path.exists(path)],
    "written": [path for path in ("/usr/x", "/etc/x", "/run/program_sandbox_init.py", "/dev/x", "/dev/shm/x", "/x")
                if works(open, path, "w")],
    "root": works(os.setuid, 0) and works(os.listdir, "/etc/ssl/private"),
    "signalled": works(os.kill, int(pid), 0),
    "processes": [one for one in range(3, 2000) if works(os.kill, one, 0)],
    "port": works(connect, socket.AF_INET, ("127.0.0.1", int(port))),
    "metadata": works(connect, socket.AF_INET, ("169.254.169.254", 80)),
    "abstract": works(connect, socket.AF_UNIX, "\\0" + pid),
}
print(json.dumps(found))
"""

OUTSIDE = """
import json, os, socket, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from worker.sandbox.program_sandbox import Limits, Sandbox

folder, paths = Path(sys.argv[2]), sys.argv[3:]
with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as abstract:
    abstract.bind("\\0" + str(os.getpid()))
    abstract.listen()
    os.environ["GRADIENT_TOKEN"] = "canary-7f3a"
    words = ["/usr/bin/python3", "probe.py", str(port.getsockname()[1]), str(os.getpid()), *paths]
    done = Sandbox("require").run(words, folder, Limits(60, 1024**3, 1024**3, 1000))
print(done.output)
"""


@pytest.fixture
def place(tmp_path):
    """A folder that every user may enter, with the worker's own files beside the folder of the program."""
    for one in (tmp_path, *tmp_path.parents[:-1]):
        if one.stat().st_uid == os.getuid() and one != Path("/tmp"):
            one.chmod(0o755)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secrets.key").write_text(CANARY)
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "probe.py").write_text(PROBE)
    (tmp_path / "modules" / "worker").mkdir(parents=True)
    (tmp_path / "modules" / "worker" / "__init__.py").touch()
    shutil.copytree(Path(program_sandbox.__file__).parent, tmp_path / "modules" / "worker" / "sandbox")
    (tmp_path / "modules" / "core" / "system").mkdir(parents=True)
    shutil.copy(bubblewrap_command.__file__, tmp_path / "modules" / "core" / "system")
    return tmp_path


@pytest.mark.parametrize("user", [0, 12_345])
def test_a_program_in_the_sandbox_reaches_nothing_of_the_host(place, user):
    """Files, environment, processes, sockets and the network: with a worker that is root, and with one that is not."""
    if os.geteuid() != 0 and user != os.geteuid():
        user = os.geteuid()
    for path in (place / "inside", place / "inside" / "probe.py", place / "home", place / "home" / "secrets.key"):
        os.chown(path, user, user)
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(place / "home" / "engine.sock"))
        engine.listen()
        (place / "home" / "engine.sock").chmod(0o777)
        paths = [*(str(place / "home" / name) for name in ("secrets.key", "engine.sock")), str(place / "inside")]
        paths += [
            "/proc/self",
            "/proc/1/environ",
            "/sys/kernel",
            "/etc/passwd",
            "/var/run",
            "/var/lib",
            "/tmp",
            "/home",
        ]
        done = subprocess.run(
            [PYTHON, "-c", OUTSIDE, str(place / "modules"), str(place / "inside"), *paths],
            user=user,
            group=user,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert CANARY not in done.stdout
    assert found.pop("environment").keys() <= {"PATH", "HOME", "LC_ALL", "PWD", "LC_CTYPE"}
    assert not any(found.pop("before").values())
    assert {name: value for name, value in found.items() if value} == {}


def test_the_workspace_belongs_to_the_worker_again(place):
    """Also what the program made, and without the bits that would make it another user for who starts it."""
    code = "import os; os.mkdir('made'); open('made/file', 'w').close(); os.chmod('made/file', 0o6755)"
    done = Sandbox("require").run([PYTHON, "-c", code], place / "inside", LIMITS)
    assert done.code == 0, done.output
    made = place / "inside" / "made" / "file"
    assert (made.stat().st_uid, made.parent.stat().st_uid) == (os.geteuid(), os.geteuid())
    assert made.stat().st_mode & 0o7777 == 0o755


def test_a_program_that_leaves_processes_behind_leaves_none(place):
    """It ends, and something of it goes on that holds neither its output nor its session."""
    code = (
        "import os, time\n"
        "if not os.fork():\n"
        "    os.setsid(); os.closerange(0, 9)\n"
        "    while True: open('beat', 'a').write('x'); time.sleep(0.01)\n"
        "while not os.path.exists('beat'): time.sleep(0.01)\n"
    )
    done = Sandbox("require").run([PYTHON, "-c", code], place / "inside", LIMITS)
    assert done.code == 0, done.output
    wait_until(lambda: _left_behind() == [], "the kernel to end the rest of the sandbox")


def test_without_bubblewrap_nothing_runs_where_a_sandbox_is_required(place, monkeypatch):
    monkeypatch.setattr(bubblewrap_command, "PATH", "/nonexistent")
    program_sandbox.unavailable.cache_clear()
    try:
        required = Sandbox("require")
    finally:
        program_sandbox.unavailable.cache_clear()
    with pytest.raises(SandboxError, match="bubblewrap is not installed"):
        required.run([sys.executable, "-c", "open('ran', 'w')"], place / "inside", LIMITS)
    assert not (place / "inside" / "ran").exists()


def _left_behind():
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"'beat'" in one.read_bytes() and str(os.getpid()) != one.parent.name:
                found.append(one.parent.name)
        except OSError:
            continue
    return found
