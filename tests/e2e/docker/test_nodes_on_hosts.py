"""Nodes of one job that are containers on two hosts: each has an engine, a network and a worker's folder."""

import json
import subprocess
from urllib.parse import urlsplit

import pytest
from support.deployment import Deployment, wait_until
from support.far_worker import FarWorker
from support.servers.private_docker_engine import SHELL_IMAGE, running_engine
from support.tcp_proxy import TcpProxy

from worker.sandbox.network_namespace import network_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("hosts")]

ADDRESSES = {"ada": "192.0.2.11", "bob": "192.0.2.12"}
# What libraries do: rank 0 hears of the others at its address, and each listens at its own for the one before it.
EXCHANGE = """\
tasks=$(echo "$TF_CONFIG" | tr '"' '\\n' | grep :[0-9])
own=$(echo "$tasks" | sed -n "$((RANK + 1))p")
next=$(echo "$tasks" | sed -n "$(((RANK + 1) % WORLD_SIZE + 1))p")
nc -l -p ${own#*:} >heard &
if [ $RANK = 0 ]; then nc -l -p $MASTER_PORT; else
until echo "joined" | nc $MASTER_ADDR $MASTER_PORT 2>/dev/null; do sleep 0.1; done; fi
until echo $RANK | nc ${next%:*} ${next#*:} 2>/dev/null; do sleep 0.1; done
wait
echo "rank $(cat heard) came to ${own%:*}, $GLOO_SOCKET_IFNAME of $GRADIENT_NODE_ADDRESSES"|
    tee $GRADIENT_ARTIFACTS_DIR/end
"""


def link(*engines):
    """Connect two engines' networks, as hosts of one wire."""
    here, there = (engine.network for engine in engines)
    commands = [(here, f"ip link add wire type veth peer name wire netns {there[2]}")]
    for network, address in zip((here, there), ADDRESSES.values(), strict=True):
        commands += [(network, f"ip address add {address}/24 dev wire"), (network, "ip link set wire up")]
    for network, command in commands:
        subprocess.run([*network, *command.split()], check=True)


class Host:
    """A host that shares nothing with the service but its database."""

    def __init__(self, deployment, engine, folder, name):
        self.engine = engine
        with network_of(int(engine.network[2])) as network:
            url = TcpProxy(urlsplit(deployment.cli_json["url"]).port, network).url
        self.worker = FarWorker(
            deployment,
            folder / name,
            url,
            name,
            engine.network,
            GRADIENT_DOCKER__URL=engine.url,
            GRADIENT_WORKER__NODES_ADDRESS=ADDRESSES[name],
            GRADIENT_WORKER__SLOTS="1",
            GRADIENT_WORKER__SWEEP_SECONDS="0.5",
            GRADIENT_WORKER__LOST_AFTER_SECONDS="6",
        )
        self.process = self.worker.start()

    def containers(self):
        with self.engine.client() as client:
            return client.containers(all=True)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    deployment = Deployment(
        tmp_path_factory.mktemp("service") / "home",
        GRADIENT_MACHINES__SIMULATE="false",
        GRADIENT_DOCKER__PULL="never",
        GRADIENT_DOCKER__FIREWALL="off",
        GRADIENT_WORKER__SWEEP_SECONDS="0.5",
        GRADIENT_WORKER__LOST_AFTER_SECONDS="6",
        GRADIENT_DOCKER__DEFAULT_IMAGE=SHELL_IMAGE,
    )
    deployment.start_api()
    yield deployment
    deployment.stop()


@pytest.fixture(scope="module")
def engines(docker_server):
    with running_engine() as other:
        link(docker_server, other)
        yield dict(zip(ADDRESSES, (docker_server, other), strict=True))


