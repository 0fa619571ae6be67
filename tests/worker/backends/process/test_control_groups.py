"""Control groups of the process backend's jobs: real ones, and both versions on folders that look like them."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.backend_harness import BackendHarness
from support.deployment import wait_until

from core.settings.docker import DockerSettings
from core.settings.worker import ProcessSettings
from worker.backends.base import LaunchError
from worker.backends.process import control_groups as groups
from worker.backends.process.control_groups import JobGroup, NoControlGroups, find_control_groups
from worker.backends.process.sandbox_start import start_sandboxed
from worker.runner.usage import UsageMeter

PYTHON = Path(sys.executable).resolve()
HOG = f"'{PYTHON}' -c 'import time; x = bytearray(400 * 1024**2); time.sleep(600)'"
UNIFIED = ("cpu.max", "cpu.stat", "memory.max", "memory.swap.max", "memory.current", "memory.events", "memory.stat")
UNIFIED = (*UNIFIED, "pids.max")
SEPARATE = {
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control", "memory.stat"),
    "cpu": ("cpu.cfs_period_us", "cpu.cfs_quota_us"),
    "cpuacct": ("cpuacct.usage",),
    "pids": ("pids.max",),
    "unified": ("cgroup.kill",),
}


@pytest.fixture(params=[pytest.param("plain", marks=pytest.mark.slow), "sandbox"])
def place(request, tmp_path, control_groups):  # noqa: ARG001 - a requirement
    if request.param == "sandbox":
        request.getfixturevalue("bubblewrap")
    sandbox = "require" if request.param == "sandbox" else "off"
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox=sandbox, cgroups="require"))
    yield place
    place.clear()


def group_of(handle):
    return JobGroup.from_handle(handle["control_group"], handle["name"])


@pytest.mark.integration
@pytest.mark.parametrize("then", ["exit $?", "echo go on", "exit 0"])
def test_the_kernel_keeps_a_job_within_its_memory(place, then):
    """No process ever has more, and the job's end has the reason, however fast the rest of its command is."""
    handle = place.launch(place.spec(f"{HOG}; {then}", memory_mb=100))
    ended = place.wait(handle)
    assert (ended.code, ended.reason, ended.detail) == (137, "out_of_memory", "100 MiB")


@pytest.mark.integration
def test_a_job_that_outlives_its_killed_process_is_ended(place):
    spec = place.spec(f"{HOG} & sleep 600", memory_mb=100)
    assert place.wait(place.launch(spec)).reason == "out_of_memory"


@pytest.mark.integration
def test_half_a_cpu_is_half_a_cpu(place):
    spec, handle = place.running(f"echo up; '{PYTHON}' -c 'while True: pass'", cpus=0.5)
    begin = [group_of(handle).cpu_seconds(), os.times().elapsed]
    place.backend.sample(handle)
    wait_until(lambda: group_of(handle).cpu_seconds() > begin[0] + 1, "a second of CPU time")
    assert os.times().elapsed - begin[1] > 1.6, "at full speed it would take one second"
    assert 0 < place.backend.sample(handle)["cpu_percent"] < 75
    assert spec.name in str(group_of(handle).cpu)


@pytest.mark.integration
@pytest.mark.usefixtures("bubblewrap", "control_groups")
def test_a_job_has_no_more_processes_than_it_may(tmp_path):
    process = ProcessSettings(sandbox="require", cgroups="require")
    place = BackendHarness("process", tmp_path, DockerSettings(pids=64), process=process)
    spec = place.spec(f"{PYTHON} -c 'import os, time\nfor _ in range(99): os.fork() or time.sleep(600)'")
    handle = place.launch(spec)
    group = group_of(handle)
    wait_until(lambda: "max 0" not in (group.processes / "pids.events").read_text(), "its limit to be reached")
    assert int((group.processes / "pids.peak").read_text()) <= 64
    assert place.wait(handle).code != 0
    assert b"Resource temporarily unavailable" in place.output(spec)
    place.backend.destroy(handle)
    assert not any(folder.exists() for folder in group.folders)


@pytest.mark.integration
def test_a_job_and_what_it_started_are_in_its_group_until_it_is_removed(place):
    _, handle = place.running("setsid sleep 600 & echo up; sleep 600")
    group = group_of(handle)
    assert json.loads(json.dumps(handle)) == handle
    wait_until(lambda: len((group.memory / "cgroup.procs").read_text().split()) >= 3, "all processes")
    assert place.backend.sample(handle)["memory_bytes"] > 0
    place.backend.destroy(handle)
    assert not any(folder.exists() for folder in group.folders)
    place.backend.destroy(handle)


