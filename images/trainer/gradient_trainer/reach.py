"""Checks that something listens at a TPU's address; TensorFlow itself would wait for a dead one for ever."""

import socket
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from .errors import DeviceUnreachable

TPU_PORT = 8470
_PROBE_SECONDS = 5.0
_PAUSE_SECONDS = 1.0


def reach_tpu(environ: Mapping[str, str], seconds: float) -> None:
    """Wait until every address in `TPU_GRPC_URL` accepts a connection; without that variable, do nothing.

    Raises:
        DeviceUnreachable: One of them is not an address, or nothing listens there.
    """
    for url in filter(None, environ.get("TPU_GRPC_URL", "").split(",")):
        _wait_for(url, seconds)


def _wait_for(url: str, seconds: float) -> None:
    parts = urlsplit(url)
    try:
        place = parts.hostname, parts.port or TPU_PORT
    except ValueError:
        place = None, TPU_PORT
    host, port = place
    if parts.scheme != "grpc" or host is None:
        raise DeviceUnreachable(f"TPU_GRPC_URL {url!r} is no address; it must look like grpc://10.0.0.2:{TPU_PORT}")
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=max(0.1, min(_PROBE_SECONDS, seconds))).close()
        except OSError as error:
            if time.monotonic() + _PAUSE_SECONDS >= until:
                raise DeviceUnreachable(
                    f"the TPU at {url} did not answer within {seconds:g} seconds ({error}); is the node READY, "
                    "and does a firewall let this machine reach its port? --connect-timeout waits longer"
                ) from error
            time.sleep(_PAUSE_SECONDS)
        else:
            return
