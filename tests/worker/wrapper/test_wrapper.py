"""The wrapper by itself, without a backend."""

import subprocess

import pytest

from worker.backends.base import LOGIN_PATH, STOPPING_FILE, WRAPPER, read_exit_code, write_control_file

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_stop_that_was_asked_for_before_the_command_began_ends_it(tmp_path, shell):
    (tmp_path / "command").write_text("sleep 600\n")
    write_control_file(tmp_path, STOPPING_FILE, "asked to end")
    wrapper = subprocess.run([shell, str(WRAPPER), str(tmp_path)], start_new_session=True, check=False, timeout=60)
    assert wrapper.returncode == read_exit_code(tmp_path) == 143


def test_a_signal_while_the_command_ends_leaves_its_exit_code(tmp_path):
    """The shell's wait is interrupted as its child ends. A lost race shows within forty tries: one of six lost it."""
    for attempt in range(40):
        control = tmp_path / str(attempt)
        control.mkdir()
        (control / "command").write_text("trap '' TERM; kill -TERM $PPID; exit 3\n")
        wrapper = subprocess.run(["dash", str(WRAPPER), str(control)], start_new_session=True, check=False, timeout=60)
        assert wrapper.returncode == read_exit_code(control) == 3


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
