"""Duty cycle and memory of the VM's chips, from the metrics server of libtpu, which `tpu-info` reads, too.

That server speaks gRPC, for which Python's standard library has no client. curl sends the request and returns the
response; the few fields of its messages are written and picked here.
"""

import contextlib
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator

from worker.runner.protobuf_fields import read_fields

SERVER = os.environ.get("GRADIENT_VM_CHIP_METRICS", "127.0.0.1:8431")
_METHOD = "tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
_DUTY_CYCLE = "tpu.runtime.tensorcore.dutycycle.percent"
_MEMORY = "tpu.runtime.hbm.memory.usage.bytes"
_SECONDS = "5"
_MAX_RESPONSE_BYTES = 1 << 16  # any program of the job can answer there
_MAX_CHIPS = 16
_PREFIX_BYTES = 5  # of a gRPC message: whether it is compressed, and its length
_DOUBLE = struct.Struct("<d")


def read_chips() -> dict[str, float]:
    """Return the figures of this VM's chips, numbered from 0; empty if no program uses them, or curl is missing."""
    shown: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError):
        for metric, suffix in ((_DUTY_CYCLE, "percent"), (_MEMORY, "memory_bytes")):
            for number, (_, value) in enumerate(sorted(_values(call(metric)))[:_MAX_CHIPS]):
                shown[f"tpu{number}_{suffix}"] = value
    return shown


def call(metric: str) -> bytes:
    """Return the response about one metric; empty if there is none, or it is too large for one."""
    name = metric.encode()
    request = b"\x0a" + bytes([len(name)]) + name  # field 1: the metric's name
    options = ["--silent", "--max-time", _SECONDS, "--noproxy", "*", "--http2-prior-knowledge", "--data-binary", "@-"]
    headers = ["--header", "content-type: application/grpc", "--header", "te: trailers"]
    with subprocess.Popen(  # noqa: S603 - a fixed command
        [shutil.which("curl") or "curl", *options, *headers, f"http://{SERVER}/{_METHOD}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as curl:
        sent, received = curl.stdin, curl.stdout
        if sent is None or received is None:
            raise OSError("curl has no pipes")
        with sent:
            sent.write(struct.pack(">BI", 0, len(request)) + request)
        response = received.read(_MAX_RESPONSE_BYTES)
        if received.read(1):
            curl.kill()
    return response[_PREFIX_BYTES:] if curl.returncode == 0 else b""


def _values(response: bytes) -> Iterator[tuple[int, float]]:
    """Return the number of each device and its value, in the order of the response."""
    for metric in _messages(response, 1):
        for device_metric in _messages(metric, 3):
            device = next(
                (value for attribute in _messages(device_metric, 1) for value in _messages(attribute, 2)), b""
            )
            gauge = next(iter(_messages(device_metric, 3)), b"")
            for field, value in read_fields(gauge):
                if field == 1 and isinstance(value, bytes) and len(value) == _DOUBLE.size:
                    yield _integer(device), _DOUBLE.unpack(value)[0]
                elif field == 2 and isinstance(value, int):  # noqa: PLR2004 - the gauge as an integer
                    yield _integer(device), float(value)


def _integer(attribute: bytes) -> int:
    return next((value for field, value in read_fields(attribute) if field == 3 and isinstance(value, int)), 0)  # noqa: PLR2004 - its number


def _messages(data: bytes, number: int) -> Iterator[bytes]:
    return (value for field, value in read_fields(data) if field == number and isinstance(value, bytes))
