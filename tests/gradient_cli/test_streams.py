"""The client with standard streams that are closed, full or read by nobody."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

CLIENT = Path(sys.executable).with_name("gradient-cli")


@pytest.fixture
def shell(server, tmp_path):
    """Return a function that runs a line of bash, in which `$c` is the client."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "c": str(CLIENT)}
    env |= {"GRADIENT_URL": server.url, "GRADIENT_API_KEY": "key"}

    def run(line, **more):
        words = ["bash", "-c", line]
        done = subprocess.run(words, cwd=tmp_path, env=env | more, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr + done.stdout
        return done

    return run


@pytest.mark.parametrize("closed", ["2>&-", "<&-", "2>&- <&-", "2>/dev/full", "2> >(exec 0<&-)"])
def test_a_command_does_its_work_without_the_stream(server, shell, closed):
    server.on("GET", "/projects", {"projects": []})
    done = shell(f'"$c" projects list --json {closed}')
    assert (done.returncode, done.stdout) == (0, shell('"$c" projects list --json').stdout)
    assert done.stdout


def test_a_command_does_its_work_without_any_stream(server, shell):
    server.on("GET", "/projects", {"projects": []})
    assert shell('exec "$c" projects list <&- >&- 2>&-').returncode == 0
    assert [request.path for request in server.requests] == ["/projects"]


@pytest.mark.parametrize("words", ["secrets set x", "registries set r.example --username u"])
def test_what_a_closed_stream_was_to_give_is_missing(server, shell, words):
    done = shell(f'"$c" {words} <&-')
    assert (done.returncode, server.requests) == (2, [])
    assert "error: " in done.stderr


@pytest.mark.parametrize("words", ["--help", "jobs create --help", "--version", "projects list --json"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_an_error(server, shell, words, unbuffered):
    server.on("GET", "/projects", {"projects": []})
    done = shell(f'"$c" {words} >/dev/full', PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, "error: No space left on device")
