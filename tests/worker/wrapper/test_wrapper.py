"""The wrapper by itself, without a backend."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from psutil import STATUS_SLEEPING, STATUS_STOPPED, STATUS_ZOMBIE, NoSuchProcess
from support.deployment import wait_until

from worker.backends.base import LOGIN_PATH, WRAPPER
from worker.runner.control_files import STOPPING_FILE, read_exit_code, write_control_file

pytestmark = pytest.mark.integration
SHELLS = pytest.mark.parametrize("shell", ["bash", "dash", "busybox sh"])


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_stop_that_was_asked_for_before_the_command_began_ends_it(tmp_path, shell):
    (tmp_path / "command").write_text("sleep 600\n")
    write_control_file(tmp_path, STOPPING_FILE, "asked to end")
    wrapper = subprocess.run([shell, str(WRAPPER), str(tmp_path)], start_new_session=True, check=False, timeout=60)
    assert wrapper.returncode == read_exit_code(tmp_path) == 143


def start_wrapper(shell, control, command, tmp_path, inside=(), arguments=(), variables=()):
    """Start it where bash is not found, unless that is the shell."""
    if command is not None:
        (control / "command").write_text(command)
        (control / "command").chmod(0o755)
    programs = tmp_path / "programs"
    if not programs.exists():
        programs.mkdir()
        for name in ("cat", "sleep", "sh", "perl", "tee", "timeout", "yes"):
            (programs / name).symlink_to(shutil.which(name))
        (programs / "python3").symlink_to(sys.executable)
    program, *words = shell.split()
    env = os.environ if shell == "bash" else {"PATH": str(programs)}
    return subprocess.Popen(
        [*inside, shutil.which(program), *words, WRAPPER, control, *arguments],
        start_new_session=True,
        env=dict(env) | dict(variables),
        cwd=tmp_path,
    )


@SHELLS
def test_a_signal_while_the_command_ends_leaves_its_exit_code(tmp_path, shell):
    """The shell's wait is interrupted as its child ends. A lost race shows within forty tries: one of six lost it."""
    for attempt in range(40):
        control = tmp_path / str(attempt)
        control.mkdir()
        wrapper = start_wrapper(shell, control, "trap '' TERM; kill -TERM $PPID; exit 3\n", tmp_path)
        assert wrapper.wait(60) == read_exit_code(control) == 3


def wait_for_child(wrapper):
    """Look without a pause. Raises `NoSuchProcess`: it has ended."""
    children = Path(f"/proc/{wrapper.pid}/task/{wrapper.pid}/children")
    while wrapper.poll() is None:
        if pids := children.read_text().split():
            return int(pids[0])
    raise NoSuchProcess(wrapper.pid)


def test_a_command_that_is_suspended_as_it_begins_has_its_exit_code(tmp_path):
    """A stop can come so early. One of fifteen was reported as ended by SIGSTOP, and ran on."""
    suspended = 0
    for attempt in range(60):
        control = tmp_path / str(attempt)
        control.mkdir()
        wrapper = start_wrapper("bash", control, "exit 5\n", tmp_path)
        with suppress(OSError, NoSuchProcess):  # it may have ended
            os.kill(pid := wait_for_child(wrapper), signal.SIGSTOP)
            command = psutil.Process(pid)
            wait_until(lambda command=command: command.status() in {STATUS_STOPPED, STATUS_ZOMBIE}, "the signal")
            command.resume()
            suspended += 1
        assert wrapper.wait(60) == read_exit_code(control) == 5
    assert suspended > 30


@SHELLS
def test_what_a_signal_ends_is_told_however_soon_it_ends(tmp_path, shell):
    """Slow a `wait` down, as a busy machine does: without one, of all that ended soon one in six was not told."""
    (tmp_path / "entrypoint").write_text('; wait() { sleep 0.3; command wait "$@"; }\n')
    wrapper = start_wrapper(shell, tmp_path, "echo printed; kill -KILL $$\n", tmp_path)
    assert wrapper.wait(60) == read_exit_code(tmp_path) == 128 + signal.SIGKILL
    assert "Killed" in (tmp_path / "signals").read_text()
    assert (tmp_path / "log").read_text() == "printed\n"


@SHELLS
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (None, 126),  # it cannot be read
        ("exit 7\n", 7),
        ("if true; then exit 0\n", 2),
        ("#!/absent\nexit 0\n", 127),
        ("./absent\n", 127),
        (": >a; ./a\n", 126),
        ("printf '#!/absent\\n' >a; /bin/chmod +x a; ./a\n", 127),
        ("printf '\\177ELF\\0' >a; /bin/chmod +x a; ./a\n", 126),
    ],
)
def test_no_command_that_did_not_run_is_a_success(tmp_path, shell, command, code):
    """Whatever the job's variables are."""
    hostile = {"BASH_ENV": "/absent", "ENV": "/absent", "LD_PRELOAD": "/absent", "IFS": "x", "POSIXLY_CORRECT": "1"}
    hostile |= {f"gradient_{name}": "exit 0;" for name in ("text", "line", "control")}
    start = start_wrapper(shell, tmp_path, command, tmp_path, variables=hostile)
    assert start.wait(60) == read_exit_code(tmp_path) == code