@pytest.fixture(scope="module")
def hosts(service, engines, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    return {name: Host(service, engine, folder, name) for name, engine in engines.items()}


def submit(service, command, *words, nodes=2, code=0):
    made = service.cli(
        *("jobs", "create", "--machineType", "CPU", "--workspace", "none", "--nodes", str(nodes), "--json"),
        *("--command", command, "--detach", *words),
        code=code,
    )
    return json.loads(made.stdout)["arrayId"] if code == 0 else made.stderr


def listed(service, array_id):
    return json.loads(service.cli("jobs", "show", array_id, "--json").stdout)["jobs"]


def ended(service, array_id):
    return [service.wait_ended(job["id"]) for job in listed(service, array_id)]


def host_of(service, job):
    return [one["message"].split()[-1] for one in service.events(job["id"]) if one["kind"] == "claimed"][-1]


@pytest.fixture
def running(service, hosts):
    """Two ranks that run, with the host of rank 1."""
    array_id = submit(service, "sleep 600")
    wait_until(lambda: {job["state"] for job in listed(service, array_id)} == {"Running"}, "both ranks to run")
    return array_id, hosts[host_of(service, listed(service, array_id)[1])]


def test_containers_of_two_hosts_connect_and_their_logs_and_artifacts_are_at_the_service(service, hosts):
    ranks = ended(service, submit(service, EXCHANGE))
    logs = [service.raw_log(job["id"]).decode() for job in ranks]
    assert [job["reason"] for job in ranks] == ["completed"] * 2, logs
    order = [ADDRESSES[host_of(service, job)] for job in ranks]
    assert sorted(order) == list(ADDRESSES.values())
    said = [f"rank {1 - rank} came to {own}, wire of {','.join(order)}\n" for rank, own in enumerate(order)]
    assert logs == [f"joined\n{said[0]}", said[1]]
    assert [service.artifact(job["id"], "end").decode() for job in ranks] == said
    assert [host.containers() for host in hosts.values()] == [[], []]


def test_the_page_of_each_says_that_it_is_in_the_network_of_its_host(service, running):
    array_id, _ = running
    for job in listed(service, array_id):
        [note] = service.job(job["id"])["notes"]
        assert f"this one uses the network of {host_of(service, job)}: it can reach" in note
    service.cli("jobs", "stop", array_id, "--now")
    assert [job["state"] for job in ended(service, array_id)] == ["Cancelled"] * 2


def test_two_jobs_run_one_after_the_other_on_the_same_hosts(service):
    arrays = [submit(service, EXCHANGE) for _ in range(2)]
    ends = [job["reason"] for array_id in arrays for job in ended(service, array_id)]
    assert ends == ["completed"] * 4


@pytest.mark.parametrize(("command", "reason"), [("exit 3", "exit_nonzero"), ("kill -KILL $$", "killed")])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_failure_of_a_rank_ends_that_of_another_host(service, hosts, command, reason, rank):
    ranks = ended(service, submit(service, f"[ $RANK = {rank} ] && {{ {command}; }}; sleep 600"))
    assert [job["reason"] for job in ranks] == ([reason, "node_failed"] if rank == 0 else ["node_failed", reason])
    other = ranks[1 - rank]
    assert f"Rank {rank}, on {host_of(service, ranks[rank])}: " in other["message"]
    assert [host.containers() for host in hosts.values()] == [[], []]


def test_a_lost_host_ends_all_and_has_nothing_left_when_it_is_back(service, running):
    array_id, lost = running
    lost.process.kill()
    ranks = ended(service, array_id)
    assert [job["reason"] for job in ranks] == ["node_failed", "worker_lost"]
    assert [len(lost.containers())] == [1], "nobody can reach it"
    lost.process = lost.worker.start()
    wait_until(lambda: lost.containers() == [], "the container to be removed")


def test_more_nodes_than_the_hosts_have_room_for_are_refused(service):
    assert "room for only 2" in submit(service, "true", nodes=3, code=4)
    assert "no machine has room for more than 1" in submit(service, "true", "--network", "none", code=4)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"GRADIENT_DOCKER__FIREWALL": "require"}, "GRADIENT_DOCKER__FIREWALL=require does not allow"),
        ({"GRADIENT_DOCKER__NETWORK": "none"}, "GRADIENT_DOCKER__NETWORK=none does not allow"),
        ({"GRADIENT_WORKER__NODES_ADDRESS": "192.0.2.11"}, "no network interface of this host has 192.0.2.11"),
    ],
)
def test_a_host_whose_administrator_forbids_it_takes_none_and_says_why(service, hosts, settings, why):
    bob = hosts["bob"]
    bob.process.kill()
    bob.process = bob.worker.start(**settings)
    assert why in bob.process.read_log()
    assert why in submit(service, "true", code=4)
    assert why in service.cli("workers", "list", "--json").stdout
    bob.process.kill()
    bob.process = bob.worker.start()
    assert [job["reason"] for job in ended(service, submit(service, "true"))] == ["completed"] * 2
