"""`login --browser`: the user signs in on a page of the server, which hands a one-time code to this client.

The code is bound to a secret of this client (as PKCE, RFC 7636): nobody else can exchange it for a key.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import socket
import sys
import time
import webbrowser
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.errors import ClientError, UsageError

_WAIT_SECONDS = 600.0  # as long as the page's code is valid
_PAGE = "<!doctype html><title>Signed in</title><p>You are signed in on the command line. You can close this page."


def sign_in(api: Api) -> str:
    """Return a new API key of the user who signs in; by a browser of this machine if it has one."""
    verifier = secrets.token_urlsafe(32)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    name = f"gradient-cli on {socket.gethostname()}"[:100]
    page = {"challenge": challenge, "name": name}
    code = _read_code(api.url, page) if _has_no_browser() else _receive_code(api.url, page)
    return str(api.exchange_code(code, verifier, name)["apiKey"])


def _has_no_browser() -> bool:
    try:
        webbrowser.get()
    except webbrowser.Error:
        return True
    return "SSH_CONNECTION" in os.environ


def _read_code(url: str, page: dict[str, str]) -> str:
    if not terminal.is_tty(sys.stdin):
        raise UsageError("--browser: no browser was found here, and no terminal to enter a code in")
    terminal.print_message(f"open this page in any browser, and enter the code that it shows:\n{_address(url, page)}")
    sys.stderr.write("Code: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def _receive_code(url: str, page: dict[str, str]) -> str:
    codes: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            codes.extend(parse_qs(urlsplit(self.path).query).get("code", ()))
            self.send_response(200 if codes else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(_PAGE.encode() if codes else b"")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        address = _address(url, {**page, "port": str(server.server_port)})
        terminal.print_message(f"sign in on this page, which opens in your browser:\n{address}")
        webbrowser.open(address)
        server.timeout, until = 1.0, time.monotonic() + _WAIT_SECONDS
        while not codes:
            if time.monotonic() > until:
                raise ClientError("nobody signed in for ten minutes", hint="Run `gradient-cli login --browser` again.")
            server.handle_request()
    return codes[0]


def _address(url: str, page: dict[str, str]) -> str:
    return f"{url}/ui/login/cli?{urlencode(page)}"
