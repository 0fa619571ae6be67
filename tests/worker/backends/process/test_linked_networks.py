"""The networks that a worker that is root links with its host, with real packets; only root can make them."""

import errno
import gc
import os
import socket
import subprocess
import threading
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from support.deployment import wait_until
from support.servers.neighbour import PORT, neighbour

from core.settings import Settings
from core.settings.docker import DockerSettings
from worker.backends import network_limits
from worker.backends.network_limits import find_limits
from worker.backends.process.network import filtered_networks, job_network
from worker.backends.process.network.linked_networks import LinkedNetworks
from worker.sandbox import netlink
from worker.sandbox.network_namespace import call_in_network
from worker.sandbox.packet_filter import Rule

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("linked_networks"),
]


@pytest.fixture
def outside():
    """The address of a neighbour of this host, which listens on PORT; and its network."""
    with neighbour() as found:
        yield found


@pytest.fixture
def made():
    """Makes networks of jobs, and returns what they reach from there."""
    with ExitStack() as stack:

        def make(**docker):
            settings = Settings(docker=DockerSettings(**docker))
            networks = LinkedNetworks(lambda servers: find_limits(settings, servers, shared=False))
            networks.start(lambda: None)
            network = networks.start(lambda: os.open("/proc/thread-self/ns/net", os.O_RDONLY))
            stack.callback(os.close, network)
            return network

        yield make


def reached(network, address, seconds=20):
    def connect():
        try:
            socket.create_connection((address, PORT), seconds).close()
        except OSError:
            return False
        return True

    return call_in_network(network, connect)


def address_in(network):
    def find():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]

    return call_in_network(network, find)


def test_a_job_reaches_what_is_beyond_its_host_and_nobody_reaches_the_job(outside, made):
    address, neighbour = outside
    network = made()
    assert reached(network, address)
    own = address_in(network)
    with call_in_network(network, lambda: socket.create_server(("0.0.0.0", PORT))):  # noqa: S104 - who reaches it
        assert reached(network, own)
        assert reached(None, own) is False
        assert [reached(other, own, 1) for other in (neighbour, made())] == [False, False]


def test_what_an_installation_blocks_its_jobs_do_not_reach(outside, made):
    address, _ = outside
    assert reached(made(blocked=[f"{address}/32"]), address) is False
    assert reached(made(), address), "the other installation blocks nothing"


def test_the_services_own_addresses_are_refused_by_port(outside, made, monkeypatch):
    address, _ = outside
    monkeypatch.setattr(network_limits, "service_addresses", lambda _: [(address, PORT)])
    assert reached(made(), address) is False
    monkeypatch.setattr(network_limits, "service_addresses", lambda _: [(address, PORT + 1)])
    assert reached(made(), address)


@pytest.fixture
def changing(monkeypatch):
    """Networks whose rules are those of a list that the test changes, and a process in one of them."""
    monkeypatch.setattr(filtered_networks, "KEPT_SECONDS", 0)
    rules = []
    networks = LinkedNetworks(lambda _: list(rules))
    with networks.start(lambda: subprocess.Popen(["sleep", "600"])) as process:
        yield networks, rules, process.pid
        process.kill()


def test_what_a_running_job_reaches_follows_what_changes(outside, changing):
    address, _ = outside
    networks, rules, first = changing
    with Path(f"/proc/{first}/ns/net").open("rb") as network:
        for refused in ([], [Rule(20, IPv4Network(address))], []):
            rules[:] = refused
            networks.renew(first)
            assert reached(network.fileno(), address) == (not refused)


def test_the_network_of_the_worker_itself_never_gets_a_filter(changing, monkeypatch):
    networks, _, _ = changing
    monkeypatch.setattr(networks, "set_filter", lambda *_, **__: pytest.fail("it was set"))
    call_in_network(None, lambda: networks.renew(threading.get_native_id()))


passed_on = []  # sockets of a job, to processes elsewhere


def use_socket(kind):
    with socket.socket(socket.AF_INET, kind) as used:
        used.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_DGRAM:
            used.sendto(b"x", used.getsockname())


def sockets_in(networks):
    (lent,) = networks._lent.values()
    return int(os.pread(lent.network.sockets, 100, 0).split()[2])


@pytest.mark.parametrize(
    ("does", "project_id", "ended", "again"),
    [
        (lambda: None, "vision", True, True),
        (lambda: use_socket(socket.SOCK_STREAM), "vision", True, True),
        (lambda: use_socket(socket.SOCK_DGRAM), "vision", True, False),
        (lambda: passed_on.append(socket.socket()), "vision", True, False),
        (lambda: None, "speech", True, False),
        (lambda: None, "vision", False, False),
    ],
    ids=["unused", "bound", "packet", "open socket", "other project", "may run"],
)
def test_a_network_is_used_again_only_as_if_it_were_new(does, project_id, ended, again):
    networks = LinkedNetworks(lambda _: [])

    def run(name, project_id, does):
        return networks.start(lambda: (does(), Path("/proc/thread-self/ns/net").stat().st_ino)[1], name, project_id)

    number = run("first", "vision", does)
    wait_until(lambda: sockets_in(networks) == len(passed_on), "the end of the kernel's own sockets")
    networks.give_back("first", ended=ended)
    assert (run("second", project_id, lambda: None) == number) is again
    while passed_on:
        passed_on.pop().close()


def test_without_packet_filters_of_the_kernel_no_network_is_made(monkeypatch):
    def refuse(_):
        raise OSError(errno.EPROTONOSUPPORT, os.strerror(errno.EPROTONOSUPPORT))

    monkeypatch.setattr(netlink, "send_filter", refuse)
    assert (
        job_network._try_networks.__wrapped__()
        == "the kernel cannot set a packet filter (nf_tables): Protocol not supported"
    )


def test_an_interface_ends_with_its_network():
    network = LinkedNetworks(lambda _: []).make()
    there = IPv4Address(address_in(network.namespace))
    name = f"gjn{(int(there) - int(IPv4Address('198.19.0.0'))) // 2:04x}"
    assert socket.if_nametoindex(name)
    network.close()
    wait_until(lambda: name not in {one for _, one in socket.if_nameindex()}, "its interface to be gone")


def test_the_networks_of_a_worker_that_has_ended_are_closed():
    def count():
        targets = (path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
        return sum(target.startswith("net:") for target in targets)

    def use_networks():
        networks = LinkedNetworks(lambda _: [])
        for name in ("lent", "unused"):
            networks.start(lambda: None, name)
        networks.give_back("unused", ended=True)
        wait_until(lambda: all(network.done() for network in networks._ready), "the networks made ahead")
        assert count() > before + 2

    before = count()
    use_networks()
    wait_until(lambda: (gc.collect(), count())[1] == before, "its networks to be closed")


def test_what_the_kernel_refuses_is_reported_and_the_thread_returns_to_its_own_network():
    network = Path("/proc/thread-self/ns/net")
    own = network.stat().st_ino
    with pytest.raises(OSError, match="No such device"):
        call_in_network(None, lambda: netlink.send(netlink.set_up(77) + netlink.set_up(1)))
    assert network.stat().st_ino == own
