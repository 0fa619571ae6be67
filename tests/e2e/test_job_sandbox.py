"""A job that sets out to read and change what is not its own, from a worker that is root and from one that is not."""

import json
import os
import platform
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest
from support.deployment import CLI_PROGRAM, ORDINARY, Deployment, wait_until
from support.live_folder import find

CANARY = "canary-5e1f"

# Where parts of /proc are covered, as in containers, the kernel mounts no other /proc in a user's namespace.
COVERED = (
    *("unshare", "--mount", "sh", "-c"),
    'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$0" "$@"',
    *ORDINARY,
)

PROBE = """
import glob, json, os, pathlib, signal, sys

home, service, pids = sys.argv[1], sys.argv[2], [int(pid) for pid in sys.argv[3:]]


def works(action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return False
    return True


def readable(pattern):
    return [path for path in glob.glob(pattern, recursive=True) if works(open, path)]


def environments():
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            yield pathlib.Path(path).read_text(errors="replace")
        except OSError:
            pass


packages = os.path.join(service, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
works(lambda path: open(path, "a").write("canary"), f"{service}/bin/pip")
print("FOUND" + json.dumps({
    "service": readable(f"{home}/*"),
    "attempts": [path for path in glob.glob(f"{home}/attempts/*") if os.environ["GRADIENT_JOB_ID"] not in path],
    "projects": glob.glob(f"{home}/storage/projects/*"),
    "homes": [path for path in ("/root/.ssh", "/var/log", "/etc/shadow") if os.path.exists(path)],
    "environment": sorted(name for name, value in os.environ.items() if "canary-5e1f" in value),
    "environments": sum("canary-5e1f" in text for text in environments()),
    "signalled": [pid for pid in pids if works(os.kill, pid, 0)],
    "written": [path for path in (f"{packages}/canary.py", "/usr/canary", "/etc/canary", "/canary",
                                  "/storage/datasets/canary", "/.gradient/run.sh", "/proc/sys/kernel/core_pattern",
                                  "/sys/devices/system/cpu/canary")
                if service != "-" and works(open, path, "a")],
    "root": os.geteuid() == 0 or works(os.setuid, 0),
    "folders": sorted(path for path in ("/paperspace/w", "/artifacts/a", "/storage/s", "/tmp/t", "/dev/shm/m",
                                        "/var/tmp/v", "/opt/o", "/run/r", "/srv/s", "/var/v",
                                        os.path.expanduser("~/h")) if works(open, path, "w")),
}))
"""
KERNEL = """
import ctypes, errno, mmap, os, platform, signal, socket

library = ctypes.CDLL(None, use_errno=True)
calls = {"x86_64": (248, 249, 250, 425), "aarch64": (217, 218, 219, 425)}[platform.machine()]


def other_architecture():
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))  # getpid() as a program of 32 bits
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()


def works(family):
    try:
        socket.socket(family, socket.SOCK_RAW if family == socket.AF_NETLINK else socket.SOCK_STREAM).close()
    except OSError as error:
        return error.errno != errno.EAFNOSUPPORT
    return True


for number in calls:
    if library.syscall(number, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.ENOSYS:
        print("call", number)
print(*(family for family in range(1, 50) if works(family)))
if platform.machine() == "x86_64":
    child = os.fork()
    if child == 0:
        other_architecture()
        os._exit(0)
    print(os.waitpid(child, 0)[1] & 0x7F == signal.SIGSYS)
"""
LEAVES = """
for folder in /storage /artifacts . ; do
    cp /bin/sh $folder/left && chmod 6777 $folder/left && chmod 0777 $folder
    for kind in b c; do mknod $folder/device-$kind $kind 1 1 2>/dev/null && echo made; done
done
echo up; while [ ! -e /storage/over ]; do sleep 0.1; done
"""
NOBODY = 65534
FOLDERS = ["/artifacts/a", "/dev/shm/m", "/home/gradient/h", "/paperspace/w", "/storage/s", "/tmp/t", "/var/tmp/v"]

pytestmark = pytest.mark.usefixtures("bubblewrap")


def started(deployment, inside, **settings):
    deployment.start_api()
    worker = deployment.start_worker(inside=inside, GRADIENT_WORKER_TOKEN=CANARY, **settings)
    neighbour = deployment.submit(
        'echo "$SECRET" >secret; cp secret "$GRADIENT_STORAGE_DIR"; echo up; exec sleep 600',
        project="theirs",
        envVars={"SECRET": CANARY},
    )
    wait_until(lambda: b"up" in deployment.raw_log(neighbour), "the neighbour to run")
    return worker, neighbour


def probe(deployment, pids, service=sys.prefix):
    """Run PROBE; `service` is the service's environment, which it tries to change: `-` for a job that could."""
    words = shlex.join([str(deployment.home), service, *map(str, pids)])
    job = deployment.submit(f"python - {words} <<'END'\n{PROBE}\nEND\n", project="mine")
    ended = deployment.wait_ended(job)
    log = deployment.raw_log(job).decode()
    assert ended["exitCode"] == 0, log
    return job, json.loads(log.partition("FOUND")[2])


