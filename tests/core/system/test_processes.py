"""Processes of this host."""

import os
import subprocess

import psutil
import pytest

from core.system.processes import read_environment

pytestmark = pytest.mark.integration


def test_a_process_has_its_environment_while_it_loads_another_program(tmp_path):
    again = tmp_path / "again"
    again.write_text('#!/bin/sh\nexec "$0"\n')
    again.chmod(0o755)
    with subprocess.Popen([str(again)], env=os.environ | {"GRADIENT_JOB_ID": "j1"}) as started:
        try:
            process = psutil.Process(started.pid)
            found = [read_environment(process).get("GRADIENT_JOB_ID") for _ in range(2000)]
        finally:
            started.kill()
    assert set(found) == {"j1"}


def test_a_process_without_an_environment_has_none():
    with subprocess.Popen(["sleep", "600"], env={}) as started:
        try:
            assert read_environment(psutil.Process(started.pid)) == {}
        finally:
            started.kill()
