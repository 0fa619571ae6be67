"""The doctor's findings about the networks of jobs."""

import pytest

from core.settings import Settings
from gradient_server.checks import host
from gradient_server.checks.finding import Status


@pytest.mark.parametrize(
    ("missing", "limited", "status", "words"),
    [
        (None, None, Status.OK, "networks of their own"),
        (None, "pasta is not installed", Status.WARNING, "HTTP and HTTPS alone, by a proxy: pasta is not installed"),
        ("bubblewrap makes no network", None, Status.WARNING, "reach what listens on this machine"),
    ],
)
def test_the_kind_of_network_that_jobs_have_is_said(monkeypatch, missing, limited, status, words):
    monkeypatch.setattr(host, "reason_without_sandbox", lambda _: None)
    monkeypatch.setattr(host, "reason_without_network", lambda _: missing)
    monkeypatch.setattr(host, "reason_for_proxy", lambda: limited)
    finding = host.job_network(Settings())
    assert (finding.status, words in finding.message) == (status, True)


@pytest.mark.parametrize(
    ("address", "settings", "status", "words"),
    [
        ("127.0.0.1", {}, Status.OK, "run in this host's network, at 127.0.0.1"),
        ("192.0.2.1", {}, Status.WARNING, "no network interface of this host has 192.0.2.1"),
        ("255.255.255.255", {}, Status.WARNING, "255.255.255.255 is not the address of one host"),
        ("224.0.0.1", {}, Status.WARNING, "224.0.0.1 is not the address of one host"),
        ("127.0.0.1", {"process": {"network": "require"}}, Status.WARNING, "GRADIENT_PROCESS__NETWORK=require"),
        ("127.0.0.1", {"docker": {"firewall": "require"}}, Status.OK, "this host's network"),
        (
            "127.0.0.1",
            {"docker": {"firewall": "require"}, "machines": {"simulate": False}},
            Status.WARNING,
            "GRADIENT_DOCKER__FIREWALL=require keeps jobs out of",
        ),
    ],
)
def test_why_no_nodes_run_together_with_other_hosts_is_said(address, settings, status, words):
    finding = host.nodes_address(Settings(worker={"nodes_address": address}, **settings))
    assert (finding.status, words in finding.message) == (status, True), finding.message
