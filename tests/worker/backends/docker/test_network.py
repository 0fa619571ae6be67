"""The jobs' network and the firewall around it, with real packets where the machine has a real engine."""

import contextlib
import dataclasses
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.deployment import wait_until
from support.servers.outside_host import FETCH_COMMAND, METADATA_ADDRESS, PRIVATE_ADDRESS, PUBLIC_ADDRESS, OutsideHost
from support.servers.private_docker_engine import SHELL_IMAGE

from core.settings import QueueSettings, Settings
from core.settings.api import ApiSettings
from core.settings.database import DatabaseSettings
from worker.backends import network_limits
from worker.backends.base import LaunchError
from worker.backends.docker import network as module
from worker.backends.docker.engine.client import Engine
from worker.backends.docker.network import (
    Firewall,
    Network,
    make_firewall,
)
from worker.backends.network_limits import FirewallUnavailable, resolvers, service_addresses


def test_commands_that_set_the_firewall_take_turns(tmp_path, monkeypatch):
    """At once, each of iptables' starts over when another one is done, and one may need longer than it has."""
    monkeypatch.setattr(network_limits, "FIREWALL_LOCK", tmp_path / "lock")
    alone = ["sh", "-ec", 'mkdir "$0"; sleep 0.05; rmdir "$0"; echo >>"$0.done"', str(tmp_path / "set")]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(network_limits.run_firewall_command, [alone] * 4))
    assert (tmp_path / "set.done").read_text() == "\n" * 4


def test_rules_are_one_whole_that_may_be_set_again():
    blocked = ("169.254.0.0/16", "10.0.0.0/8", "fd00:ec2::/32")
    services = (("192.0.2.1", 5432), ("2001:db8::1", 5432))
    resolvers = ("169.254.169.254", "2001:db8::53")
    fence = Firewall("gj1", blocked, services, metrics_port=8125, token_port=8473, resolvers=resolvers)
    assert fence.rules().splitlines() == [
        "*filter",
        ":GRADIENT-IN-gj1 - [0:0]",
        ":GRADIENT-OUT-gj1 - [0:0]",
        "-A GRADIENT-IN-gj1 -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
        "-A GRADIENT-IN-gj1 -d 169.254.169.254 -p udp --dport 53 -j RETURN",
        "-A GRADIENT-IN-gj1 -d 169.254.169.254 -p tcp --dport 53 -j RETURN",
        "-A GRADIENT-OUT-gj1 -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
        "-A GRADIENT-OUT-gj1 -d 169.254.169.254 -p udp --dport 53 -j RETURN",
        "-A GRADIENT-OUT-gj1 -d 169.254.169.254 -p tcp --dport 53 -j RETURN",
        "-A GRADIENT-IN-gj1 -p udp --dport 8125 -j RETURN",
        "-A GRADIENT-IN-gj1 -p tcp --dport 8473 -j RETURN",
        "-A GRADIENT-IN-gj1 -j REJECT",
        "-A GRADIENT-OUT-gj1 -d 169.254.0.0/16 -j REJECT",
        "-A GRADIENT-OUT-gj1 -d 10.0.0.0/8 -j REJECT",
        "-A GRADIENT-OUT-gj1 -d 192.0.2.1 -p tcp --dport 5432 -j REJECT",
        "COMMIT",
    ]
    assert [line.split(maxsplit=2)[2] for line in fence.rules(6).splitlines() if line.startswith("-A")] == [
        "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
        "-d 2001:db8::53 -p udp --dport 53 -j RETURN",
        "-d 2001:db8::53 -p tcp --dport 53 -j RETURN",
        "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
        "-d 2001:db8::53 -p udp --dport 53 -j RETURN",
        "-d 2001:db8::53 -p tcp --dport 53 -j RETURN",
        "-p ipv6-icmp -j RETURN",
        "-j REJECT",
        "-d fd00:ec2::/32 -j REJECT",
        "-d 2001:db8::1 -p tcp --dport 5432 -j REJECT",
    ]


def test_resolvers_are_those_that_containers_ask(tmp_path):
    first, second = tmp_path / "resolv.conf", tmp_path / "uplink.conf"
    first.write_text("# nameserver 192.0.2.9\nnameserver 127.0.0.53\noptions edns0\nnameserver\nnameserver what\n")
    second.write_text("nameserver 169.254.169.254\nnameserver 2001:db8::53\nnameserver fe80::1%eth0\n")
    found = resolvers((first, second, tmp_path / "none"))
    assert found == ["169.254.169.254", "2001:db8::53"]


def test_the_firewall_of_this_host_is_for_both_protocols(tmp_path):
    fence = make_firewall(Settings(home=tmp_path), "gj1")
    assert "-d 169.254.0.0/16 -j REJECT" in fence.rules()
    for network in (
        "fd00:ec2::/32",
        "fd20:ce::/32",
        "fd00:c1::/32",
        "fd00:42::/32",
    ):  # of Oracle Cloud and Scaleway, too
        assert f"-d {network} -j REJECT" in fence.rules(6)


