"""Jobs in a sandbox that try to escape their limits; `test_contract.py` asks the rest of them as of every backend."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.backend_harness import BackendHarness
from support.declared_environment import PROGRAM
from support.deployment import wait_until

from core.formatting import MIB, format_memory
from core.settings.worker import ProcessSettings
from worker.backends.base import LaunchError
from worker.backends.process.job_sandbox import EXIT_REFUSED, JobSandbox, unshowable_path
from worker.backends.process.network.job_network import HOST_NETWORK, join_network_of
from worker.backends.process.sandbox_processes import SandboxProcesses, find_sandbox
from worker.backends.process.sandbox_start import start_sandboxed

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("bubblewrap"),
]


@pytest.fixture
def place(tmp_path):
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="require"))
    yield place
    place.clear()


def test_a_process_that_forgets_its_environment_and_session_ends_with_the_job(place):
    spec, handle = place.running("(env -i setsid sleep 600 &) ; echo up; sleep 600")
    wait_until(lambda: place.backend.sample(handle).get("processes", 0) >= 4, "all of its processes")
    place.backend.destroy(handle)
    assert place.backend.owned() == []
    assert place.output(spec) == b"up\n"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_that_overwrites_what_names_its_sandbox_ends_with_its_attempt(tmp_path, restarted):
    """A job with the worker's own user may do so; here the test does it, because it may be root."""
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="require", cgroups="off"))
    _, handle = place.running("echo up; sleep 600")
    first = place.backend.sandboxes[handle["name"]]
    start, end = map(int, Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[47:49])
    with Path(f"/proc/{first}/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(b"x" * (end - start))
    backend = place.new_instance() if restarted else place.backend
    assert backend.ended(handle) is None
    backend.destroy(handle)
    assert not psutil.pid_exists(first)


def test_a_job_that_declares_another_environment_for_its_processes_ends_with_its_attempt(tmp_path):
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="require", cgroups="off"))
    spec = place.spec(f"(setsid {Path(sys.executable).resolve()} -I -S declare.py {64 * MIB} '' &); sleep 600")
    (spec.workspace / "declare.py").write_text(PROGRAM)
    handle = place.launch(spec)
    wait_until(lambda: place.output(spec) == b"up\n", "its first line")
    processes = list(place.backend.processes(handle).all())
    assert len(processes) >= 3
    place.new_instance().destroy(handle)
    assert not any(psutil.pid_exists(process.pid) for process in processes)


def test_without_control_groups_the_processes_of_the_host_are_read_once_for_all_jobs(tmp_path, monkeypatch):
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="require", cgroups="off"))
    handles = [place.running(f"setsid sleep 600 & echo up; sleep 60{n} & wait")[1] for n in range(3)]
    for handle in handles:
        wait_until(lambda handle=handle: place.backend.sample(handle)["processes"] == 4, "all of its processes")
    looks, pids = [], psutil.pids
    monkeypatch.setattr(psutil, "pids", lambda: looks.append(1) or pids())
    began = time.monotonic()
    samples = [place.backend.sample(handle) for _ in range(5) for handle in handles]
    assert len(looks) <= 1 + (time.monotonic() - began)
    assert {sample["processes"] for sample in samples} == {4}
    assert all(sample["memory_bytes"] > 0 for sample in samples)
    place.clear()


def test_a_job_over_its_memory_is_ended_although_it_hides(place):
    hog = f"{Path(sys.executable).resolve()} -c \"import time; x = b'x' * 200_000_000; time.sleep(600)\""
    handle = place.launch(place.spec(f"env -i PATH=$PATH setsid {hog}", memory_mb=100))
    assert place.wait(handle).reason == "out_of_memory"


def test_a_sandbox_that_cannot_be_made_fails_the_start(place):
    spec = place.spec("true")
    shutil.rmtree(spec.datasets)
    with pytest.raises(LaunchError, match="its sandbox could not be created: bwrap"):
        place.launch(spec)


def test_a_sandbox_whose_worker_has_ended_starts_no_command(place):
    spec = place.spec("true")
    start = start_sandboxed(spec, JobSandbox(place.settings), {})
    start.channel.close()
    assert start.bubblewrap.wait() == EXIT_REFUSED
    assert not (spec.control / "start.lock").exists()


def test_shared_memory_has_the_size_that_the_job_asks_for(place):
    spec = place.spec("df --output=size -B1 /dev/shm | tail -1", shared_mem_mb=64)
    assert place.wait(place.launch(spec)).code == 0
    assert int(place.output(spec)) == 64 * MIB


@pytest.mark.parametrize("shown", [[], ["/opt"], ["/srv", "/var"]], ids=["none", "opt", "others"])
def test_the_folders_that_programs_expect_are_there(tmp_path, shown):
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="require", readable=shown))
    spec = place.spec("ls -d /opt /run /srv /var/tmp; ls -A /opt")
    assert place.wait(place.launch(spec)).code == 0
    in_opt = {path.name for path in Path("/opt").iterdir()} if "/opt" in shown else set()
    assert set(place.output(spec).decode().splitlines()[4:]) == in_opt
    place.clear()


