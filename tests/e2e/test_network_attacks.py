"""Jobs that try each way out of their network, on a host in a namespace of the test's own."""

import json
import subprocess
from pathlib import Path

import pytest
import support
from support.deployment import ORDINARY, WITHOUT_TUN, wait_until
from support.servers.own_host import (
    ADDRESS,
    ALLOWED,
    BROADCAST,
    METADATA,
    PORT,
    PRIVATE,
    PUBLIC,
    SECOND_ADDRESS,
    own_host,
)

PROGRAM = Path(support.__path__[0], "network_attacks.py").read_text()
REFUSED = METADATA, PRIVATE, ADDRESS, SECOND_ADDRESS, BROADCAST, "127.0.0.1", "127.0.0.5", "255.255.255.255"

pytestmark = pytest.mark.usefixtures("bubblewrap", "linked_networks")


@pytest.fixture
def host():
    with own_host() as made:
        yield made


@pytest.mark.parametrize("kind", ["linked", "relayed", "alone"])
def test_no_way_to_send_leads_out_of_what_a_job_may_reach(deployment, host, kind):
    deployment.start_api()
    assert deployment.start("keys", "create", "bob").wait() == 0
    inside = {"linked": (), "relayed": ORDINARY, "alone": WITHOUT_TUN}[kind]
    network = "auto" if kind == "alone" else "require"
    required = {"GRADIENT_PROCESS__SANDBOX": "require", "GRADIENT_PROCESS__NETWORK": network}
    deployment.start_worker(inside=host.inside + inside, GRADIENT_EGRESS__ALLOWED=f'["{ALLOWED}"]', **required)
    job = attack(deployment, rounds=2)
    wait_until(lambda: b"ROUND0" in deployment.raw_log(job), "its attacks")
    may_reach = {f"{kind} {way}" for kind in ("tcp", "udp", "packet_info") for way in ("plain", "on_device")}
    for address in (PUBLIC, ALLOWED) if kind != "alone" else ():
        wait_until(lambda at=address: {f"{how} {at}" for how in may_reach} <= host.arrived, f"{address} to be reached")
    assert refused(host.arrived) == []
    for table in ("filter", "nat"):
        subprocess.run([*host.inside, "iptables", "-t", table, "-F"], check=True)
    deployment.wait_ended(deployment.submit("touch /storage/over0 /storage/over1"))
    again = attack(deployment, rounds=1)
    for one in (job, again):
        assert deployment.wait_ended(one)["exitCode"] == 0, deployment.raw_log(one)
        answers = json.loads(deployment.raw_log(one).decode().partition("ANSWERS")[2])
        assert refused(answers) == []
    assert refused(host.arrived) == []


def attack(deployment, rounds):
    addresses = ",".join((PUBLIC, ALLOWED, *REFUSED))
    return deployment.submit(f"python - {PORT} {addresses} {rounds} <<'END'\n{PROGRAM}\nEND\n")


def refused(lines):
    """Return what was sent to another address than those that the jobs may reach, or should not be possible at all."""
    return sorted(
        line for line in lines if line.split()[-1] not in {PUBLIC, ALLOWED} or line.startswith(("raw", "frame"))
    )
