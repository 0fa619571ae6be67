"""The doctor's finding about the network of jobs."""

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