def test_the_services_own_addresses_are_those_of_its_settings(tmp_path):
    settings = Settings(
        home=tmp_path,
        database=DatabaseSettings(url="postgresql+psycopg://u:p@192.0.2.1/db"),
        queue=QueueSettings(broker_url="redis://:p@192.0.2.2:6380/0"),
        api=ApiSettings(public_url="https://192.0.2.3/"),
    )
    assert sorted(service_addresses(settings)) == [("192.0.2.1", 5432), ("192.0.2.2", 6380), ("192.0.2.3", 443)]
    here = Settings(home=tmp_path, queue=QueueSettings(broker_url="redis://127.0.0.1:6379/0"))
    assert list(service_addresses(here)) == [], "what listens on loopback no container reaches"


@pytest.fixture
def engine(docker_server):
    return Engine(docker_server.settings())


def reaches(server, network, *places):
    """Try to reach all places at once from a container on the network, and return what it prints of each."""
    fetches = [FETCH_COMMAND.format(f"{address} {port}") for address, port in places]
    each = " ".join(f"({fetch}) >/tmp/{number} &" for number, fetch in enumerate(fetches))
    script = f"{each} wait; cat {' '.join(f'/tmp/{number}' for number in range(len(places)))}"
    with server.client() as client:
        config = client.create_host_config(network_mode=network, init=True)
        made = client.create_container(SHELL_IMAGE, ["sh", "-c", script], host_config=config)["Id"]
        try:
            client.start(made)
            client.wait(made)
            return client.logs(made).decode().splitlines()
        finally:
            client.remove_container(made, force=True)


def test_a_job_reaches_the_world_and_not_what_is_none_of_its_business(docker_server, engine, tmp_path):
    settings = Settings(home=tmp_path, docker=docker_server.settings(network="fenced"))
    with contextlib.ExitStack() as stack, docker_server.client() as client:
        stack.callback(client.remove_network, "fenced")
        assert Network(engine, settings).ensure() == "fenced"
        assert Network(engine, settings).ensure() == "fenced", "made once"
        found = client.inspect_network("fenced")
        assert found["Options"]["com.docker.network.bridge.enable_icc"] == "false"
        bridge = found["Options"]["com.docker.network.bridge.name"]
        gateway = found["IPAM"]["Config"][0]["Gateway"]
        outside = OutsideHost(docker_server, stack)
        outside.listen(outside.network, 80)
        outside.listen(outside.network, 5432)
        outside.listen(outside.network, 53)
        outside.listen(docker_server.network, 53)
        outside.listen(docker_server.network, 8780)
        ordinary, service = (PUBLIC_ADDRESS, 80), (PUBLIC_ADDRESS, 5432)
        places = (
            ordinary,
            service,
            (METADATA_ADDRESS, 80),
            (PRIVATE_ADDRESS, 80),
            (gateway, 8780),
            ("10.99.0.1", 8780),
        )
        names = ((METADATA_ADDRESS, 53), (PRIVATE_ADDRESS, 53), (gateway, 53))
        assert reaches(docker_server, "fenced", *places, *names) == ["reached"] * 9
        blocked = ("169.254.0.0/16", "10.98.0.0/16")
        fence = Firewall(bridge, blocked, (service,), tuple(docker_server.network), ipv6=True)
        for _ in range(2):
            fence.apply()
        assert reaches(docker_server, "fenced", *places, *names) == ["reached"] + ["kept off"] * 8
        dataclasses.replace(fence, resolvers=(METADATA_ADDRESS,)).apply()
        assert reaches(docker_server, "fenced", (METADATA_ADDRESS, 80), *names) == [
            "kept off",
            "reached",
            *["kept off"] * 2,
        ]
        listed = subprocess.run([*docker_server.network, "iptables", "-S"], capture_output=True, text=True, check=True)
        assert listed.stdout.count(f"-i {bridge} -j GRADIENT-") == 2, "set again, each is there once"
        listed = subprocess.run([*docker_server.network, "ip6tables", "-S"], capture_output=True, text=True, check=True)
        assert listed.stdout.count(f"-i {bridge} -j GRADIENT-") == 2, "for IPv6, too"


