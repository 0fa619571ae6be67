"""A client for server-sent events that reconnects after a broken connection."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.retries import Reconnection
from gradient_cli.errors import ClientError, ConnectionFailed

Event = tuple[str, dict[str, Any]]


def parse_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Parse a stream of bytes into events (name and JSON data), skipping comments, which are keep-alives.

    Raises `ConnectionFailed`: the data of an event is not a JSON object.
    """
    name = "message"
    data: list[bytes] = []
    for line in _lines(chunks):
        if not line:
            if data:
                yield name, _parse_data(b"\n".join(data))
            name, data = "message", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            name = value.decode("utf-8", "replace")
        elif field == b"data":
            data.append(value)


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []  # pieces of an unfinished line, joined only once, so that a long line takes linear time
    for chunk in chunks:
        if b"\n" not in chunk:
            held.append(chunk)
            continue
        *ended, rest = b"".join([*held, chunk]).split(b"\n")
        for line in ended:
            yield line.removesuffix(b"\r")
        held = [rest]


def _parse_data(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConnectionFailed("the server sent an invalid event stream", hint="Try again.", transient=False)
    return value


def follow(connect: Callable[[int], Iterable[bytes]], line: int) -> Iterator[Event]:
    """Yield the events of a job's log after a line until `end`, reconnecting as often as needed.

    Each line comes once and in order: a new connection resumes after the last line seen. `line`: the last line already
    seen; 0 for none.
    """
    reconnection = Reconnection()
    while True:
        broken: ClientError | None = None
        try:
            for name, data in parse_events(connect(line)):
                if reconnection.lost:
                    terminal.print_message(terminal.style("connected again", "dim", sys.stderr))
                    reconnection.succeed()
                if name == "line":
                    number = int(data["line"])
                    if number <= line:
                        continue
                    line = number
                yield name, data
                if name == "end":
                    return
        except ClientError as error:
            broken = error
        time.sleep(reconnection.delay_after(broken))