@pytest.mark.integration
def test_a_job_is_measured_and_stopped_without_a_look_at_every_process(place, monkeypatch):
    def refuse(*_):
        raise AssertionError("all processes of the host were read")

    _, handle = place.running("setsid sleep 600 & echo up; sleep 600 & wait")
    members = place.backend.processes(handle)
    wait_until(lambda: members.usage(UsageMeter())[2] >= 4, "all processes")
    with monkeypatch.context() as patched:
        for name in ("pids", "process_iter", "_ppid_map"):
            patched.setattr(psutil, name, refuse)
        sample = place.backend.sample(handle)
        if handle["sandboxed"]:  # a process without a sandbox can leave its group
            place.backend.signal(handle, grace=False)
            assert wait_until(lambda: place.backend.ended(handle), "its end").code == 137
    assert sample["processes"] == 4
    place.backend.destroy(handle)


@pytest.mark.integration
@pytest.mark.usefixtures("bubblewrap", "control_groups")
@pytest.mark.parametrize("delay", [None, 0, 0.2])
def test_a_sandbox_is_in_its_group_before_its_command_runs(tmp_path, monkeypatch, delay):
    """However far bubblewrap is: all of its processes are listed by then, or were born in the group."""
    started, move = [], JobGroup.move
    if delay is not None:  # as in version 2
        monkeypatch.setattr(JobGroup, "joined_at_once", False)
        monkeypatch.setattr(JobGroup, "move", lambda group, pid: (time.sleep(delay), move(group, pid)))
    monkeypatch.setattr(
        "worker.backends.process.backend.start_sandboxed",
        lambda *args: started.append(start_sandboxed(*args)) or started[0],
    )
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="require", cgroups="require"))
    _, handle = place.running("echo up; sleep 600")
    bubblewrap = psutil.Process(started[0].bubblewrap.pid)
    processes = {str(process.pid) for process in (bubblewrap, *bubblewrap.children(recursive=True))}
    assert len(processes) >= 3
    for folder in group_of(handle).folders:
        assert processes <= set((folder / "cgroup.procs").read_text().split())
    place.clear()


def test_without_groups_where_they_are_required_no_job_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("worker.backends.process.backend.control_group_support", lambda _: (None, "nothing is mounted"))
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="off", cgroups="require"))
    with pytest.raises(LaunchError, match="nothing is mounted"):
        place.launch(place.spec("true"))


