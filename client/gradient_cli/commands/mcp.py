"""`mcp`: let a program that speaks the Model Context Protocol work with the server, over standard input and output."""

from __future__ import annotations

import argparse
from importlib import import_module

from gradient_cli.errors import OK, ClientError
from gradient_cli.options import add_common


def add_mcp(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", action="store_true", help="also offer tools that submit and stop jobs")
    add_common(parser, serve, json="")


def serve(args: argparse.Namespace) -> int:
    try:
        tools = import_module("gradient_jobs.agent_tools")  # of the SDK, which is above this package
    except ImportError as error:
        raise ClientError(
            f"the library mcp is missing ({error.name or error})",
            hint="Python 3.10 or newer: pip install 'gradient-jobs-client[mcp]'.",
        ) from None
    caller = tools.local_caller(getattr(args, "url", None), getattr(args, "apiKey", None))
    tools.build_server(lambda: caller, write=args.write).run()
    return OK
