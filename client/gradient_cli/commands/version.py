from __future__ import annotations

import argparse

from gradient_cli.arguments import connect
from gradient_cli.errors import OK, ClientError
from gradient_cli.formatting import print_fields, print_json


def client_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gradient-jobs-client")
    except PackageNotFoundError:  # run from a copy of the source
        return "unknown"


def show_version(args: argparse.Namespace) -> int:
    """Print both versions; an unreachable server is not an error."""
    url, server = "", ""
    try:
        api = connect(args)
        url = api.url
        server = str(api.health().get("version") or "unknown")
    except ClientError as error:
        server = f"none: {error}"
    if args.json:
        print_json({"client": client_version(), "server": server, "url": url or None})
    else:
        print_fields({"client": client_version(), "server": server, "url": url})
    return OK