class FakeKernel:
    """Folders that look like mounted control groups; a new folder gets the files that the kernel would make."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.proc = root / "proc"
        self.proc.mkdir()
        make = Path.mkdir
        monkeypatch.setattr(Path, "mkdir", lambda path, *args, **options: self._fill(make, path, *args, **options))
        monkeypatch.setattr(groups, "_removed", lambda folder: shutil.rmtree(folder) or True)

    def _fill(self, make, path, *args, **options):
        make(path, *args, **options)
        for name in SEPARATE.get(path.relative_to(self.root).parts[0], UNIFIED):
            (path / name).touch()

    def mount(self, name, kind, options, own, *, inner="/"):
        with (self.proc / "mountinfo").open("a") as file:
            file.write(f"30 25 0:1 {inner} {self.root / name} rw - {kind} cgroup rw,{options}\n")
        with (self.proc / "cgroup").open("a") as file:
            file.write(f"1:{options if kind == 'cgroup' else ''}:{own}\n")
        folder = self.root / name / own.removeprefix(inner).lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    return FakeKernel(tmp_path, monkeypatch)


def unified(kernel, own, monkeypatch, *, delegated=True, controllers="cpuset cpu memory pids"):
    folder = kernel.mount("two", "cgroup2", "nsdelegate", own)
    (kernel.root / "two" / "cgroup.controllers").write_text(controllers)
    for parent in {folder, folder.parent} - {kernel.root}:
        (parent / "cgroup.subtree_control").write_text("pids")
        (parent / "cgroup.controllers").write_text(controllers)
    monkeypatch.setattr(groups.os, "getxattr", lambda *_: b"1" if delegated else b"0")
    return folder


def test_version_2_in_a_delegated_group(kernel, monkeypatch, tmp_path):
    own = unified(kernel, "/system.slice/worker.service/main", monkeypatch)
    found = find_control_groups(kernel.proc)
    assert (found.version, found.memory) == (2, own.parent)
    assert (own.parent / "cgroup.subtree_control").read_text() == "+cpu +memory"
    assert not list(own.parent.glob("gradient-*")), "the probe is removed"
    group = found.group("j1-1")
    group.create(64 * 1024**2, 1.5, 99)
    assert (group.processes / "pids.max").read_text() == "99"
    assert (group.memory / "memory.max").read_text() == str(64 * 1024**2)
    assert (group.memory / "memory.swap.max").read_text() == "0"
    assert (group.cpu / "cpu.max").read_text() == "150000 100000"
    (group.memory / "memory.events").write_text("low 0\noom 1\noom_kill 0\n")
    assert not group.out_of_memory()
    (group.memory / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert group.out_of_memory()
    (group.cpu / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (group.memory / "memory.current").write_text("1000\n")
    (group.memory / "memory.stat").write_text("anon 600\ninactive_file 200\nactive_file 100\n")
    assert (group.cpu_seconds(), group.memory_bytes()) == (2.5, 700)
    stored = json.loads(json.dumps(group.to_handle()))
    assert JobGroup.from_handle(stored, "j1-1", kernel.proc) == group
    assert JobGroup.from_handle(stored, "j2-1", kernel.proc) is None, "it is another attempt's"
    for elsewhere in (tmp_path, own.parent / "../../.."):
        changed = stored | {"kill": str(elsewhere / "gradient-j1-1")}
        assert JobGroup.from_handle(changed, "j1-1", kernel.proc) is None, "it is a folder of no hierarchy"
    assert (group.join_files, group.joined_at_once) == ([str(group.memory / "cgroup.procs")], False)
    assert found.of_sandboxes() == found


@pytest.mark.parametrize(
    ("own", "delegated", "controllers", "why"),
    [
        ("/user.slice/shell.scope", False, "cpu memory", "is not delegated"),
        ("/system.slice/worker.service/main", True, "pids", "no control groups with the controller memory"),
    ],
)
def test_what_version_2_lacks_is_said(kernel, monkeypatch, own, delegated, controllers, why):
    unified(kernel, own, monkeypatch, delegated=delegated, controllers=controllers)
    with pytest.raises(NoControlGroups, match=why):
        find_control_groups(kernel.proc)


def test_version_1_with_version_2_for_the_end(kernel):
    """The mount shows only a part of the hierarchy, as in a container."""
    memory = kernel.mount("memory", "cgroup", "memory", "/docker/a/b", inner="/docker/a")
    cpu = kernel.mount("cpu", "cgroup", "cpu", "/")
    usage = kernel.mount("cpuacct", "cgroup", "cpuacct", "/")
    pids = kernel.mount("pids", "cgroup", "pids", "/")
    kill = kernel.mount("unified", "cgroup2", "nsdelegate", "/")
    (kill / "cgroup.controllers").write_text("hugetlb")
    found = find_control_groups(kernel.proc)
    assert (found.version, found.memory, found.cpu, found.usage, found.kill) == (1, memory, cpu, usage, kill)
    assert memory == kernel.root / "memory" / "b"
    group = found.group("j1-1")
    group.create(64 * 1024**2, 0.001, 99)
    assert (pids, (group.processes / "pids.max").read_text()) == (found.processes, "99")
    assert (group.memory / "memory.limit_in_bytes").read_text() == str(64 * 1024**2)
    assert (group.cpu / "cpu.cfs_quota_us").read_text() == "1000"
    (group.memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (group.usage / "cpuacct.usage").write_text("1500000000\n")
    assert (group.out_of_memory(), group.cpu_seconds()) == (True, 1.5)
    group.kill_all()
    assert (group.kill / "cgroup.kill").read_text() == "1"
    threads = [str(folder / "tasks") for folder in (group.memory, group.cpu, group.usage, group.processes)]
    assert (group.join_files, group.joined_at_once) == ([*threads, str(group.kill / "cgroup.procs")], False)
    sandboxed = found.of_sandboxes().group("j1-1")
    assert (sandboxed.join_files, sandboxed.joined_at_once) == (threads, True)
    group.remove()
    assert not group.exists()


def test_a_machine_without_control_groups(kernel):
    (kernel.proc / "cgroup").write_text("")
    (kernel.proc / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    with pytest.raises(NoControlGroups, match="controller memory are mounted"):
        find_control_groups(kernel.proc)
