"""Processes of the worker's host, at moments when a job starts or ends."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from types import SimpleNamespace

import psutil
import pytest
from support.backend_harness import BackendHarness
from support.deployment import wait_until
from support.free_port import free_port

from core.settings.worker import ProcessSettings
from core.system.processes import running_processes
from worker.backends import job_connections
from worker.backends.base import LaunchError
from worker.backends.job_processes import JobProcesses
from worker.backends.process import plain_start
from worker.runner.streams import ExecRefused

pytestmark = pytest.mark.integration


def test_a_wrapper_that_starts_while_it_is_looked_for_is_not_lost(tmp_path, monkeypatch):
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="off"))
    spec, handle = place.running("echo up; sleep 600")
    started, hidden = spec.control / "started", spec.control / "hidden"
    started.rename(hidden)

    def start_meanwhile(_processes):
        hidden.rename(started)
        return False

    with monkeypatch.context() as patched:
        patched.setattr(JobProcesses, "leader_alive", start_meanwhile)
        assert place.backend.ended(handle) is None
    assert place.backend.ended(handle) is None
    place.clear()
    assert place.backend.ended(handle).reason == "process_lost"


def test_a_process_whose_pid_was_another_process_s_before_is_killed(last_pid, tmp_path):
    """psutil remembers the process that it saw first, and refuses to signal the other one."""
    earlier = subprocess.Popen(["sleep", "600"])
    assert earlier.pid in {one.pid for one in psutil.process_iter()}
    earlier.kill()
    earlier.wait()

    def start_with_its_pid():
        last_pid.write_text(str(earlier.pid - 1))
        own = {"GRADIENT_JOB_ID": tmp_path.name, "GRADIENT_ATTEMPT": "1"}
        started = subprocess.Popen(["sleep", "600"], env=os.environ | own)
        if started.pid == earlier.pid:
            return started
        started.kill()  # another program was faster
        started.wait()
        return None

    later = wait_until(start_with_its_pid, "a process with the same pid")
    JobProcesses(tmp_path.name, 1, leader=None).kill(spare_leader=False)
    assert later.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_shell_whose_program_is_ended_runs_no_other_command(number, tmp_path, monkeypatch):
    """However slowly the processes are found, and in any order."""
    ready, later = tmp_path / "ready", tmp_path / "later"
    command = f"trap 'exit 143' TERM; : >{ready}; sleep 600; : >{later}"
    own = {"GRADIENT_JOB_ID": tmp_path.name, "GRADIENT_ATTEMPT": "1"}
    shell = subprocess.Popen(["bash", "-c", command], env=os.environ | own)
    [program] = wait_until(lambda: ready.exists() and psutil.Process(shell.pid).children(), "its program")

    def find_slowly(_attempt):
        for found in running_processes((program.pid, shell.pid)):
            yield found
            time.sleep(0.5)

    monkeypatch.setattr(JobProcesses, "all", find_slowly)
    try:
        members = JobProcesses(tmp_path.name, 1, leader=None)
        if number == signal.SIGTERM:
            members.terminate(spare_leader=False)
        else:
            members.kill(spare_leader=False)
    finally:
        with suppress(psutil.NoSuchProcess):
            program.kill()
    assert shell.wait(30) == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    assert not later.exists()


def test_a_program_that_its_shell_starts_while_they_are_terminated_ends_too(tmp_path, monkeypatch):
    """The shell has a trap, as every job's has, and acts on SIGTERM only once its program has ended."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    own = {"GRADIENT_JOB_ID": tmp_path.name, "GRADIENT_ATTEMPT": "1"}
    shell = subprocess.Popen(["bash", "-c", f"trap 'exit 143' TERM; read <{gate}; sleep 600"], env=os.environ | own)
    find, rounds = JobProcesses.all, []

    def find_then_start(attempt):
        yield from list(find(attempt))
        rounds.append(1)
        if len(rounds) == 1:
            gate.write_text("go on\n")
            wait_until(lambda: psutil.Process(shell.pid).children(), "its program")

    monkeypatch.setattr(JobProcesses, "all", find_then_start)
    members = JobProcesses(tmp_path.name, 1, leader=None)
    assert members.terminate(spare_leader=False) == 2
    assert shell.wait(30) == 143


def test_a_program_goes_on_with_what_it_does_at_its_end(tmp_path):
    """Nothing stays suspended, and what it starts then is left alone."""
    ready = tmp_path / "ready"
    own = {"GRADIENT_JOB_ID": tmp_path.name, "GRADIENT_ATTEMPT": "1"}
    command = f"trap 'sleep 0.5; echo saved; exit 0' TERM; : >{ready}; while :; do sleep 0.05; done"
    shell = subprocess.Popen(["bash", "-c", command], env=os.environ | own, stdout=subprocess.PIPE)
    wait_until(ready.exists, "it to run")
    JobProcesses(tmp_path.name, 1, leader=None).terminate(spare_leader=False)
    assert shell.communicate(timeout=30)[0] == b"saved\n"
    assert shell.returncode == 0


def test_without_a_sandbox_a_job_cannot_go_without_the_network(tmp_path):
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="off"))
    with pytest.raises(LaunchError, match="option_refused: jobs have no sandbox here"):
        place.launch(place.spec("true", network="none"))


def test_a_wrapper_that_a_signal_ends_before_it_starts_is_not_waited_for(tmp_path, monkeypatch):
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="off"))
    starting = tmp_path / "starting"
    starting.write_text("#!/bin/sh\nexec sleep 600\n")
    starting.chmod(0o755)
    monkeypatch.setattr(plain_start, "WRAPPER", starting)
    handle = place.launch(place.spec("true"))
    [child] = place.backend.children[handle["name"]]
    assert place.backend.ended(handle) is None
    place.backend.signal(handle, grace=True)
    assert child.wait(30) == -signal.SIGTERM
    assert wait_until(lambda: place.backend.ended(handle), "the end").reason == "never_started"
    place.clear()


@pytest.mark.parametrize("given", [{}, {"LANG": "xx_XX.UTF-8"}, {"LC_ALL": "POSIX"}, {"LANG": "C.UTF-8", "LC_ALL": ""}])
def test_a_job_has_a_locale_that_is_utf_8_and_installed(tmp_path, monkeypatch, given):
    for name in ("LANG", "LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    place = BackendHarness("process", tmp_path)
    spec = place.spec("locale charmap 2>&1")
    handle = place.launch(spec)
    assert wait_until(lambda: place.backend.ended(handle), "the end").code == 0
    assert place.output(spec) == b"UTF-8\n"
    place.clear()


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize("sandbox", ["require", "off"])
def test_a_port_that_was_closed_once_it_was_found_is_refused_as_one_that_nothing_listens_on(
    sandbox, tmp_path, monkeypatch
):
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox=sandbox))
    _, handle = place.running("echo up; sleep 600")
    port = free_port()
    found = SimpleNamespace(status=psutil.CONN_LISTEN, laddr=SimpleNamespace(ip="127.0.0.1", port=port))
    monkeypatch.setattr(psutil.Process, "net_connections", lambda *_: [found])
    monkeypatch.setattr(job_connections, "_listening_address", lambda *_: "127.0.0.1")
    with pytest.raises(ExecRefused, match=f"Nothing in the job listens on port {port}"):
        place.backend.connect_to_job(handle, port, "s1")
    place.clear()
