from __future__ import annotations

import argparse
import errno
import socket
import threading
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.api.exec import CHUNK, Session
from gradient_cli.arguments import connect, resolve_job_id
from gradient_cli.errors import OK, ClientError, UsageError
from gradient_cli.options import add_common, add_positional

if TYPE_CHECKING:
    from typing_extensions import Self


_ADDRESSES = ("127.0.0.3", "127.0.0.1", "::1")
"""Addresses of this computer to listen on, the best first; some systems have only the latter two.

Browsers send cookies to every port of a host name: a job must not get those of the dashboard, nor other jobs those of a
notebook: the links of a server on this computer are at 127.0.0.2.
"""
_LAST_PORT = 65_535
_BACKLOG = 64


def add_port_forward(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "id", needed=True, metavar="ID", help="id of the job, or its beginning")
    add_positional(
        parser,
        "port",
        needed=True,
        metavar="PORT[:LOCAL]",
        help="port that the job listens on, and port on this computer (default: the same; 0: a free port)",
    )
    parser.add_argument("--path", metavar="PATH", default="", help="path to append to the printed link, such as /lab")
    add_common(parser, port_forward, json="")


def port_forward(args: argparse.Namespace) -> int:
    port, local = _parse_ports(args.port)
    api = connect(args)
    job_id = resolve_job_id(args.id, api)
    with Forward(api, api.job(job_id), port, local) as forward:
        print(
            f"{forward.url}{terminal.sanitize(args.path)} is port {port} of job {job_id}. Ctrl-C closes it.", flush=True
        )
        with suppress(KeyboardInterrupt):
            forward.wait()
    return OK


def _parse_ports(text: str) -> tuple[int, int]:
    port, _, local = text.partition(":")
    numbers = [int(part) if part.isdecimal() and part.isascii() else -1 for part in (port, local or port)]
    if not 1 <= numbers[0] <= _LAST_PORT or not 0 <= numbers[1] <= _LAST_PORT:
        raise UsageError(f"port: {text!r} is not PORT or PORT:LOCAL", hint="For example 6006, or 6006:8006.")
    return numbers[0], numbers[1]


class Forward:
    """Connections from a port of this computer to one of a job. `local`: the port of this computer; 0: a free one."""

    def __init__(self, api: Api, job: dict[str, Any], port: int, local: int) -> None:
        self._api = api
        self._job_id = job["id"]
        self._remote = port
        self._stack = ExitStack()
        self.quiet = False  # set to print no connection that the job refuses
        self._shown: set[str] = set()
        try:
            self._listener = self._stack.enter_context(listen(local, (api.url, job.get("url") or "")))
        except OSError as error:
            raise ClientError(
                f"port {local} of this computer: {error.strerror}",
                hint=f"Choose another port: {port}:LOCAL, or {port}:0.",
            ) from None
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        host, number = self.address
        self.url = f"http://[{host}]:{number}" if ":" in host else f"http://{host}:{number}"

    def __enter__(self) -> Self:
        with self._stack.pop_all() as stack:
            connection = stack.enter_context(self._api.forward_port(self._job_id, self._remote))
            self._session = Session(connection)
            threading.Thread(target=self._accept, daemon=True).start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait(self) -> None:
        for _ in self._session.outputs():
            pass
        raise ClientError(terminal.sanitize(self._session.result.get("ended")))

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:  # closed last: whoever sees its end finds the error printed
            try:
                with self._api.connect_to_port(self._job_id, self._session.id) as opened:
                    session = Session(opened)
                    read = partial(connection.recv, CHUNK)
                    threading.Thread(target=session.send_input, args=(read,), daemon=True).start()
                    for stream, data in session.outputs():
                        if stream == 1:  # what connects in a container may report errors on the other one
                            connection.sendall(data)
                    connection.shutdown(socket.SHUT_RDWR)
            except ClientError as error:
                if not self.quiet and str(error) not in self._shown:  # a browser tries again and again
                    self._shown.add(str(error))
                    terminal.print_message(str(error))
            except OSError:  # the program on this computer is gone
                return


def listen(port: int, dashboards: Iterable[str]) -> socket.socket:
    """Listen on an address of this computer that is not that of a dashboard. Raises `OSError`: the port is taken."""
    taken = {address for url in dashboards for address in _resolve(urlsplit(url).hostname or "")}
    for address in _ADDRESSES:
        if address in taken:
            continue
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            return socket.create_server((address, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    raise ClientError(
        f"the job's page would have the dashboard's host name, {' or '.join(sorted(taken))}, so the dashboard's "
        "session would be sent to the job",
        hint=f"Give this computer the address {_ADDRESSES[0]} (macOS: `sudo ifconfig lo0 alias {_ADDRESSES[0]}`).",
    )


def _resolve(name: str) -> set[str]:
    """Return the addresses of a host name, in every spelling of which browsers find them."""
    try:
        return {str(answer[4][0]) for answer in socket.getaddrinfo(name, None)} if name else set()
    except OSError:  # then browsers do not find it either
        return set()