@SHELLS
@pytest.mark.parametrize(
    ("command", "code", "log"),
    [
        ("/bin/echo it ran; exit 7\n", 7, "it ran\n"),
        ("/bin/cat <<END\n  $# \\\\\nEND\nexit 5\n", 5, "  0 \\\n"),
        ("true; absent\n", 127, None),
    ],
)
def test_a_command_runs_with_a_path_that_has_no_program(tmp_path, shell, command, code, log):
    (tmp_path / "command").write_text(command)
    words = [shutil.which(shell.split()[0]), *shell.split()[1:], WRAPPER, tmp_path]
    done = subprocess.run(words, env={"PATH": "/opt/x:$PATH"}, start_new_session=True, check=False, timeout=60)
    assert done.returncode == read_exit_code(tmp_path) == code
    if log is not None:
        assert (tmp_path / "log").read_text() == log


SAVER = """
import os, signal, subprocess, sys, time
stopped = []
signal.signal(int(os.environ["STOP"]), lambda *_: stopped.append(1))
producer = subprocess.Popen(["sh", "-c", "while sleep 0.05; do echo batch; done"], stdout=subprocess.PIPE)
print("ready", flush=True)
while producer.stdout.readline():
    if len(stopped) == 1:
        time.sleep(0.5)
        assert producer.poll() is None
        producer.kill()
        print("saved", flush=True)
        sys.exit(0)
"""


SAVES = (
    "python3 saver.py 2>&1 | tee out",
    "timeout 600 python3 saver.py; echo never",
    "python3 saver.py & wait; echo never",
    "sh -c 'python3 saver.py; echo never' | cat",
    "/bin/bash -c 'python3 saver.py | tee out; echo never'",
    "yes | python3 saver.py | perl -ne 'BEGIN { $| = 1; $SIG{TERM} = sub { exit } } print'",
    """sh -c 'trap "sleep 0.2; echo saved" $STOP; echo ready; sleep 600' | tee out""",
    "echo ready; sleep 600; echo never",
    """/bin/bash -c 'trap "sleep 0.2; echo saved" $STOP; echo ready; sleep 600' | tee out; echo never""",
)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize(
    ("shell", "number", "command"),
    [
        *((shell, 15, command) for shell in ("bash", "dash", "busybox sh") for command in SAVES[:8]),
        *(("bash", number, command) for number in (2, 10) for command in (SAVES[1], SAVES[4], SAVES[8])),
        ("dash", 1, SAVES[3]),
    ],
)
def test_in_a_container_a_stop_leaves_a_program_that_saves_what_it_needs(tmp_path, shell, number, command):
    (tmp_path / "saver.py").write_text(SAVER)
    words = ["ready", "saved"] if "save" in command else ["ready"]
    # As in a container: the process that reaps, and below it the wrapper.
    inside = [shutil.which("bwrap"), "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--chdir", tmp_path]
    with start_wrapper(
        shell, tmp_path, f"{command}\n", tmp_path, [*inside, "--"], ["alone", str(number), "600"], {"STOP": str(number)}
    ) as sandbox:
        output = tmp_path / "log"
        wait_until(lambda: output.exists() and "ready" in output.read_text(), "it to run")
        write_control_file(tmp_path, STOPPING_FILE, "asked to end")
        [first] = psutil.Process(sandbox.pid).children()
        [wrapper] = first.children()
        wrapper.send_signal(signal.SIGTERM)
        sandbox.wait(120)
    assert read_exit_code(tmp_path) is not None
    assert [word for word in output.read_text().split() if word in {"ready", "saved", "never"}] == words


# Its line in /proc has another length whenever it sleeps.
RESTLESS = """
import os, signal, time
warnings = []
signal.signal(signal.SIGTERM, lambda *_: warnings.append(1))
print("ready", flush=True)
while True:
    time.sleep(0.0003)
    sum(range(3000))
    if warnings:
        warnings.clear()
        print("warned", flush=True)
"""


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_programs_that_never_rest_are_warned_each_time(tmp_path, shell):
    """bash reads a line of /proc at a time, and missed some: of programs like these one in twenty was not warned."""
    (tmp_path / "restless.py").write_text(RESTLESS)
    start = "for one in 1 2 3 4 5 6; do python3 restless.py & sleep 600 & done; wait\n"
    control = tmp_path / "control"
    control.mkdir()
    with start_wrapper(shell, control, start, tmp_path, arguments=["session", "USR2", "600", "15"]) as wrapper:
        log = control / "log"
        wait_until(lambda: log.exists() and log.read_text().count("ready") == 6, "them to run")
        for number in range(1, 11):
            # It takes no warning while it passes one on.
            wait_until(lambda: psutil.Process(wrapper.pid).status() == STATUS_SLEEPING, "the last warning to be over")
            wrapper.send_signal(signal.SIGUSR1)
            wait_until(lambda count=6 * number: log.read_text().count("warned") == count, "all to be warned")
        for process in [*psutil.Process(wrapper.pid).children(recursive=True), wrapper]:
            process.kill()


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"PATH": "/opt/tool/bin:/usr/bin:/bin"}, "/opt/tool/bin:/usr/bin:/bin"),
        ({"OLD_PATH": "/wrong", "A": "b\nc", "PATH": "/a b:/bin", "PATHS": "/wrong"}, "/a b:/bin"),
        ({}, "/usr/bin:/bin"),
    ],
)
def test_a_login_shell_of_a_container_keeps_the_path_that_it_was_started_with(shell, given, path):
    command = f'PATH=/usr/bin:/bin; . "{LOGIN_PATH}"; echo "$PATH"'
    done = subprocess.run([f"/bin/{shell}", "-euc", command], env=given, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{path}\n", "")