@pytest.mark.parametrize("home", ["/storage/gradient", "/artifacts"])
def test_a_home_below_what_is_kept_of_a_job_is_refused(place, home):
    assert f"GRADIENT_HOME names {home}, " in unshowable_path(place.settings.model_copy(update={"home": Path(home)}))


@pytest.mark.parametrize("path", ["/paperspace/data", "/tmp", "/", "/dev/shm"])
def test_what_jobs_cannot_be_shown_of_the_host_is_refused(tmp_path, path):
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="require", readable=[path]))
    with pytest.raises(LaunchError, match=f"GRADIENT_PROCESS__READABLE names {path}, "):
        place.launch(place.spec("true"))


@pytest.mark.parametrize("shell", ["bash -lc", "sh -lc", """bash -c '. /etc/profile; eval "$0"'"""])
def test_a_login_shell_has_the_path_of_the_job(place, shell):
    spec = place.spec(
        f"PATH=/paperspace/bin:$PATH; echo $PATH; {shell} 'echo $PATH'", env={"PATH": "/usr/bin:/bin:/nowhere"}
    )
    assert place.wait(place.launch(spec)).code == 0
    assert place.output(spec).split() == [b"/paperspace/bin:/usr/bin:/bin:/nowhere"] * 2


def test_each_temporary_folder_is_the_jobs_own(place):
    spec = place.spec("echo a >/tmp/one; echo b >/var/tmp/one; cat /tmp/one /var/tmp/one; ls /tmp /var/tmp | wc -l")
    assert place.wait(place.launch(spec)).code == 0
    assert place.output(spec).split() == [b"a", b"b", b"5"]
    assert not Path("/var/tmp/one").exists()


@pytest.mark.parametrize(("limits", "size"), [({}, 1024), ({"memory_mb": 48}, 48)], ids=["none", "memory"])
def test_what_a_job_can_write_to_memory_is_limited(tmp_path, limits, size):
    """Also where the folder that hides GRADIENT_HOME is in memory, and the job has the worker's own user."""
    (tmp_path / "home").mkdir()
    process = ProcessSettings(sandbox="require", readable=[tmp_path])
    place = BackendHarness("process", tmp_path / "home", process=process)
    spec = place.spec("cat /proc/self/mountinfo", **limits)
    assert place.wait(place.launch(spec)).code == 0
    mounts = [line.split() for line in place.output(spec).decode().splitlines() if " - tmpfs " in line]
    writable = {mount[4]: mount[-1].split(",") for mount in mounts if "ro" not in mount[5].split(",")}
    assert len(mounts) >= 4
    assert list(writable) == ["/dev/shm"]
    assert f"size={size * 1024}k" in writable["/dev/shm"]
    place.clear()


IN_SHARED_MEMORY = """
import mmap, sys, time
with open("/dev/shm/data", "w+b") as file:
    for _ in range(48):
        file.write(b"x" * (1 << 20))
    file.flush()
    mapped = mmap.mmap(file.fileno(), 0)
if sys.argv[1] == "mapped":
    read = [mapped[n] for n in range(0, len(mapped), 4096)]
else:
    mapped.close()
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def measured(tmp_path):
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="require", cgroups="off"))
    yield place
    place.clear()


def in_shared_memory(place, how, **limits):
    spec = place.spec(f"exec {Path(sys.executable).resolve()} -I -S own.py {how}", **limits)
    (spec.workspace / "own.py").write_text(IN_SHARED_MEMORY)
    return spec, place.launch(spec)


def test_files_in_memory_count_towards_the_memory_limit_where_it_is_measured(measured):
    _, handle = in_shared_memory(measured, "unmapped", memory_mb=48)
    ended = measured.wait(handle)
    assert (ended.reason, "48 MiB" in ended.detail) == ("out_of_memory", True)


@pytest.mark.parametrize("how", ["mapped", "unmapped"])
def test_files_in_memory_are_measured_once(measured, how):
    spec, handle = in_shared_memory(measured, how)
    wait_until(lambda: measured.output(spec) == b"up\n", "the file")
    wait_until(lambda: measured.backend.sample(handle)["memory_bytes"] > 48 * MIB, "all of its processes")
    assert measured.backend.sample(handle)["memory_bytes"] < 80 * MIB


USED_TOGETHER = """
import mmap, os, sys, time
size, how = 48 << 20, sys.argv[1]
if how == "file":
    with open("data", "wb") as file:
        file.write(b"x" * size)
    with open("data", "rb") as file:
        held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
elif how == "map":
    held = mmap.mmap(-1, size)
