"""An HTTP proxy for one job whose network has nothing but loopback: it connects from the network of the worker's host.

It runs by itself (`python -I -S`), with the standard library alone, until the job's sandbox ends.

    http_proxy.py LISTENER SANDBOX

LISTENER is a descriptor of a socket that listens in the job's network, SANDBOX one of the sandbox's first process. The
standard input has the rules, `[network, port or null, whether it is refused]`, of which the first that fits decides.
"""

import contextlib
import http.client
import http.server
import ipaddress
import json
import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from email.message import Message
from urllib.parse import urlsplit

_MAX_CONNECTIONS = 100
_CONNECT_SECONDS = 10.0
_HEADER_SECONDS = 60.0
_BLOCK_BYTES = 1 << 16
_NOBODY = 65534
_PORTS = {"http": 80, "https": 443}

Rule = tuple[ipaddress.IPv4Network, int | None, bool]


class Refused(Exception):
    """The rules refuse an address."""


def connect(host: str, port: int, rules: list[Rule]) -> socket.socket:
    """Connect to a host at one of its addresses, which was checked: its name is not resolved again."""
    addresses = [str(one[-1][0]) for one in socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)]
    for one in addresses:
        address = ipaddress.IPv4Address(one)
        if next((refused for to, at, refused in rules if address in to and at in {None, port}), False):
            raise Refused(f"{host} is at {address}, which jobs must not reach at port {port}")
    return socket.create_connection((addresses[0], port), _CONNECT_SECONDS)


class Proxy(http.server.BaseHTTPRequestHandler):
    rbufsize = 0  # what follows the header is passed on from the socket
    timeout = _HEADER_SECONDS
    rules: list[Rule]

    def do_CONNECT(self) -> None:
        self._pass_on(f"//{self.path}", 443)

    def _forward(self) -> None:
        parts = urlsplit(self.path)
        _set_closing(self.headers)
        target = parts._replace(scheme="", netloc="").geturl() or "/"
        head = f"{self.command} {target} HTTP/1.1\r\n".encode("latin-1") + _encode(self.headers)
        self._pass_on(self.path, _PORTS.get(parts.scheme, 80), head)

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):  # any other method
            return self._forward
        raise AttributeError(name)

    def _pass_on(self, url: str, port: int, head: bytes = b"") -> None:
        self.close_connection = True
        try:
            parts = urlsplit(url)
            other = connect(parts.hostname or "", parts.port or port, self.rules)
        except Refused as error:
            self.send_error(403, str(error))
        except (OSError, UnicodeError, ValueError) as error:
            self.send_error(502, str(error))
        else:
            with other:
                if head:
                    other.sendall(head)
                else:
                    self.wfile.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                for one in (other, self.connection):
                    one.settimeout(None)
                answer = copy_answer if head else copy_until_end
                back = threading.Thread(target=answer, args=(other, self.connection), daemon=True)
                back.start()
                copy_until_end(self.connection, other)
                back.join()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Nothing: there is no log."""


def copy_answer(source: socket.socket, target: socket.socket) -> None:
    """Copy the answer to a connection's only request. It says that the connection ends with it.

    A client that is not told sends its next request over a connection that is about to be closed.
    """
    with contextlib.suppress(OSError, http.client.HTTPException), source.makefile("rb") as answer:
        interim = True
        while interim:
            status = answer.readline(_BLOCK_BYTES)
            fields = http.client.parse_headers(answer)
            interim = status.partition(b" ")[2].startswith(b"1")
            if not interim:
                _set_closing(fields)
            target.sendall(status + _encode(fields))
        while block := answer.read1(_BLOCK_BYTES):
            target.sendall(block)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _set_closing(fields: Message) -> None:
    for name in ("Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization"):
        del fields[name]
    fields["Connection"] = "close"


def _encode(fields: Message) -> bytes:
    return "".join([*(f"{name}: {value}\r\n" for name, value in fields.items()), "\r\n"]).encode("latin-1")


def copy_until_end(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends; the other direction may go on."""
    with contextlib.suppress(OSError):
        while block := source.recv(_BLOCK_BYTES):
            target.sendall(block)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class _Server(http.server.ThreadingHTTPServer):
    free = threading.Semaphore(_MAX_CONNECTIONS)

    def process_request(self, request: object, client_address: object) -> None:
        self.free.acquire()
        super().process_request(request, client_address)  # type: ignore[arg-type]  # the stubs' own types are private

    def process_request_thread(self, request: object, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]  # likewise
        finally:
            self.free.release()


def main() -> None:
    listener, sandbox = map(int, sys.argv[1:])
    Proxy.rules = [(ipaddress.IPv4Network(to), port, refused) for to, port, refused in json.load(sys.stdin)]
    server = _Server(("127.0.0.1", 0), Proxy, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=listener)
    if os.geteuid() == 0:
        "name".encode("idna")  # loads what it needs, which nobody may perhaps not read
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ended = select.poll()
    ended.register(sandbox, select.POLLIN)
    ended.poll()
    os._exit(0)


if __name__ == "__main__":
    main()
