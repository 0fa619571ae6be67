"""The doctor's findings about the network of TPU nodes, on a server that answers as Google's documents say."""

from ipaddress import IPv4Network

import pytest
from support.google.production import PROJECT

from core.settings import Settings
from gradient_server.checks import tpu_network, tpus
from gradient_server.checks.finding import Status

pytestmark = pytest.mark.integration

ON_VMS = ["us-west4-a"]
"""A zone with types whose jobs run on their VMs, among them a slice."""
REMOTE = ["us-central1-b"]
"""A zone with types that jobs use over the network."""
CENTRAL = "us-central1"


@pytest.fixture
def compute(google):
    return google.compute


@pytest.fixture
def findings(google, tmp_path, monkeypatch):
    """Find what is said about the network: check, status and the words with the remedy."""
    monkeypatch.setattr(tpu_network, "_address_towards", lambda _: IPv4Network("10.128.0.5"))

    def find(zones, **options):
        settings = Settings(home=tmp_path, tpu={"project": PROJECT, "zones": zones} | options)
        found = [one for one in tpus.check(settings) if one.check in {"tpu-firewall", "tpu-route"}]
        return [(one.check, one.status, f"{one.message} {one.fix or ''}") for one in found]

    yield find
    asked = [one for one in google.storage.requests if "/compute/" in one]
    assert [one for one in asked if not one.startswith("GET ")] == [], "it only reads"
    assert google.made() == []


BY_TAG = {"sourceRanges": None, "sourceTags": ["worker"]}


def add_nat(compute, region):
    compute.routers[region] = [compute.resource("router", nats=[{"name": "nat"}])]


def denying(compute, source, **fields):
    return compute.rule("no", source, allowed=None, denied=[{"IPProtocol": "tcp"}], **fields)


def only(found, check):
    (one,) = [(status, words) for name, status, words in found if name == check]
    return one


def test_a_node_that_installs_from_a_bucket_needs_googles_apis_alone(findings, compute):
    packages = {"packages": "gs://mirror/tpu"}
    status, words = only(findings(REMOTE, **packages), "tpu-route")
    assert (status, "and no Private Google Access: nodes of TPU" in words) == (Status.PROBLEM, True)
    assert "cannot fetch gs://mirror/tpu." in words
    assert "--region us-central1 --enable-private-ip-google-access" in words
    compute.subnetworks[CENTRAL][0]["privateIpGoogleAccess"] = True
    status, words = only(findings(REMOTE, **packages), "tpu-route")
    assert (status, "they reach gs://mirror/tpu through Private Google Access" in words) == (Status.OK, True)


def test_a_network_without_a_default_route(findings, compute):
    compute.routes.clear()
    status, words = only(findings(ON_VMS, external_ips=True), "tpu-route")
    assert (status, "--next-hop-gateway default-internet-gateway" in words) == (Status.PROBLEM, True)


def test_a_region_without_a_subnetwork(findings, compute):
    compute.subnetworks.clear()
    assert "no subnetwork in us-west4" in only(findings(ON_VMS), "tpu-route")[1]


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (lambda _: [], Status.PROBLEM, "--allow tcp:8470 --source-ranges 10.128.0.5/32"),
        (lambda one: [one.rule("own", "10.128.0.0/20", "8000-9000")], Status.OK, "rule own admits this host"),
        (lambda one: [one.rule("own", "10.128.0.0/20")], Status.OK, "rule own admits"),
        (lambda one: [one.rule("own", "10.128.0.0/20", protocol="all")], Status.OK, "rule own admits"),
        (lambda one: [one.rule("own", "10.128.0.0/20", "8471")], Status.PROBLEM, "no rule of network default"),
        (lambda one: [one.rule("own", "10.9.0.0/16", "8470")], Status.PROBLEM, "no rule of network default"),
        (lambda one: [one.rule("own", "10.128.0.0/9") | {"disabled": True}], Status.PROBLEM, "no rule"),
        (lambda one: [one.rule("own", "10.128.0.0/9", targetTags=["web"])], Status.PROBLEM, "no rule"),
        (lambda one: [one.rule("own", "10.128.0.0/9", targetTags=["tpu"])], Status.OK, "rule own admits"),
        (lambda one: [one.rule("own", "", "8470", **BY_TAG)], Status.WARNING, "by network tag"),
        (
            lambda one: [one.rule("own", "10.128.0.0/9"), denying(one, "10.128.0.5/32", priority=9)],
            Status.PROBLEM,
            "rule no denies this host",
        ),
        (
            lambda one: [one.rule("own", "10.128.0.0/9"), denying(one, "10.128.0.0/9")],
            Status.PROBLEM,
            "rule no denies this host",
        ),
    ],
)
def test_the_rule_that_decides_for_a_worker_is_named(findings, compute, change, status, words):
    add_nat(compute, CENTRAL)
    compute.firewalls = change(compute)
    found = only(findings(REMOTE, tags=["tpu"]), "tpu-firewall")
    assert (found[0], words in found[1]) == (status, True), found


def test_a_worker_that_is_not_admitted_to_vms_has_no_sessions(findings, compute):
    """Jobs run without them."""
    compute.firewalls.clear()
    [(status, words)] = [(status, words) for _, status, words in findings(ON_VMS) if "sessions" in words]
    assert (status, "no rule of network default admits this host (10.128.0.5) to port 8474" in words) == (
        Status.WARNING,
        True,
    )
    assert "--allow tcp:8474 --source-ranges 10.128.0.5/32" in words
    compute.firewalls.append(compute.rule("own", "10.128.0.0/20", "8474"))
    found = [status for _, status, words in findings(ON_VMS) if "to port 8474" in words]
    assert found == [Status.OK]


@pytest.mark.parametrize(("external", "status"), [(True, Status.PROBLEM), (False, Status.WARNING)])
def test_a_port_that_everybody_reaches_is_reported(findings, compute, external, status):
    compute.firewalls.append(compute.rule("open", "0.0.0.0/0", "8470"))
    found = [words for _, one, words in findings(REMOTE, external_ips=external) if one is status]
    assert any("Rule open admits every address to port 8470" in words for words in found)


def test_a_rule_that_denies_what_leaves_nodes_is_named(findings, compute):
    leaving = {"direction": "EGRESS", "sourceRanges": None}
    everything = leaving | {"destinationRanges": ["0.0.0.0/0"], "allowed": None, "denied": [{"IPProtocol": "all"}]}
    compute.firewalls.append(compute.rule("closed", "", **everything, priority=900))
    found = [(status, words) for _, status, words in findings(ON_VMS, external_ips=True) if "closed" in words]
    assert found[0][0] is Status.PROBLEM
    googles = leaving | {"destinationRanges": ["199.36.153.8/30"]}
    compute.firewalls.append(compute.rule("google", "", "443", **googles, priority=100))
    found = [(status, words) for _, status, words in findings(ON_VMS, external_ips=True) if "closed" in words]
    assert (found[0][0], "except those of google" in found[0][1]) == (Status.WARNING, True)


def test_a_network_that_does_not_exist(findings):
    status, words = only(findings(ON_VMS, network="other"), "tpu-firewall")
    assert (status, f"projects/{PROJECT}/global/networks/other" in words) == (Status.PROBLEM, True)


def test_a_network_that_may_not_be_read_is_a_warning(findings, google):
    google.storage.faults.fail(403, path="/compute/")
    status, words = only(findings(ON_VMS), "tpu-firewall")
    assert (status, "roles/compute.networkViewer" in words) == (Status.WARNING, True)
