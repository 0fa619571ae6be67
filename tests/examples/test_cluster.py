"""`make demo-cluster`, in a network of its own, so that several may run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "cluster.py"


@pytest.fixture
def linked_networks():
    """Root, who may make networks."""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("postgres", "linked_networks")
def test_jobs_on_hosts_that_share_only_a_network_end_well_although_one_is_killed():
    inside = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
    done = subprocess.run([*inside, sys.executable, str(PROGRAM), "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = re.findall(r"^j\w+ +Stopped +(\d): (.+)$", done.stdout, re.MULTILINE)
    assert len(runs) == 30
    assert all(int(count) == len(hosts.split(", ")) for count, hosts in runs)
    again = [hosts for count, hosts in runs if count != "1"]
    assert again, "some ran on the host that was killed"
    assert all(hosts.startswith("bob, ") for hosts in again)
    folder = re.search(r"/tmp\S*/gradient-cluster-\w+", done.stdout)
    assert folder is not None
    assert not Path(folder[0]).exists()


def test_what_is_missing_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "demo"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "root" in done.stderr or "missing: ip, openssl, runuser, unshare" in done.stderr
