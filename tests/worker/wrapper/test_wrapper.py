"""The wrapper by itself, without a backend."""

import os
import shutil
import signal
import subprocess

import pytest

from worker.backends.base import LOGIN_PATH, STOPPING_FILE, WRAPPER, read_exit_code, write_control_file

pytestmark = pytest.mark.integration
SHELLS = pytest.mark.parametrize("shell", ["bash", "dash", "busybox sh"])


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_stop_that_was_asked_for_before_the_command_began_ends_it(tmp_path, shell):
    (tmp_path / "command").write_text("sleep 600\n")
    write_control_file(tmp_path, STOPPING_FILE, "asked to end")
    wrapper = subprocess.run([shell, str(WRAPPER), str(tmp_path)], start_new_session=True, check=False, timeout=60)
    assert wrapper.returncode == read_exit_code(tmp_path) == 143


def start_wrapper(shell, control, command, tmp_path):
    """Start it where bash is not found, unless that is the shell."""
    (control / "command").write_text(command)
    programs = tmp_path / "programs"
    if not programs.exists():
        programs.mkdir()
        for name in ("cat", "sleep"):
            (programs / name).symlink_to(shutil.which(name))
    program, *words = shell.split()
    env = os.environ if shell == "bash" else {"PATH": str(programs)}
    return subprocess.Popen([shutil.which(program), *words, WRAPPER, control], start_new_session=True, env=env)


@SHELLS
def test_a_signal_while_the_command_ends_leaves_its_exit_code(tmp_path, shell):
    """The shell's wait is interrupted as its child ends. A lost race shows within forty tries: one of six lost it."""
    for attempt in range(40):
        control = tmp_path / str(attempt)
        control.mkdir()
        wrapper = start_wrapper(shell, control, "trap '' TERM; kill -TERM $PPID; exit 3\n", tmp_path)
        assert wrapper.wait(60) == read_exit_code(control) == 3


@SHELLS
def test_what_a_signal_ends_is_told_however_soon_it_ends(tmp_path, shell):
    """Slow a `wait` down, as a busy machine does: without one, of all that ended soon one in six was not told."""
    (tmp_path / "entrypoint").write_text('; wait() { sleep 0.3; command wait "$@"; }\n')
    wrapper = start_wrapper(shell, tmp_path, "echo printed; kill -KILL $$\n", tmp_path)
    assert wrapper.wait(60) == read_exit_code(tmp_path) == 128 + signal.SIGKILL
    assert "Killed" in (tmp_path / "signals").read_text()
    assert (tmp_path / "log").read_text() == "printed\n"


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
    command = f'PATH=/usr/bin:/bin; . {LOGIN_PATH}; echo "$PATH"'
    done = subprocess.run([f"/bin/{shell}", "-euc", command], env=given, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{path}\n", "")
