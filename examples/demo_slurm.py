"""`make demo-slurm`: jobs on a Slurm cluster of its own, with four nodes on this machine, one of which fails.

Its trainings need no large packages, so that it takes about two minutes (torch alone is 4.5 GB): a line is fitted on
two nodes in plain Python, and handwritten digits are recognised by scikit-learn instead of TensorFlow.

The cluster is that of the tests, of Debian's packages, and runs as the user who starts it. Nothing is left at the end
but the folder of the demo.
"""

import subprocess
import sys
import time
from pathlib import Path

import demo
from demo import DemoError, Programs, say

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.deployment import wait_until
from support.slurm_cluster import SlurmCluster, find_slurm, running_cluster

MACHINE_TYPE = "main-cpu4"
EXAMPLE = demo.ROOT / "examples" / "scikit-learn"
PATIENT = {"SlurmdTimeout": "20", "MessageTimeout": "15"}
"""On a busy machine, no node is lost that only answers late."""
MEMBERS = 20
MEMBER = 'echo "member $GRADIENT_ARRAY_INDEX on $SLURMD_NODENAME"; sleep 2'
NODES = """python - <<END
import os
from multiprocessing.connection import Client, Listener
rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
data = [[1.0, 2.0], [3.0, 4.0]][rank]
other = Listener(address).accept() if rank == 0 else None
while other is None:
    try:
        other = Client(address)
    except ConnectionRefusedError:
        pass
weight = 0.0
for step in range(1, 31):
    gradient = sum(2 * x * (weight * x - 3 * x) for x in data)
    other.send(gradient)
    weight -= 0.01 * (gradient + other.recv())
    if step % 10 == 0:
        print(f"{os.environ['SLURMD_NODENAME']}: step {step}, weight {weight:.4f}")
END"""
"""Fits y = 3x on two nodes, each with half of the data, which add up their gradients."""
LONG = 'echo "attempt $GRADIENT_ATTEMPT on $SLURMD_NODENAME"; sleep 15; echo done'


def main() -> int:
    """Run the demo; return its exit code."""
    return demo.told(show)


def show() -> None:
    """Run the demo.

    Raises:
        DemoError: Something did not work as it should.
    """
    if find_slurm() is None:
        raise DemoError("no Slurm is installed: apt-get install slurmctld slurmd slurm-client munge")
    began = time.monotonic()
    with running_cluster(options=PATIENT) as cluster:
        say(f"A Slurm cluster with four nodes is up: {cluster.folder}")
        programs = Programs(Programs.for_home(demo.HOME).env | cluster.environment, EXAMPLE)
        add_machine_types(programs)
        with demo.server(programs, "--slurm"):
            run_array(programs)
            train_on_two_nodes(programs)
            lose_a_node(programs, cluster)
            train(programs)
    say(f"\nDone in {time.monotonic() - began:.0f} s. Cluster and server have stopped.")


def add_machine_types(programs: Programs) -> None:
    """Write the machine types of the cluster."""
    say("\n$ gradient-server machines add --slurm --gpu V100")
    command = [str(demo.PROGRAMS / "gradient-server"), "machines", "add", "--slurm", "--gpu", "V100"]
    done = subprocess.run(command, env=programs.env, check=False, stdout=subprocess.DEVNULL)  # noqa: S603 - our own
    if done.returncode:
        raise DemoError("the machine types of the cluster could not be written")


def run_array(programs: Programs) -> None:
    """Run an array, whose members Slurm distributes over its nodes.

    Raises:
        DemoError: A member failed.
    """
    options = (
        "--machineType",
        MACHINE_TYPE,
        "--cpus",
        "1",
        "--memoryMb",
        "500",
        "--name",
        "array",
        "--workspace",
        "none",
    )
    if programs.run("jobs", "create", *options, "--array", f"0-{MEMBERS - 1}", "--command", MEMBER):
        raise DemoError("a member of the array failed")


def train(programs: Programs) -> None:
    """Train on handwritten digits, and list what that left.

    Raises:
        DemoError: The training failed.
    """
    options = ("--machineType", MACHINE_TYPE, "--name", "digits")
    if programs.run("jobs", "create", *options, "--command", "python main.py"):
        raise DemoError("the training failed")
    programs.run("jobs", "list")


def train_on_two_nodes(programs: Programs) -> None:
    """Fit a line on two nodes of one allocation, whose output is one log.

    Raises:
        DemoError: The training failed.
    """
    options = ("--machineType", MACHINE_TYPE, "--nodes", "2", "--name", "nodes", "--workspace", "none")
    if programs.run("jobs", "create", *options, "--command", NODES):
        raise DemoError("the training on two nodes failed")
    programs.run("jobs", "show", programs.ask("jobs", "list", "--limit", "1")["jobs"][0]["id"])


def lose_a_node(programs: Programs, cluster: SlurmCluster) -> None:
    """Let a node fail while it runs a job, which then runs on another one.

    Raises:
        DemoError: The job did not run again, or not on another node.
    """
    options = (
        "--machineType",
        MACHINE_TYPE,
        "--name",
        "survivor",
        "--workspace",
        "none",
        "--maxAttempts",
        "3",
        "--detach",
    )
    programs.run("jobs", "create", *options, "--command", LONG)
    node = wait_until(lambda: cluster.run("squeue", "-h", "-t", "R", "-o", "%N"), "the job to run")
    say(f"\nNode {node} loses its power.")
    cluster.fail_node(node)
    job = programs.ask("jobs", "list", "--limit", "1")["jobs"][0]
    if programs.run("jobs", "wait", job["id"], "--timeout", "120"):
        raise DemoError("the job did not survive the failure of its node")
    programs.run("jobs", "logs", job["id"])
    if programs.ask("jobs", "show", job["id"])["attempt"] == 1:
        raise DemoError("the job did not run again")
    cluster.start_daemon(node)
    cluster.wait_until_ready()


if __name__ == "__main__":
    sys.exit(main())