else:
    held = bytearray(size)
if how != "file":
    for n in range(0, size, 4096):
        held[n] = 1
for _ in range(3):
    if os.fork() == 0:
        break
for n in range(0, size, 4096):
    if how == "changed":
        held[n] = 2
    else:
        held[n]
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("how", "low", "high"), [("forked", 48, 96), ("map", 48, 96), ("file", 0, 40), ("changed", 192, 240)]
)
def test_memory_that_processes_share_is_counted_once_and_files_of_disks_not(measured, how, low, high):
    spec = measured.spec(f"exec {Path(sys.executable).resolve()} -I -S own.py {how}", memory_mb=high)
    (spec.workspace / "own.py").write_text(USED_TOGETHER)
    handle = measured.launch(spec)
    wait_until(lambda: measured.output(spec) == b"up\n" * 4, "four processes")
    wait_until(lambda: low * MIB <= measured.backend.sample(handle)["memory_bytes"] < high * MIB, "their memory")
    assert measured.backend.ended(handle) is None


def test_a_job_whose_processes_use_too_much_together_tells_how_much(measured):
    spec = measured.spec(f"{Path(sys.executable).resolve()} -I -S own.py changed", memory_mb=150)
    (spec.workspace / "own.py").write_text(USED_TOGETHER)
    ended = measured.wait(measured.launch(spec))
    assert (ended.reason, ended.memory_bytes > 150 * MIB) == ("out_of_memory", True)
    assert f"{format_memory(ended.memory_bytes)} used" in ended.detail


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives jobs users of their own")
def test_the_user_of_a_job_has_a_name_and_a_home(place):
    spec = place.spec("id -un; getent passwd root; env -i HOME= /bin/bash -c 'cd ~gradient && pwd'")
    assert place.wait(place.launch(spec)).code == 0
    name, root, home = place.output(spec).decode().splitlines()
    assert (name, root.split(":")[2], home) == ("gradient", "0", "/home/gradient")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives jobs users of their own")
def test_a_job_has_none_of_roots_groups_and_capabilities(place):
    spec = place.spec("grep -E '^(Uid|Gid|Groups|Cap(Prm|Eff|Amb)|NoNewPrivs):' /proc/self/status")
    assert place.wait(place.launch(spec)).code == 0
    lines = (line.split(":") for line in place.output(spec).decode().splitlines())
    found = {name: set(values.split()) for name, values in lines}
    own, nothing = {str(spec.workspace.stat().st_uid)}, {"0" * 16}
    assert own != {"0"}
    assert found == {"Uid": own, "Gid": own, "Groups": set(), "NoNewPrivs": {"1"}} | dict.fromkeys(
        ("CapPrm", "CapEff", "CapAmb"), nothing
    )


def test_a_job_can_read_the_authority_of_a_simulated_cloud_storage(tmp_path, tmp_path_factory):
    """TensorFlow's `gs://` needs it, and it is in the host's /tmp, which the sandbox hides."""
    authority = tmp_path_factory.mktemp("cloud") / "ca.pem"
    authority.write_text("trusted\n")
    place = BackendHarness("process", tmp_path, process=ProcessSettings(sandbox="require"), gcs={"ca": authority})
    spec = place.spec(f"cat {authority}")
    assert place.wait(place.launch(spec)).code == 0
    assert place.output(spec) == b"trusted\n"
    place.clear()


def test_a_job_of_this_worker_is_found_and_ended_without_a_look_at_every_process(place, monkeypatch):
    def refuse(*_):
        raise AssertionError("all processes of the host were read")

    with monkeypatch.context() as patched:
        for name in ("pids", "process_iter"):
            patched.setattr(psutil, name, refuse)
        _, handle = place.running("sleep 600 & setsid sleep 600 & echo up; wait")
        assert place.backend.ended(handle) is None
        place.backend.destroy(handle)
    assert find_sandbox(handle["job_id"], handle["attempt"]) is None


def test_a_process_that_has_the_number_of_a_sandbox_that_ended_is_not_the_job_s():
    """Nor are all that share its process table, the host's."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as another:  # it ends with its input
        sandbox = SandboxProcesses.of("j0123456789abc", 1, another.pid)
        assert list(sandbox.all()) == list(sandbox.recent()) == []


def test_the_network_of_another_node_can_be_entered_when_that_node_has_just_ended(place):
    _, handle = place.running("echo up; sleep 600")
    attempt = handle["job_id"], handle["attempt"]
    shared = join_network_of(*attempt, HOST_NETWORK)
    network = str(Path(f"/proc/{find_sandbox(*attempt)}/ns/net").readlink())
    place.backend.destroy(handle)
    words = [*shared.enter, "readlink", "/proc/self/ns/net"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == network
    assert join_network_of(*attempt, HOST_NETWORK) is HOST_NETWORK