def test_a_jobs_port_is_open_to_people_and_not_to_other_jobs(docker_server, engine, tmp_path):
    """On every address of the host, which is as open as it gets; the fence keeps jobs off all the same."""
    settings = Settings(home=tmp_path, docker=docker_server.settings(network="ported"))
    with contextlib.ExitStack() as stack, docker_server.client() as client:
        stack.callback(client.remove_network, "ported")
        Network(engine, settings).ensure()
        found = client.inspect_network("ported")
        gateway = found["IPAM"]["Config"][0]["Gateway"]
        bridge = found["Options"]["com.docker.network.bridge.name"]
        config = client.create_host_config(network_mode="ported", init=True, port_bindings={8000: ("0.0.0.0", 24681)})  # noqa: S104 - inside the test's own network
        serve = "mkdir /tmp/www; echo HTTP >/tmp/www/index.html; exec httpd -f -p 8000 -h /tmp/www"
        made = client.create_container(SHELL_IMAGE, ["sh", "-c", serve], ports=[8000], host_config=config)["Id"]
        stack.callback(client.remove_container, made, force=True)
        client.start(made)
        address = client.inspect_container(made)["NetworkSettings"]["Networks"]["ported"]["IPAddress"]
        outside = OutsideHost(docker_server, stack)
        Firewall(bridge, (), (), tuple(docker_server.network)).apply()
        for network, place in ((docker_server.network, "127.0.0.1"), (outside.network, "10.99.0.1")):
            fetch = [*network, "curl", "--silent", "--max-time", "5", f"http://{place}:24681"]
            wait_until(
                lambda fetch=fetch: subprocess.run(fetch, capture_output=True, check=False).stdout == b"HTTP\n", place
            )
        places = ((gateway, 24681), ("10.99.0.1", 24681), (address, 8000))
        assert reaches(docker_server, "ported", *places) == ["kept off"] * 3


def test_a_job_without_a_network_reaches_nobody(docker_server, engine, tmp_path):
    settings = Settings(home=tmp_path, docker=docker_server.settings(network="none"))
    assert Network(engine, settings).ensure() == "none"
    assert reaches(docker_server, "none", ("127.0.0.1", 8780)) == ["kept off"]


def test_a_fence_that_cannot_be_set_is_a_warning_or_an_error(docker_server, engine, tmp_path, monkeypatch, caplog):
    def refuse(_):
        raise FirewallUnavailable("iptables: Permission denied")

    monkeypatch.setattr(module.Firewall, "apply", refuse)
    attempt = Network(engine, Settings(home=tmp_path, docker=docker_server.settings(network="open", firewall="try")))
    assert [attempt.ensure(), attempt.ensure()] == ["open", "open"]
    assert [record.message.split(":")[0] for record in caplog.records] == ["jobs_not_fenced"]
    strict = Network(engine, Settings(home=tmp_path, docker=docker_server.settings(network="open", firewall="require")))
    with pytest.raises(LaunchError, match="Permission denied"):
        strict.ensure()
    with docker_server.client() as client:
        client.remove_network("open")


def test_without_the_right_to_set_rules_the_fence_is_missing():
    other = ("setpriv", "--reuid=65534", "--clear-groups") if os.geteuid() == 0 else ()
    with pytest.raises(FirewallUnavailable, match="root"):
        Firewall("gj1", (), (), other).apply()


def test_only_a_node_that_other_hosts_reach_is_in_the_network_of_its_host(make, docker_server):
    place = make()
    specs = [
        place.spec("readlink /proc/self/ns/net", attempt=number + 1, host_network=bool(number)) for number in (0, 1)
    ]
    for spec in specs:
        place.wait(place.launch(spec))
    host = subprocess.run([*docker_server.network, "readlink", "/proc/self/ns/net"], capture_output=True, check=True)
    own, opened = (place.output(spec) for spec in specs)
    assert opened == host.stdout
    assert own != opened


@pytest.mark.parametrize("restarted", [False, True])
def test_a_firewall_that_was_reloaded_is_set_again_while_jobs_run(make, docker_server, monkeypatch, restarted):
    monkeypatch.setattr(module, "CHECK_SECONDS", 0)
    inside = tuple(docker_server.network)
    monkeypatch.setattr(module, "make_firewall", lambda *of: dataclasses.replace(make_firewall(*of), program=inside))
    place = make(network="reloaded", firewall="require")

    def rules():
        listed = subprocess.run([*inside, "iptables", "-S"], capture_output=True, text=True, check=True).stdout
        return [line for line in listed.splitlines() if "GRADIENT-" in line and bridge in line]

    with contextlib.ExitStack() as stack, docker_server.client() as client:
        stack.callback(client.remove_network, "reloaded")
        stack.callback(place.clear)
        _, handle = place.running("echo up; sleep 600")
        bridge = client.inspect_network("reloaded")["Options"]["com.docker.network.bridge.name"]
        before = rules()
        for chain in ("INPUT", "DOCKER-USER"):
            jump = next(line for line in before if line.startswith(f"-A {chain} "))
            subprocess.run([*inside, "iptables", "-D", *jump.split()[1:]], check=True)
        assert rules() != before
        (place.new_instance() if restarted else place.backend).sample(handle)
        assert sorted(rules()) == sorted(before)
