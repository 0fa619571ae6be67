from __future__ import annotations

import argparse

from gradient_cli import terminal
from gradient_cli.arguments import connect, resolve_job_id
from gradient_cli.formatting import print_result
from gradient_cli.options import add_common, add_positional


def add_add(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, "add")


def add_remove(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, "remove")


def _add_arguments(parser: argparse.ArgumentParser, change: str) -> None:
    add_positional(parser, "id", needed=True, metavar="ID", help="id of the job, its beginning, or @last")
    add_positional(parser, "tags", needed=True, nargs="+", metavar="TAG", help=f"tag to {change}")
    add_common(parser, change_tags, "print the job as one JSON object", change=change)


def change_tags(args: argparse.Namespace) -> int:
    api = connect(args)
    job = api.change_tags(resolve_job_id(args.id, api), {args.change: args.tags})
    left = ", ".join(map(terminal.sanitize, job.get("tags") or [])) or "none"
    return print_result(args, job, f"tags of {terminal.sanitize(job['id'])}: {left}")
