import logging
import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial

from cachetools import LRUCache

from worker.sandbox import netlink
from worker.sandbox.network_namespace import JobNetwork, NetworkUnavailable, configure, network_of, open_network
from worker.sandbox.packet_filter import Rule, make_filter

logger = logging.getLogger(__name__)

KEPT_SECONDS = 10.0
_MAX_NETWORKS = 10_000


class FilteredNetworks(JobNetwork):
    """Networks whose packet filter decides what a job reaches, whatever the host's firewall is.

    Args:
        limits: Returns the filter's rules, given the job's DNS servers.
        unshare: See `JobNetwork`.
    """

    def __init__(self, limits: Callable[[list[str]], list[Rule]], *unshare: str) -> None:
        super().__init__(*unshare)
        self._find_limits = limits
        self._lock = threading.Lock()
        self._filter, self._found_at = b"", -math.inf
        self._filters: LRUCache[int, bytes] = LRUCache(_MAX_NETWORKS)  # by the number of the network

    def current_filter(self) -> bytes:
        """Return the filter of now. To find it may take a query of names, in the network of this host."""
        with self._lock:
            if time.monotonic() - self._found_at > KEPT_SECONDS:
                self._filter = make_filter(self._find_limits(self.resolvers()))
                self._found_at = time.monotonic()
            return self._filter

    def set_filter(self, network: int, *, renew: bool = False) -> None:
        """Set the filter of a network, or renew it: unless it is what was set last. Raises `NetworkUnavailable`."""
        messages = self.current_filter()
        if not (renew and self.is_set(network, messages)):
            self.send_filter(network, messages, partial(configure, network, netlink.send_filter))

    def is_set(self, network: int, messages: bytes) -> bool:
        with self._lock:
            return self._filters.get(os.fstat(network).st_ino) == messages

    def send_filter(self, network: int, messages: bytes, send: Callable[[bytes], None]) -> None:
        """Let `send` send the filter of a network to the kernel. Raises `NetworkUnavailable`."""
        try:
            send(messages)
        except OSError as error:
            raise NetworkUnavailable(f"the kernel cannot set a packet filter (nf_tables): {error.strerror}") from error
        with self._lock:
            self._filters[os.fstat(network).st_ino] = messages

    def renew(self, first: int) -> None:
        """See `JobNetwork.renew`: addresses of this host and keys come and go while a job runs."""
        this_network = open_network()
        try:
            with network_of(first) as network:
                if not os.path.sameopenfile(this_network, network):  # another process may have the pid
                    self.set_filter(network, renew=True)
        except OSError as error:
            if os.path.exists(f"/proc/{first}"):  # noqa: PTH110 - as in network_namespace.py
                logger.warning("network_not_renewed", extra={"why": str(error)})
        finally:
            os.close(this_network)