@pytest.mark.parametrize(
    "inside",
    [
        pytest.param((), id="worker-as-it-is"),
        pytest.param(ORDINARY, id="worker-of-another-user"),
        pytest.param(
            COVERED,
            id="no-proc",
            marks=[pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")],
        ),
    ],
)
def test_a_job_reaches_nothing_but_its_own(deployment, inside):
    worker, neighbour = started(deployment, inside, GRADIENT_PROCESS__SANDBOX="require")
    theirs = [process.pid for process in deployment.find_job_processes(neighbour)]
    job, found = probe(deployment, [worker.pid, os.getpid(), *theirs])
    assert found.pop("folders") == FOLDERS
    assert {name: value for name, value in found.items() if value} == {}
    assert "canary" not in (Path(sys.prefix) / "bin" / "pip").read_text()
    assert [file["path"] for file in deployment.artifacts(job)["files"]] == ["a"]
    assert deployment.job(neighbour)["sandboxed"] is True
    assert deployment.job(neighbour)["state"] == "Running"
    wait_until(lambda: not any(name.startswith(job) for name in deployment.scratch()), "its folders to be removed")


@pytest.mark.parametrize(
    "inside", [(), pytest.param(ORDINARY, marks=pytest.mark.slow)], ids=["worker-as-it-is", "worker-of-another-user"]
)
def test_a_job_installs_packages_for_itself(deployment, inside):
    deployment.start_api()
    deployment.start_worker(inside=inside, GRADIENT_PROCESS__SANDBOX="require")
    installed = (
        "pip --version && (cd $VIRTUAL_ENV/lib/python*/site-packages && touch canary.py) && python -c 'import canary'"
    )
    service = "core service worker gradient_server migrations fastapi sqlalchemy pydantic numpy"
    unseen = "; ".join(f"! python -c 'import {name}' || exit 3" for name in service.split())
    seen = f"uv --version && [ $(ls '{sys.prefix}') = bin ] && [ $(ls '{sys.prefix}/bin') = uv ]"
    job = deployment.submit(f"{unseen}; {installed} && {seen}")
    assert deployment.wait_ended(job)["exitCode"] == 0, deployment.raw_log(job)
    other = deployment.submit("python -c 'import canary'")
    assert deployment.wait_ended(other)["exitCode"] == 1


def test_without_a_sandbox_a_job_reaches_them_and_everyone_is_told(deployment):
    worker, neighbour = started(deployment, (), GRADIENT_PROCESS__SANDBOX="off")
    _job, found = probe(deployment, [worker.pid], service="-")
    assert str(deployment.home / "gradient.db") in found["service"]
    assert found["environments"] >= 1
    assert deployment.job(neighbour)["sandboxed"] is False
    assert "without a sandbox" in str(deployment.events(neighbour))
    doctor = deployment.start("doctor", GRADIENT_PROCESS__SANDBOX="off")
    doctor.wait()
    assert "can read this machine's files" in doctor.read_log()
    with httpx.Client(base_url=deployment.cli_json["url"], headers={"accept": "text/html"}) as browser:
        signed_in = {"key": deployment.cli_json["apiKey"]}
        browser.post("/ui/login", data=signed_in, headers={"sec-fetch-site": "same-origin"})
        for page in ("", "/log", "/metrics", "/artifacts", "/config", "/events"):
            assert "No sandbox: this job runs as" in browser.get(f"/ui/jobs/{neighbour}{page}").text


@pytest.mark.parametrize("inside", [(), ORDINARY], ids=["worker-as-it-is", "worker-of-another-user"])
def test_a_job_has_no_keys_of_the_kernel_and_no_sockets_outside_its_network(deployment, inside):
    deployment.start_api()
    deployment.start_worker(inside=inside, GRADIENT_PROCESS__SANDBOX="require")
    command = f"cat >program.py <<'END'\n{KERNEL}\nEND\npython program.py"
    first = deployment.submit(f"{command}; touch /artifacts/up; exec sleep 600")
    member = deployment.submit(command, array="0-1", arrayReuse="on")
    printed = f"{socket.AF_UNIX:d} {socket.AF_INET:d} {socket.AF_INET6:d} {socket.AF_NETLINK:d}\n"
    printed += "True\n" if platform.machine() == "x86_64" else ""
    wait_until(lambda: deployment.raw_log(first).decode() == printed, "what it finds")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENT_")}
    environment["GRADIENT_HOME"] = str(deployment.home)
    words = [CLI_PROGRAM, "jobs", "exec", first, "--", "python", "program.py"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (printed, "")
    assert deployment.wait_ended(member)["exitCode"] == 0
    assert deployment.raw_log(member).decode() == printed


@pytest.mark.parametrize("inside", [(), ORDINARY], ids=["worker-as-it-is", "worker-of-another-user"])
def test_a_session_has_no_descriptor_of_the_hosts_programs(deployment, inside):
    """By /proc/self/exe a command reaches the program that started it."""
    deployment.start_api()
    deployment.start_worker(inside=inside, GRADIENT_PROCESS__SANDBOX="require")
    job = deployment.submit("touch /artifacts/up; exec sleep 600")
    wait_until(lambda: deployment.job(job)["state"] == "Running", "it to run")
    done = deployment.cli("jobs", "exec", job, "--", "/proc/self/exe", "readlink", "/proc/self/exe")
    assert Path(done.stdout.strip()).name == "readlink"
    python = "import os; print(os.statvfs('/proc/self/exe').f_flag & os.ST_RDONLY)"
    for words in (("/proc/self/exe", "python", "-c", python), ("python", "-c", python)):
        assert deployment.cli("jobs", "exec", job, "--", *words).stdout == "1\n"
    assert deployment.cli("jobs", "exec", job, "--", "/proc/self/exe", "-c", "1", code=None).returncode != 0


def without_bubblewrap():
    return ["bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--ro-bind", "/dev/null", shutil.which("bwrap"), "--"]


def test_without_a_sandbox_jobs_of_one_key_run_and_those_of_two_do_not(deployment):
    deployment.start_api()
    rare = {"GRADIENT_WORKER__SWEEP_SECONDS": "5"}
    worker = deployment.start_worker(inside=without_bubblewrap(), GRADIENT_PROCESS__SANDBOX="auto", **rare)
    deployment.wait_ended(deployment.submit("true"))
    create = deployment.start("keys", "create", "bob")
    assert create.wait() == 0
    job = deployment.submit("true")
    wait_until(lambda: "more than one API key is valid" in worker.read_log(), "the worker to say so")
    assert "jobs have no sandbox here" in wait_until(lambda: refusal(deployment), "the list to say so, too")
    waiting = deployment.job(job)
    assert (waiting["state"], waiting["reason"]) == ("Pending", "no_worker")
    assert "Worker w1 does not take such jobs (process: jobs have no sandbox here" in waiting["message"]
    [other] = [one["id"] for one in deployment.request("GET", "/keys").json()["keys"] if one["name"] == "bob"]
    assert deployment.start("keys", "revoke", other).wait() == 0
    assert deployment.wait_ended(job)["state"] == "Stopped"
    assert refusal(deployment) is None


def refusal(deployment):
    [worker] = deployment.request("GET", "/workers").json()["workers"]
    assert (worker["state"] == "refusing") is (worker["refusal"] is not None)
    return worker["refusal"]


def test_where_a_sandbox_is_required_and_missing_no_job_runs(deployment):
    deployment.start_api()
    worker = deployment.start_worker(inside=without_bubblewrap(), GRADIENT_PROCESS__SANDBOX="require")
    job = deployment.submit("true")
    wait_until(lambda: "GRADIENT_PROCESS__SANDBOX=require" in worker.read_log(), "the worker to say so")
    assert deployment.job(job)["state"] == "Pending"


def test_a_job_outlives_its_worker_and_the_next_one_stops_it(deployment):
    deployment.start_api()
    timers = {"GRADIENT_WORKER__LEASE_SECONDS": "1", "GRADIENT_WORKER__SWEEP_SECONDS": "0.5"}
    sandboxed = {"GRADIENT_PROCESS__SANDBOX": "require", **timers}
    worker = deployment.start_worker(**sandboxed)
    job = deployment.submit(
        "trap 'echo saved >$GRADIENT_ARTIFACTS_DIR/model; exit 5' TERM; echo up; while :; do sleep 0.1; done"
    )
    wait_until(lambda: b"up" in deployment.raw_log(job), "the job to run")
    worker.kill()
    deployment.start_worker("w2", **sandboxed)
    wait_until(lambda: "adopted" in {event["kind"] for event in deployment.events(job)}, "the adoption")
    deployment.request("POST", f"/jobs/{job}/stop")
    ended = deployment.wait_ended(job)
    assert (ended["state"], ended["attempt"]) == ("Cancelled", 1)
    assert deployment.artifact(job, "model") == b"saved\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_what_a_job_leaves_with_the_setuid_bit_is_run_by_nobody_else():
    """Also where an administrator has opened GRADIENT_HOME to all users of the host."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        home.mkdir()
        for one in (home.parent, home):
            one.chmod(0o755)
        deployment = Deployment(home)
        try:
            deployment.start_api()
            deployment.start_worker(GRADIENT_PROCESS__SANDBOX="require")
            job = deployment.submit(LEAVES)
            wait_until(lambda: b"up" in deployment.raw_log(job), "the job to run")
            left = list(find(home, "left"))
            assert len(left) == 3
            for path in left:
                assert path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)
                assert path.stat().st_uid != 0
                with pytest.raises(PermissionError):
                    subprocess.run([path, "-c", "true"], user=NOBODY, group=NOBODY, extra_groups=[], check=True)
            assert deployment.wait_ended(deployment.submit("touch /storage/over"))["exitCode"] == 0
            assert deployment.wait_ended(job)["exitCode"] == 0
            assert (deployment.raw_log(job), list(find(home, "device-*"))) == (b"up\n", [])
            [stored] = find(home / "artifacts", "left")
            assert not stored.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)
        finally:
            deployment.stop()
