"""Processes of this host."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import psutil
import pytest
from support.declared_environment import declared_environment
from support.deployment import wait_until
from support.job_packages import ROOT

from core.formatting import MIB
from core.system.processes import read_environment, sort_by_age

pytestmark = pytest.mark.integration


def test_children_inherit_no_ignored_signal():
    program = (
        "import signal, subprocess, time\n"
        "from core.system.processes import keep_ignored_signals_from_children\n"
        "ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1)\n"
        "for number in ignored: signal.signal(number, signal.SIG_IGN)\n"
        "keep_ignored_signals_from_children()\n"
        "for number in ignored: signal.raise_signal(number)\n"
        "for number in ignored: print(subprocess.run(['sh', '-c', f'kill -{number} $$']).returncode)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["-1", "-2", "-3", "-10"]


def test_a_process_has_its_environment_while_it_loads_another_program(tmp_path):
    again = tmp_path / "again"
    again.write_text('#!/bin/sh\nexec "$0"\n')
    again.chmod(0o755)
    with subprocess.Popen([str(again)], env=os.environ | {"GRADIENT_JOB_ID": "j1"}) as started:
        try:
            found = [read_environment(started.pid).get("GRADIENT_JOB_ID") for _ in range(2000)]
        finally:
            started.kill()
    assert set(found) == {"j1"}


def test_a_process_that_has_ended_has_no_environment():
    with subprocess.Popen(["true"]) as started:
        wait_until(lambda: psutil.Process(started.pid).status() == psutil.STATUS_ZOMBIE, "its end")
        with pytest.raises((psutil.NoSuchProcess, psutil.AccessDenied)):  # the kernel refuses that to who is not root
            read_environment(started.pid)
    with pytest.raises(psutil.NoSuchProcess):
        read_environment(started.pid)


@pytest.mark.parametrize("text", ["", "GRADIENT_JOB_ID=j1|"], ids=["none", "its job"])
def test_a_process_that_declares_much_memory_as_its_environment_takes_none_of_the_readers(text):
    with declared_environment(64 * MIB, text) as pid:
        tracemalloc.start()
        try:
            found = read_environment(pid, "GRADIENT_")
            assert tracemalloc.get_traced_memory()[1] < 2 * MIB
        finally:
            tracemalloc.stop()
    assert found == ({"GRADIENT_JOB_ID": "j1"} if text else {})


@pytest.mark.parametrize("longest", [100, 65_536 - 100, 65_536, 131_000])
def test_the_last_variable_of_the_largest_environment_is_found(longest):
    """The kernel gives a program 2 MiB with the usual stack of 8; a part of that are its arguments."""
    count = (2 * MIB - 100_000) // (longest + 20)
    filled = {f"GRADIENT_{n:06}" if n == 0 else f"V{n:06}": "x" * longest for n in range(count)}
    with subprocess.Popen(["sleep", "600"], env=filled | {"GRADIENT_JOB_ID": "j1"}) as started:
        try:
            # The kernel tells the end of the arguments before that of the environment.
            wait_until(Path(f"/proc/{started.pid}/environ").read_bytes, "the program to be loaded")
            found = read_environment(started.pid, "GRADIENT_")
        finally:
            started.kill()
    assert found == {"GRADIENT_000000": "x" * longest, "GRADIENT_JOB_ID": "j1"}


def test_a_parent_is_older_than_its_child():
    with subprocess.Popen(["bash", "-c", "sleep 600; :"]) as parent:
        [child] = wait_until(psutil.Process(parent.pid).children, "its child")
        try:
            assert sort_by_age([child, psutil.Process(parent.pid)])[1] == child
        finally:
            child.kill()
