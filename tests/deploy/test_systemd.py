"""The systemd units say what keeps jobs alive over a restart of their worker, and `deploy/shell` has their settings."""

import configparser
import re
import subprocess
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = DEPLOY / "systemd"


def unit(name, section="Service"):
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string((UNITS / name).read_text())
    return parser[section]


def test_a_restart_of_the_worker_leaves_its_jobs_alone():
    service = unit("gradient-jobs-worker.service")
    assert service["KillMode"] == "process"
    assert service["OOMPolicy"] == "continue"
    assert "PrivateTmp" not in service
    assert int(service["TimeoutStopSec"]) > 20, "the worker needs 20 s to let go of its jobs"


def test_a_command_in_the_shell_has_the_user_and_the_settings_of_the_worker(tmp_path):
    fake = tmp_path / "systemd-run"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o700)
    words = [DEPLOY / "shell", "gradient-server", "keys", "create", "the team"]
    given = subprocess.run(words, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    printed = given.stdout.splitlines()
    assert printed[-4:] == ["gradient-server", "keys", "create", "the team"]
    service = (UNITS / "gradient-jobs-worker.service").read_text()
    for name, value in re.findall(r"^(EnvironmentFile|StateDirectory\w*|UMask)=(.+)", service, re.MULTILINE):
        assert f"--property={name}={value}" in printed
    for name, option in (("User", "uid"), ("Group", "gid"), ("Environment", "setenv")):
        assert f"--{option}={unit('gradient-jobs-worker.service')[name]}" in printed
