import socket

from core.settings import Settings
from core.system.canonical_host import EVERY_ADDRESS


def are_ports_at_dashboard(settings: Settings) -> bool:
    """Return whether jobs' ports are opened at an address of this machine that the dashboard's name resolves to."""
    bind, addresses = settings.ports.bind, _addresses(settings.dashboard_host or "")
    return bind in addresses or (bind in EVERY_ADDRESS and any(_is_local(address) for address in addresses))


def _addresses(name: str) -> set[str]:
    try:
        return {str(answer[4][0]) for answer in socket.getaddrinfo(name, None)}
    except OSError:
        return set()


def _is_local(address: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
