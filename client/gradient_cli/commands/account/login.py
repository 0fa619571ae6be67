"""`login`: store the server's address and an API key."""

from __future__ import annotations

import argparse
import os
import sys
from urllib.parse import urlsplit

from gradient_cli import config, terminal
from gradient_cli.api.client import Api
from gradient_cli.api.transport import Transport
from gradient_cli.errors import ClientError, UsageError
from gradient_cli.formatting import print_result
from gradient_cli.options import add_connection, add_json

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def add_login(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    add_connection(
        parser,
        url="address of the server (default: GRADIENT_URL, otherwise a prompt)",
        key="API key (default: GRADIENT_API_KEY, otherwise a prompt)",
    )
    parser.add_argument(
        "--browser", action="store_true", help="sign in on a page of the server, which gives this client a key"
    )
    parser.set_defaults(run=login)


def login(args: argparse.Namespace) -> int:
    """Check a key against its server, then save both in a file that only this user can read."""
    given = getattr(args, "url", None)
    url = given or os.environ.get("GRADIENT_URL") or _prompt("url", "Server: ")
    source = "GRADIENT_URL" if not given and os.environ.get("GRADIENT_URL") else "url"
    key = getattr(args, "apiKey", None) or os.environ.get("GRADIENT_API_KEY")
    if args.browser:
        key = _sign_in(Api(Transport(url.strip().rstrip("/"), "", source)))
    if not key:
        server = Api(Transport(url.strip().rstrip("/"), "", source))
        if _can_prompt():
            server.health()  # a wrong address is found before the prompt
        key = _prompt("apiKey", "API key: ")
    settings = config.Settings(url.strip(), config.strip_key(key))
    Api(Transport(settings.url, settings.key, source)).projects()
    parts = urlsplit(settings.url)
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        terminal.print_message("warning: http:// sends the key unencrypted; prefer https://")
    path = config.login_file()
    try:
        config.write_json(path, {"url": settings.url, "apiKey": settings.key})
    except OSError as error:
        raise ClientError(
            f"cannot write {path}: {error.strerror}", hint="Fix its permissions, or set XDG_CONFIG_HOME."
        ) from None
    return print_result(args, {"url": settings.url, "path": path}, f"logged in to {settings.url}; saved in {path}")


def _sign_in(api: Api) -> str:
    """Return a new key of the user who signs in on a page of the server, by the one-time code that it shows."""
    import socket
    import webbrowser

    page = f"{api.url}/ui/login/cli"
    terminal.print_message(f"sign in at {page}, and enter the code that it shows")
    webbrowser.open(page)
    return str(api.exchange_code(_prompt("code", "Code: "), f"client on {socket.gethostname()}")["key"])


def _can_prompt() -> bool:
    return terminal.is_tty(sys.stdin) and terminal.is_tty(sys.stderr)


def _prompt(name: str, prompt: str) -> str:
    if not _can_prompt():
        raise UsageError(
            f"{name}: required to log in",
            hint=f"Use --{'apiKey' if name == 'code' else name} VALUE: there is no terminal.",
        )
    if name == "apiKey":
        import getpass

        answer = getpass.getpass(prompt, stream=sys.stderr)
    else:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        answer = sys.stdin.readline()
    if not answer.strip():
        raise UsageError(f"{name}: nothing was entered", hint="Run `gradient-cli login` again.")
    return answer.strip()
