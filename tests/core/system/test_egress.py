"""The rule for addresses that users name: every spelling of an address that is not public."""

import socket

import pytest
from support.forbidden_host_spellings import ALLOWED_HOSTS, FORBIDDEN_ADDRESSES, fake_resolver

from core.errors import EgressRefused
from core.settings.network import EgressSettings
from core.system import egress
from core.system.egress import Egress


def rule(*allowed, schemes=("https", "http")):
    return Egress(EgressSettings(allowed=list(allowed), schemes=list(schemes)))


@pytest.mark.parametrize("host", ALLOWED_HOSTS)
def test_public_hosts_are_not_refused(host):
    assert rule().check_url(f"https://{host}/repo.git", "workspace")[1] == 443


@pytest.mark.parametrize("host", ["%31%32%37.0.0.1", "127.0.0.1%00.example.com", "a b", "", "\uff11\uff12\uff17.0.0.1"])
def test_what_is_no_host_is_refused(host):
    with pytest.raises(EgressRefused):
        rule().check_host(host, "host")


@pytest.mark.parametrize("host", ["127.0.0.1\ufe0f", "1\u034f27.0.0.1", "127.0.0.1\u3164", "%31%32%37.0.0.1\u3042"])
def test_an_address_is_not_hidden_by_characters_that_programs_drop_or_decode(host):
    with pytest.raises(EgressRefused):
        rule().check_url(f"https://{host}/simple", "requirements.txt")


@pytest.mark.parametrize(
    "host", ["b\u00fccher.example", "\u4f8b\u3048.jp", "1.\u0440\u0444", "\u0928\u092e\u0938\u094d\u0924\u0947.example"]
)
def test_names_in_other_scripts_are_not_refused(host):
    assert rule().check_url(f"https://{host}/simple", "requirements.txt") == (host, 443)


@pytest.mark.parametrize("address", FORBIDDEN_ADDRESSES)
def test_a_name_of_an_address_that_is_not_public_is_refused(monkeypatch, address):
    monkeypatch.setattr(egress.socket, "getaddrinfo", fake_resolver(address))
    with pytest.raises(EgressRefused):
        rule().resolve("innocent.example", 443, "workspace")


def test_one_private_address_beside_a_public_one_is_refused(monkeypatch):
    both = [(None, None, None, "", ("8.8.8.8", 443)), (None, None, None, "", ("10.0.0.1", 443))]
    monkeypatch.setattr(egress.socket, "getaddrinfo", lambda *_, **__: both)
    with pytest.raises(EgressRefused):
        rule().resolve("innocent.example", 443, "workspace")


@pytest.mark.parametrize(
    ("allowed", "host"),
    [
        ("10.1.0.0/16", "10.1.2.3"),
        ("10.1.2.3", "10.1.2.3"),
        ("::1", "[::1]"),
        ("127.0.0.0/8", "[::ffff:127.0.0.1]"),
        ("localhost", "LocalHost"),
    ],
)
def test_an_administrator_allows_networks_and_names(allowed, host):
    rule(allowed).check_host(host, "host")
    with pytest.raises(EgressRefused):
        rule(allowed).check_host("10.2.0.1", "host")


def test_the_address_of_an_allowed_name_is_not_asked_about(monkeypatch):
    monkeypatch.setattr(egress.socket, "getaddrinfo", fake_resolver("10.0.0.1"))
    assert rule("git.internal").resolve("git.internal", 443, "workspace") == [("10.0.0.1", 443)]
    with pytest.raises(EgressRefused):
        rule("git.internal").resolve("evil.git.internal", 443, "workspace")


def test_a_name_without_an_address_is_said_to_have_none(monkeypatch):
    def nothing(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(egress.socket, "getaddrinfo", nothing)
    with pytest.raises(EgressRefused, match="nowhere"):
        rule().resolve("nowhere.example", 443, "workspace")


def test_a_name_in_capitals_is_a_host_as_the_engine_reads_it(monkeypatch):
    monkeypatch.setattr(egress.socket, "getaddrinfo", fake_resolver("10.0.0.1"))
    with pytest.raises(EgressRefused):
        rule().resolve_image("INTERNAL/x", "container")
    rule().resolve_image("python:3.12", "container")
    rule("internal").resolve_image("INTERNAL/x", "container")
