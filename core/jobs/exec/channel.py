"""The channel of an exec session between service and worker: frames over the worker's Unix socket.

A frame is a kind (one byte), the length of its payload (four bytes, big endian) and the payload. CONTROL is a JSON
object. INPUT is data for the job, OUTPUT the number of a stream (1: stdout, 2: stderr) and its data.

The first frame is the request, the worker's first answer `{"started": true}` or `{"refused": message}`, its last one
`{"exit": code}` or `{"ended": message}`.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONTROL, INPUT, OUTPUT = 0, 1, 2
STDOUT, STDERR = 1, 2
MAX_PAYLOAD = 1024**2  # largest payload of a frame
CHUNK_BYTES = 32 * 1024  # bytes of data that are read and sent at once
HEAD = struct.Struct("!BI")
_BACKLOG = 64


class ChannelBroken(Exception):
    """The other side sent something that is not a frame."""


def encode(kind: int, payload: bytes) -> bytes:
    return HEAD.pack(kind, len(payload)) + payload


def encode_control(message: Mapping[str, Any]) -> bytes:
    return encode(CONTROL, json.dumps(message).encode())


def decode_head(head: bytes) -> tuple[int, int]:
    """Return kind and length of a frame. Raises `ChannelBroken`: they are invalid."""
    kind, length = HEAD.unpack(head)
    if kind not in {CONTROL, INPUT, OUTPUT} or length > MAX_PAYLOAD:
        raise ChannelBroken(f"frame of kind {kind} and {length} bytes")
    return kind, length


def decode_control(payload: bytes) -> dict[str, Any]:
    """Return the JSON object of a control frame. Raises `ChannelBroken`: it is not one."""
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError) as error:  # the second: it is nested too deeply
        raise ChannelBroken("a control frame without JSON") from error
    if not isinstance(message, dict):
        raise ChannelBroken("a control frame without an object")
    return message


def receive(connection: socket.socket) -> tuple[int, bytes] | None:
    """Return the next frame of a blocking socket; None at its end.

    Raises:
        ChannelBroken: The other side sent something else.
        OSError: The connection is broken.
    """
    head = receive_exactly(connection, HEAD.size)
    if head is None:
        return None
    kind, length = decode_head(head)
    payload = receive_exactly(connection, length)
    return None if payload is None else (kind, payload)


def receive_exactly(connection: socket.socket, count: int) -> bytes | None:
    """Return this many bytes of a blocking socket; None if it ends before."""
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def listen(root: Path, worker: str) -> socket.socket:
    """Listen at a worker's socket, instead of whoever did so before. Raises `OSError`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = root / "workers" / f"{worker}.sock"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.unlink(missing_ok=True)
        with socket_address(root, worker) as address:
            listener.bind(address)
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


@contextmanager
def socket_address(root: Path, worker: str) -> Iterator[str]:
    """Yield the address of a worker's socket, in a form that is short enough for the kernel.

    `root`: the service's folder (GRADIENT_HOME), which service and worker share. Raises `OSError`: the folder of the
    sockets does not exist.
    """
    folder = os.open(root / "workers", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{worker}.sock"
    finally:
        os.close(folder)
