"""Checks whether jobs can have sandboxes, and networks of their own, on this machine."""

import os
import shutil

from core.settings import Settings
from core.settings.worker import ProcessSettings
from worker.backends.process.job_sandbox import sandbox_support
from worker.backends.process.network.job_network import reason_without_network


def can_link() -> bool:
    """Return whether a worker that is root can link them with this host."""
    return os.geteuid() == 0 and reason_without_network(Settings(process=ProcessSettings(sandbox="auto"))) is None


def can_relay() -> bool:
    """Return whether a worker of another user can have their connections passed on."""
    return shutil.which("pasta") is not None and os.access("/dev/net/tun", os.R_OK | os.W_OK)


def can_sandbox() -> bool:
    """Return whether jobs can have a sandbox."""
    return sandbox_support().problem is None


REQUIREMENTS = {
    "bubblewrap": (can_sandbox, "no sandbox (apt-get install bubblewrap; this user must be allowed namespaces)"),
    "linked_networks": (can_link, "no networks for jobs (run the tests as root, and apt-get install iptables)"),
    "relayed_networks": (can_relay, "no networks for jobs of an ordinary user (apt-get install passt; /dev/net/tun)"),
}
PARAMETERS = {"linked_networks": "linked", "relayed_networks": "relayed"}
"""Parameters of tests that need them."""
