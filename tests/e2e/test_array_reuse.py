"""Members of an array that run one after the other in what they share: what is private, and what ends them."""

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.deployment import Deployment, wait_until
from support.servers.package_index import PackageIndex

PROBE = """
import glob, json, os, subprocess, sys

index = os.environ["GRADIENT_ARRAY_INDEX"]
places = {"tmp": "/tmp", "var-tmp": "/var/tmp", "home": os.environ["HOME"], "memory": "/dev/shm",
          "workspace": "/paperspace", "artifacts": "/artifacts"}
found = {name: sorted(os.listdir(path)) for name, path in places.items()}
found["processes"] = sorted(int(os.path.basename(path)) for path in glob.glob("/proc/[0-9]*"))
found["scratch"] = os.path.exists("/.gradient/attempts") and os.listdir("/.gradient/attempts")
found["layer"] = os.path.exists(os.environ["VIRTUAL_ENV"] + "/left")
found["user"] = [os.getuid(), os.getgid(), os.getgroups()]
found["rights"] = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapPrm", "CapEff"))]
found["segments"] = len(open("/proc/sysvipc/shm").readlines())
print(json.dumps(found), flush=True)
network = os.readlink("/proc/self/ns/net")
for path in places.values():
    open(f"{path}/left-{index}", "w").write(network)
open(os.environ["VIRTUAL_ENV"] + "/left", "w").close()
subprocess.run(["ipcmk", "-M", "4096"], capture_output=True)
subprocess.Popen(["sleep", "600"], start_new_session=True)
sys.exit(int(index))
"""
SANDBOX = {"GRADIENT_PROCESS__SANDBOX": "require", "GRADIENT_WORKER__SLOTS": "1"}
ROOT = os.geteuid() == 0


@pytest.fixture
def deployment(tmp_path):
    deployment = Deployment(tmp_path / "home")
    yield deployment
    deployment.stop()


@pytest.fixture
def array(deployment):
    """Return a function that submits an array of members that share, and returns their ids by index."""

    def array(members, command, **fields):
        first = deployment.submit(command, array=members, **{"arrayReuse": "on", **fields})
        query = {"array": deployment.job(first)["arrayId"], "limit": 500}
        return [job["id"] for job in deployment.request("GET", "/jobs", params=query).json()["jobs"][::-1]]

    return array


def test_members_share_a_sandbox_and_see_nothing_of_one_another(deployment, array):
    deployment.start_api()
    worker = deployment.start_worker(**SANDBOX)
    jobs = array("0-4", f"python - <<'END'\n{PROBE}\nEND", workspace="none")
    ended = [deployment.wait_ended(job) for job in jobs]
    assert [job["exitCode"] for job in ended] == list(range(5))
    assert [job["state"] for job in ended] == ["Stopped", *["Failed"] * 4]
    found = [json.loads(deployment.raw_log(job)) for job in jobs]
    assert all(one == found[0] for one in found), found
    assert (found[0]["home"], found[0]["layer"], found[0]["segments"]) == ([], False, 1)
    shown = [path.parts for path in (deployment.home, Path(sys.prefix), Path(sys.base_prefix))]
    above = {parts[2] for parts in shown if parts[1] == "tmp"}
    assert set(found[0]["tmp"]) <= above, "this installation, if it is in it, and no more"
    assert found[0]["rights"] == ["0" * 16] * 2
    networks = set()
    for index, job in enumerate(jobs):
        assert [file["path"] for file in deployment.artifacts(job)["files"]] == [f"left-{index}"]
        networks.add(deployment.artifact(job, f"left-{index}"))
    assert "not_shared" not in worker.read_log()
    assert len(networks) == 1 or not ROOT, "each has a sandbox of its own"
    wait_until(lambda: not deployment.find_job_processes() and not deployment.scratch(), "nothing to be left")


