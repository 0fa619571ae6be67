"""The start of the service: settings that would let others read keys, and signals that come early."""

import json
import os
import socket
import subprocess
import sys

import pytest

from core.settings import Settings
from core.settings.api import ApiSettings
from gradient_server import entrypoints
from gradient_server.api_port import InsecureHttp, PortTaken, bind_port

pytestmark = pytest.mark.integration

SIGNALLED_AT_ONCE = """
import os, signal, sys
from core.settings import Settings
from gradient_server import entrypoints

say = entrypoints.announce
started = os.getpid()
entrypoints.announce = lambda text: (say(text), os.kill(started, signal.SIGTERM))
sys.exit(getattr(entrypoints, sys.argv[1])(Settings(api={"port": 0}), *sys.argv[2:]))
"""


EVERYWHERE = "0.0.0.0"  # noqa: S104 - the case under test


@pytest.mark.parametrize("api", [{}, {"public_url": "http://jobs.example"}])
@pytest.mark.parametrize("host", [EVERYWHERE, "::", "192.0.2.1"])
@pytest.mark.parametrize("start", [entrypoints.api, lambda settings: entrypoints.up(settings, None)])
def test_http_that_others_can_reach_is_refused(tmp_path, api, host, start):
    settings = Settings(home=tmp_path, api=ApiSettings(host=host, port=0, **api))
    with pytest.raises(InsecureHttp, match=r"GRADIENT_API__PUBLIC_URL.*GRADIENT_API__INSECURE_HTTP=true"):
        start(settings)


@pytest.mark.parametrize(
    "api",
    [
        {"host": "127.0.0.1"},
        {"host": "localhost"},
        {"host": EVERYWHERE, "public_url": "https://jobs.example"},
        {"host": EVERYWHERE, "insecure_http": True},
    ],
)
def test_loopback_a_proxy_with_tls_or_an_explicit_word_is_enough(monkeypatch, tmp_path, api):
    bound = []
    monkeypatch.setattr(socket.socket, "bind", lambda _, address: bound.append(address))
    bind_port(Settings(home=tmp_path, api=ApiSettings(port=0, **api))).socket.close()
    assert bound == [(api["host"], 0)]


class Listening(Exception):
    """The API's port is about to accept connections."""


def test_the_key_is_written_before_the_port_accepts_connections(monkeypatch, tmp_path):
    """A client that connects as soon as it can would otherwise send no key."""

    def look(listener):
        found = json.loads((tmp_path / "cli.json").read_text())["url"], listener.getsockname()[1]
        listener.close()
        raise Listening(*found)

    monkeypatch.setattr(entrypoints, "listen", look)
    with pytest.raises(Listening) as listened:
        entrypoints.api(Settings(home=tmp_path, api=ApiSettings(port=0)))
    url, port = listened.value.args
    assert url == f"http://127.0.0.1:{port}"


def test_a_taken_port_is_named_and_leaves_the_key_file_alone(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port}: Address already in use"):
            entrypoints.api(Settings(home=tmp_path, api=ApiSettings(port=port)))
    assert not (tmp_path / "cli.json").exists()


@pytest.mark.parametrize("start", [["worker", "w1"], ["up", "w1"]], ids=lambda start: start[0])
def test_a_signal_as_early_as_the_word_that_it_is_ready_stops_it(tmp_path, start):
    if start[0] == "worker":
        entrypoints.migrate(Settings(home=tmp_path))
    stopped = subprocess.run(
        [sys.executable, "-c", SIGNALLED_AT_ONCE, *start],
        env=os.environ | {"GRADIENT_HOME": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "is ready" in stopped.stderr
    if start[0] != "worker":
        assert f"GRADIENT_HOME={tmp_path} gradient-cli jobs create" in stopped.stderr
    assert stopped.returncode == 0, stopped.stderr
