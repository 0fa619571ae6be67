"""Networks of jobs of a worker that is not root: `pasta` (package `passt`) makes their connections, as its user."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from core.system.bubblewrap_command import PATH
from core.system.processes import start_session
from worker.backends.network_limits import has_default_route
from worker.backends.process.network.filtered_networks import FilteredNetworks
from worker.sandbox.network_namespace import NetworkUnavailable, network_of, owner_of
from worker.sandbox.packet_filter import Rule

_RESOLVER = "198.19.255.53"
_PASTA = ["pasta", "--foreground", "--quiet", "--config-net", "-4"]
_PASTA += ["-t", "none", "-T", "none", "-u", "none", "-U", "none"]
_PASTA += ["--no-map-gw", "--dns-forward", _RESOLVER]  # it would also open the host's loopback by its gateway
_START_SECONDS, _PAUSE_SECONDS, _MESSAGE_BYTES = 10.0, 0.005, 4096


class RelayedNetworks(FilteredNetworks):
    """Networks whose connections `pasta` makes, as the worker's own user."""

    def __init__(self, limits: Callable[[list[str]], list[Rule]]) -> None:
        super().__init__(limits, "--unshare-net")

    def resolvers(self) -> list[str]:
        """See `JobNetwork.resolvers`: an address at which `pasta` asks the host's."""
        return [_RESOLVER]

    def attach(self, first: int) -> None:
        if shutil.which("pasta", path=PATH) is None:
            raise NetworkUnavailable("pasta is not installed (apt-get install passt)")
        with network_of(first) as network, owner_of(network) as owner, _open_messages() as messages:
            names = [f"/proc/self/fd/{descriptor}" for descriptor in (owner, network)]
            env, stderr = {"PATH": PATH}, messages.fileno()
            command = [*_PASTA, "--userns", names[0], "--netns", names[1]]
            relay = start_session(command, env, network, owner, stderr=stderr)
            # It would keep the network.
            command = ["/bin/sh", "-c", 'tail --pid="$0" -f /dev/null; kill "$1"', str(first), str(relay.pid)]
            start_session(command, env, stderr=stderr)
            self.set_filter(network)  # meanwhile
            until = time.monotonic() + _START_SECONDS
            while not has_default_route(first):
                if time.monotonic() > until or relay.poll() is not None:
                    messages.seek(0)
                    lines = messages.read().rstrip(b"\0").decode(errors="replace").splitlines()
                    why = " ".join(line for line in lines if not line.startswith("Failed to send"))
                    raise NetworkUnavailable(f"pasta: {why[-300:] or 'no connection'}")
                time.sleep(_PAUSE_SECONDS)


@contextmanager
def _open_messages() -> Iterator[BinaryIO]:
    """Open a file in memory for a program's messages; it does not grow."""
    with os.fdopen(os.memfd_create("messages", os.MFD_ALLOW_SEALING), "w+b") as messages:
        messages.truncate(_MESSAGE_BYTES)
        fcntl.fcntl(messages, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        yield messages