def test_what_they_see_of_the_host_may_lie_below_folders_of_their_own(deployment, array, tmp_path):
    index = PackageIndex(tmp_path / "index")
    index.add_wheel("common")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one").write_text("in a home\n")
    (tmp_path / "file").write_text("a file\n")
    with TemporaryDirectory(dir="/var/tmp") as var, TemporaryDirectory(dir="/dev/shm") as memory:
        for folder, text in ((var, "on disk\n"), (memory, "in memory\n")):
            Path(folder).chmod(0o755)
            Path(folder, "one").write_text(text)
        below_home = "/home/gradient/data"
        shown = [str(tmp_path / "file"), f"{var}/one", f"{memory}/one", f"{below_home}/one"]
        home = ["bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--tmpfs", "/home"]
        home += [word for path in Path("/home").iterdir() for word in ("--dev-bind-try", str(path), str(path))]
        home += ["--bind", str(tmp_path / "data"), below_home, "--"]
        deployment.start_api()
        worker = deployment.start_worker(
            inside=home,
            UV_DEFAULT_INDEX=index.url,
            GRADIENT_ENVIRONMENTS__DEFAULT='["common"]',
            GRADIENT_PROCESS__READABLE=json.dumps([shown[0], var, memory, below_home]),
            **SANDBOX,
        )
        command = f"cat {' '.join(shown)}; python -c 'import common'; ! touch {' '.join(shown)} 2>/dev/null"
        jobs = [*array("0-2", command), deployment.submit(command)]
        ended = [(deployment.wait_ended(job)["state"], deployment.raw_log(job).decode()) for job in jobs]
    index.close()
    assert ended == [("Stopped", "a file\non disk\nin memory\nin a home\n")] * 4
    assert "not_shared" not in worker.read_log()


def test_a_workspace_is_unpacked_once_until_a_member_changes_it(deployment, tmp_path):
    deployment.start_api()
    deployment.start_worker(**SANDBOX)
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "given.txt").write_text("given\n")
    command = """stat -c %i data/given.txt; cat data/given.txt; ls data; stat -c %a data/given.txt
        case $GRADIENT_ARRAY_INDEX in
            2) cp -p data/given.txt kept; echo other >data/given.txt; touch -r kept data/given.txt; rm kept ;;
            4) chmod 400 data/given.txt ;;
            6) touch data/more.txt ;;
        esac"""
    create = ["jobs", "create", "--array", "0-7", "--arrayReuse", "on", "--command", command, "--json"]
    first = json.loads(deployment.cli(*create, folder=folder).stdout)
    query = {"array": first["arrayId"], "limit": 500}
    jobs = [job["id"] for job in deployment.request("GET", "/jobs", params=query).json()["jobs"][::-1]]
    assert {deployment.wait_ended(job)["state"] for job in jobs} == {"Stopped"}
    logs = [deployment.raw_log(job).decode().split() for job in jobs]
    assert [log[1:3] for log in logs] == [["given", "given.txt"]] * len(jobs)
    assert len({log[3] for log in logs}) == 1
    files = [log[0] for log in logs]
    assert files[0] == files[1] == files[2]
    assert files[3] == files[4]
    assert files[5] == files[6]
    noted = [any("more.txt" in note for note in deployment.job(job)["notes"]) for job in jobs]
    assert noted == [index == 6 for index in range(8)], "a member's own files are reported, and no other's"


def test_metrics_reach_each_member_by_the_port_that_they_share(deployment, array):
    deployment.start_api()
    deployment.start_worker(**SANDBOX)
    program = """
import os, socket, time
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.connect(("127.0.0.1", int(os.environ["GRADIENT_STATSD_PORT"])))
index, file = os.environ["GRADIENT_ARRAY_INDEX"], os.environ["GRADIENT_METRICS_FILE"]
while not os.path.exists(file):
    link.send(f"own:{index}|g|#container_name:{os.environ['PS_JOB_ID']}".encode())
    time.sleep(0.05)
"""
    for index, job in enumerate(array("0-2", f"python - <<'END'\n{program}\nEND")):
        assert deployment.wait_ended(job)["state"] == "Stopped"
        series = deployment.request("GET", f"/jobs/{job}/metrics").json()["series"]
        found = {one["name"]: {point["value"] for point in one["points"]} for one in series if one["source"] == "job"}
        assert found == {"own": {index}}


