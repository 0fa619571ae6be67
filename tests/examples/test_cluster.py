"""`make demo-cluster` and `make cluster-up`, in a network of their own, so that several may run."""

import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.deployment import CLI_PROGRAM, Deployment, wait_until
from support.job_packages import ROOT, share_environments

PROGRAM = ROOT / "examples" / "cluster.py"
HOSTS = {"ada", "bob", "cyd"}
REAL = next((file for folder in ROOT.parents if (file := folder / "shared" / "data" / "mnist.npz").is_file()), None)
"""MNIST, where a machine has it; else scikit-learn's digits stand in."""
# What begins a cluster does so before it starts anything.
CONTAINED = f"""
import os, subprocess, sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
from cluster import INSIDE, contain
from demo import told

def work():
    if contain([sys.executable, *sys.orig_argv[1:]]) is None:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        print(os.environ[INSIDE], flush=True)
        sys.stdin.read()

sys.exit(told(work))
"""


@pytest.fixture
def postgres():
    """Its programs."""


@pytest.fixture
def network():
    """A network of its own: the words that begin a command in it."""
    with subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up; echo up; exec cat"], **PIPES) as holder:
        assert holder.stdout.readline() == "up\n"
        yield ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
        holder.stdin.close()


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def read_until(process, end):
    said = ""
    while not said.endswith(end):
        line = process.stdout.readline()
        assert line, said + (process.stderr.read() if process.stderr else "")
        said += line
    return said


def bridges(network):
    done = subprocess.run(
        [*network, "ip", "-o", "link", "show", "type", "bridge"], capture_output=True, text=True, check=True
    )
    return len(done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("postgres", "linked_networks")
def test_jobs_on_hosts_that_share_only_a_network_end_well_although_one_is_killed(network):
    done = subprocess.run([*network, sys.executable, str(PROGRAM), "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = re.findall(r"^j\w+ +Succeeded +(\d): (.+)$", done.stdout, re.MULTILINE)
    assert len(runs) == 30
    assert all(int(count) == len(hosts.split(", ")) for count, hosts in runs)
    again = [hosts for count, hosts in runs if count != "1"]
    assert again, "some ran on the host that was killed"
    assert all(hosts.startswith("bob, ") for hosts in again)
    folder = re.search(r"/tmp\S*/gradient-cluster-\w+", done.stdout)
    assert folder is not None
    assert not Path(folder[0]).exists()
    assert bridges(network) == 0


@pytest.fixture
def home(tmp_path):
    """A home with the trainer's packages, installed where an index is reached."""
    deployment = Deployment(tmp_path / "home")
    deployment.start_up(**share_environments(deployment.home))
    words = [
        str(CLI_PROGRAM),
        "jobs",
        "create",
        "--machineType",
        "CPU",
        "--command",
        "python -c 'import gradient_trainer'",
    ]
    env = deployment.client_environment()
    done = subprocess.run(words, cwd=ROOT / "examples" / "mnist", env=env, capture_output=True, text=True, check=False)
    deployment.stop()
    assert done.returncode == 0, done.stdout + done.stderr
    return deployment.home


@pytest.fixture
def on(network, home):
    """`make cluster-up`: a function that runs a command on one of its hosts."""
    env = os.environ | {"GRADIENT_DEMO_HOME": str(home), "GRADIENT_DEMO_MNIST_URL": "http://127.0.0.1:1/"}
    env |= {"GRADIENT_DEMO_DATA": str(REAL)} if REAL else {}
    words = [*network, sys.executable, str(PROGRAM)]
    with subprocess.Popen([*words, "up"], env=env, **PIPES | {"stderr": subprocess.STDOUT}) as cluster:
        assert "gradient-cli jobs logs JOB --follow" in read_until(cluster, "Ctrl-C ends all of it.\n")

        def begin(host, *command, folder="/"):
            return subprocess.Popen([*words, "on", host, *command], cwd=folder, **PIPES)

        yield begin
        cluster.terminate()
        cluster.communicate()
        assert cluster.returncode == 143


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("postgres", "linked_networks", "trainer_packages")
def test_a_training_on_one_host_is_followed_and_entered_from_others_and_its_outputs_come_back(on, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()

    def client(host, *arguments):
        with on(host, "gradient-cli", *arguments, folder=folder) as process:
            answer, errors = process.communicate()
        assert process.returncode == 0, answer + errors
        return answer

    (folder / "train.sh").write_text(
        "set -e\npython -m gradient_trainer --steps 40 --batch-size 32\n"
        'cd "$GRADIENT_ARTIFACTS_DIR"; sha256sum model.keras result.json; echo waits\n'
        "until [ -e go ]; do sleep 0.1; done; cat go\n"
    )
    options = ("--machineType", "CPU", "--container", "trainer", "--command", "sh train.sh")
    job = client("ada", "jobs", "create", "--detach", *options).strip()
    host = wait_until(lambda: re.search(r"^worker +(\w+)", client("ada", "jobs", "show", job), re.MULTILINE), "a host")[
        1
    ]
    second, third = sorted(HOSTS - {host})
    with on(second, "gradient-cli", "jobs", "logs", job, "--follow", folder=folder) as follower:
        log = read_until(follower, "waits\n")
        client(third, "jobs", "exec", job, "--", "sh", "-c", 'uname -n >"$GRADIENT_ARTIFACTS_DIR/go"')
        assert follower.communicate()[0] == f"{host}\n"
        assert follower.returncode == 0
    origin = "mnist: 60,000 training, 10,000 test images (/storage/mnist.npz)" if REAL else "digits: "
    assert origin in log
    client(third, "jobs", "wait", job)
    client(second, "jobs", "artifacts", "get", job, "--to", "got")
    sums = dict(re.findall(r"^(\w{64})  (\S+)$", log, re.MULTILINE))
    assert set(sums.values()) == {"model.keras", "result.json"}
    for digest, name in sums.items():
        assert hashlib.sha256((folder / "got" / name).read_bytes()).hexdigest() == digest


@pytest.mark.usefixtures("postgres", "linked_networks")
def test_nothing_of_a_killed_cluster_is_left_after_the_next_start(network):
    def begin():
        return subprocess.Popen([*network, sys.executable, "-c", CONTAINED], **PIPES)

    left = []
    for victim in ("program", "first process inside"):
        with begin() as cluster:
            left.append(Path(cluster.stdout.readline().strip()))
            started = psutil.Process(cluster.pid).children(recursive=True)
            assert [one.name() for one in started][-1] == "sleep"
            killed = cluster.pid if victim == "program" else started[1].pid
            os.kill(killed, signal.SIGKILL)
            cluster.communicate()
        assert psutil.wait_procs(started, timeout=10)[1] == []
    assert left[0] != left[1]
    with begin() as cluster:
        folder = Path(cluster.stdout.readline().strip())
        assert not any(one.exists() for one in left)
        assert bridges(network) == 1
        with begin() as second:
            answer, errors = second.communicate()
        assert (second.returncode, answer) == (1, "")
        assert "a cluster runs already on this machine" in errors
        cluster.communicate()
    assert cluster.returncode == 0
    assert not folder.exists()
    assert bridges(network) == 0


def test_what_is_missing_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "demo"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "root" in done.stderr or "missing: ip, openssl, runuser, setpriv, unshare" in done.stderr
