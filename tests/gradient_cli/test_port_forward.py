"""The address that `jobs port-forward` listens on: never the dashboard's, whose cookies browsers would send there."""

import socket
from urllib.parse import urlsplit

import pytest
from support.free_port import free_port

from gradient_cli.commands.jobs.port_forward import listen
from gradient_cli.errors import ClientError

LOOPBACK = ["http://127.0.0.3:8780", "http://localhost", "http://[::1]:8780"]


@pytest.mark.parametrize(
    "dashboard",
    [*LOOPBACK, "http://127.0.0.1:8780", "http://127.1", "http://0x7f000003", "http://0.0.0.0:80", "https://LOCALHOST"],
)
def test_nothing_listens_at_the_dashboards_address(dashboard):
    with listen(free_port(), [dashboard]) as listener:
        with socket.create_connection(listener.getsockname()[:2], 10):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((urlsplit(dashboard).hostname, listener.getsockname()[1]), 10)


def test_no_address_is_left():
    with pytest.raises(ClientError) as refused:
        listen(0, LOOPBACK)
    assert "the dashboard's host name, 127.0.0.1 or 127.0.0.3 or ::1" in str(refused.value)


def test_a_name_that_is_not_found_has_no_address():
    with listen(0, ["https://jobs.invalid"]) as listener:
        assert listener.getsockname()[0] == "127.0.0.3"