def test_a_long_member_runs_as_any_other_job_and_can_be_stopped(deployment, array):
    deployment.start_api()
    deployment.start_worker(**SANDBOX)
    wait = "echo up; [ $GRADIENT_ARRAY_INDEX != 2 ] || while :; do sleep 0.1; done"
    jobs = array("0-4", wait)
    wait_until(lambda: deployment.job(jobs[2])["state"] == "Running", "the long member to run")
    wait_until(lambda: deployment.raw_log(jobs[2]) == b"up\n", "its output")
    assert [deployment.wait_ended(job)["state"] for job in jobs[:2]] == ["Stopped"] * 2
    assert [deployment.job(job)["state"] for job in jobs[3:]] == ["Pending"] * 2, "it has the only slot"
    deployment.request("POST", f"/jobs/{jobs[4]}/stop")
    deployment.request("POST", f"/jobs/{jobs[2]}/stop")
    states = [deployment.wait_ended(job)["state"] for job in jobs]
    assert states == ["Stopped", "Stopped", "Cancelled", "Stopped", "Cancelled"]
    assert [deployment.raw_log(job)[:3] for job in jobs] == [b"up\n"] * 4 + [b""]


def test_limits_are_those_of_each_member(deployment, array):
    deployment.start_api()
    deployment.start_worker(**SANDBOX)
    command = """set -e; case $GRADIENT_ARRAY_INDEX in
        1) sleep 600 ;;
        2) python -c 'import time; x = b"1" * 400_000_000; time.sleep(600)' ;;
        3) kill -9 $$ ;;
    esac; echo done"""
    jobs = [deployment.wait_ended(job) for job in array("0-4", command, timeLimit=8, memoryMb=128)]
    assert [job["reason"] for job in jobs] == ["completed", "time_limit", "out_of_memory", "killed", "completed"]
    assert jobs[0]["startedAt"] <= jobs[0]["finishedAt"]


@pytest.mark.parametrize("sandbox", ["require", pytest.param("off", marks=pytest.mark.slow)])
def test_each_member_runs_once_when_the_worker_is_killed(deployment, array, sandbox):
    deployment.start_api()
    timers = {"GRADIENT_WORKER__LEASE_SECONDS": "3", "GRADIENT_WORKER__SWEEP_SECONDS": "0.5"}
    settings = {"GRADIENT_PROCESS__SANDBOX": sandbox, "GRADIENT_WORKER__SLOTS": "2", **timers}
    worker = deployment.start_worker(**settings)
    command = 'echo $GRADIENT_ARRAY_INDEX >>"$GRADIENT_STORAGE_DIR/ran"; '
    command += 'while [ $GRADIENT_ARRAY_INDEX = 5 ] && [ ! -e "$GRADIENT_STORAGE_DIR/go" ]; do sleep 0.1; done'
    jobs = array("0-59", command, arrayReuse="on")

    def ran():
        file = deployment.storage / "ran"
        return sorted(map(int, file.read_text().split())) if file.exists() else []

    for count in (3, 15, 25):
        wait_until(lambda count=count: len(ran()) >= count, f"{count} members to run")
        worker.kill()
        worker = deployment.start_worker(**settings)
    (deployment.storage / "go").touch()
    ended = [deployment.wait_ended(job) for job in jobs]
    assert ran() == list(range(60))
    assert {(job["state"], job["attempt"]) for job in ended} == {("Stopped", 1)}


def test_short_members_share_by_themselves_and_the_whole_array_is_stopped(deployment, array):
    deployment.start_api()
    deployment.start_worker(**SANDBOX)
    jobs = array("0-199", "readlink /proc/self/ns/net", arrayReuse=None)
    wait_until(lambda: deployment.job(jobs[9])["state"] == "Stopped", "ten members to end")
    array_id = deployment.job(jobs[0])["arrayId"]
    deployment.request("POST", "/jobs/actions", json={"action": "stop", "ids": [array_id]})
    states = [deployment.wait_ended(job)["state"] for job in jobs]
    assert set(states) == {"Stopped", "Cancelled"}
    assert sorted(states, reverse=True) == states, "the first to run are the first members"
    networks = [deployment.raw_log(job) for job in jobs[:10]]
    assert len(set(networks)) < 10 or not ROOT
