"""The thread that receives DogStatsD datagrams.

A flood of them costs a bounded share of a CPU and no memory: the kernel buffers a few and drops the rest.
"""

import contextlib
import logging
import select
import socket
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING

from core.catalogue.backends import capabilities_of
from core.settings import Settings
from core.settings.worker import PROCESS_BACKEND
from worker.backends.metric_sockets import MetricSockets
from worker.context import WorkerContext
from worker.runner.statsd import DATAGRAM_BYTES
from worker.statsd.metrics_writer import Aggregator, Sender

if TYPE_CHECKING:
    from worker.statsd.container_sender_lookup import ContainerSenderLookup

logger = logging.getLogger(__name__)

_BATCH = 64
_PAUSE_SECONDS = 0.02  # pause after a full batch; it limits reading to about 3000 datagrams a second
_FLUSH_SECONDS = 0.5
_BIND_SECONDS = 5.0


class _ContainerSocket:
    """The socket for the jobs in containers, bound as soon as their network exists."""

    def __init__(self, settings: Settings) -> None:
        # The engine's SDK takes memory and time, and a worker without containers does not need it.
        module = import_module("worker.statsd.container_sender_lookup")
        self.lookup: ContainerSenderLookup = module.ContainerSenderLookup(settings)
        self.socket: socket.socket | None = None
        self._port = settings.statsd.port
        self._address: str | None = None
        self._warned = False

    def bind(self) -> None:
        """Bind to the address that the jobs send to; if it is in use, try again later."""
        address = self.lookup.listen_address()
        if address is None or (self.socket is not None and address == self._address):
            return
        self.close()
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            opened.bind((address, self._port))
        except OSError as error:
            opened.close()
            if not self._warned:
                self._warned = True
                logger.warning(
                    "statsd_not_bound: another program uses the port, so containers' gradient-statsd metrics are lost",
                    extra={"address": address, "port": self._port, "why": str(error)},
                )
            return
        opened.settimeout(0)
        self.socket, self._address = opened, address

    def receive(self) -> list[tuple[bytes, tuple[str, int]]]:
        """Receive waiting datagrams, at most one batch."""
        datagrams: list[tuple[bytes, tuple[str, int]]] = []
        with contextlib.suppress(BlockingIOError):
            while self.socket is not None and len(datagrams) < _BATCH:
                datagrams.append(self.socket.recvfrom(DATAGRAM_BYTES))
        return datagrams

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None


class Listener:
    """Receives the metrics that this host's jobs send, until it is stopped."""

    def __init__(self, context: WorkerContext) -> None:
        self._context, port = context, context.settings.statsd.port
        sending = [can for can in map(capabilities_of, context.enabled_backends) if can.sends_metrics and port]
        self._metrics: MetricSockets | None = None
        self._enabled = bool(sending)
        self._containers = _ContainerSocket(context.settings) if any(can.containers for can in sending) else None
        self._aggregator = Aggregator(context.scratch_root)
        self._stopping = threading.Event()
        self._bind_at = self._flush_at = 0.0
        self._thread = threading.Thread(target=self._run, name="statsd", daemon=True)

    def start(self) -> None:
        """Start the thread, unless there is nothing to receive."""
        if self._enabled:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self.tick()
                except Exception:  # a bad datagram must not end the thread
                    logger.exception("statsd_failed")
                    self._stopping.wait(1.0)
        finally:
            self._aggregator.flush()
            if self._containers is not None:
                self._containers.close()

    def tick(self) -> None:
        now = time.monotonic()
        if now >= self._bind_at:
            if self._containers is not None:
                self._containers.bind()
            if PROCESS_BACKEND in self._context.enabled_backends:
                self._metrics = self._context.backend(PROCESS_BACKEND).metric_sockets()
            self._bind_at = now + _BIND_SECONDS
        if now >= self._flush_at:
            self._aggregator.flush()
            self._flush_at = now + _FLUSH_SECONDS
        on_gateway = self._containers.socket if self._containers is not None else None
        sources = [source for source in (on_gateway, self._metrics) if source is not None]
        if not sources:
            self._stopping.wait(_FLUSH_SECONDS)
            return
        readable = select.poll()  # not select(): it refuses descriptors above 1023
        for source in sources:
            readable.register(source, select.POLLIN)
        readable.poll(1000 * _FLUSH_SECONDS)
        taken = self._receive_own(self._metrics) if self._metrics is not None else 0
        if self._containers is not None:
            taken += self._receive(self._containers)
        if taken:
            self._aggregator.flush()  # at once: the job may end in its next step
        if taken >= _BATCH:
            self._stopping.wait(_PAUSE_SECONDS)

    def _receive(self, bound: _ContainerSocket) -> int:
        received = bound.receive()
        # At once, for all of them together: a sender may have ended a moment later.
        senders = bound.lookup.find_senders({address for _, address in received})
        for data, address in received:
            sender = senders.get(address)
            if sender is None:
                logger.debug("statsd_sender_unknown", extra={"address": address})
                continue
            self._aggregator.receive(sender, data)
        return len(received)

    def _receive_own(self, metrics: MetricSockets) -> int:
        received = metrics.receive(_BATCH)
        for data, name in received:
            job_id, _, attempt = name.rpartition("-")
            self._aggregator.receive(Sender(job_id, int(attempt)), data)
        return len(received)
