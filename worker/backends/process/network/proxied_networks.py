"""Networks of jobs where none can lead out: loopback alone, and in it an HTTP proxy, a process of the worker's host."""

import json
import os
import socket
import subprocess
import sys
from ipaddress import IPv4Network

from worker.backends.network_limits import REFUSED, host_rules
from worker.backends.process.job_sandbox import in_memory
from worker.backends.process.network.relayed_networks import RelayedNetworks, start_helper
from worker.sandbox import http_proxy
from worker.sandbox.netlink import Rule
from worker.sandbox.network_namespace import listen

_ADDRESS, _PORT = "127.0.0.1", 3128
_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
_OWN = [Rule(REFUSED, IPv4Network(one)) for one in ("0.0.0.0/8", "127.0.0.0/8")]
"""Rules against what is the job's own in its network, and the host's where the proxy connects."""


class ProxiedNetworks(RelayedNetworks):
    """Networks whose connections a proxy makes, as the worker's own user, or as nobody if that is root."""

    variables = {  # noqa: RUF012 - never changed
        **dict.fromkeys(_NAMES, f"http://{_ADDRESS}:{_PORT}"),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), f"localhost,{_ADDRESS}"),
    }

    def resolvers(self) -> list[str]:
        """See `JobNetwork.resolvers`: the proxy resolves names."""
        return []

    def attach(self, first: int) -> None:
        rules = sorted([*self._find_limits([]), *host_rules(), *_OWN], key=lambda one: one.order)
        given = [(str(one.to), one.port, one.prohibit) for one in rules if one.protocol != socket.IPPROTO_UDP]
        sandbox = os.pidfd_open(first)
        try:
            with listen(first, _ADDRESS, _PORT) as listener, in_memory(json.dumps(given).encode()) as file:
                inherited = listener.fileno(), sandbox
                words = [sys.executable, "-I", "-S", http_proxy.__file__, *map(str, inherited)]
                start_helper(words, subprocess.DEVNULL, *inherited, given=file)
        finally:
            os.close(sandbox)
