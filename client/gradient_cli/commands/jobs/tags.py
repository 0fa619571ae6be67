from __future__ import annotations

from gradient_cli import terminal
from gradient_cli.errors import OK
from gradient_cli.formatting import print_json
from gradient_cli.options import add_connection, add_json, add_positional, resolve_job_id

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    import argparse


def add_add(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, "add")


def add_remove(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, "remove")


def _add_arguments(parser: argparse.ArgumentParser, change: str) -> None:
    add_positional(parser, "id", needed=True, metavar="ID", help="id of the job, its beginning, or @last")
    add_positional(parser, "tags", needed=True, nargs="+", metavar="TAG", help=f"tag to {change}")
    add_json(parser, "print the job as one JSON object")
    add_connection(parser)
    parser.set_defaults(run=change_tags, change=change)


def change_tags(args: argparse.Namespace) -> int:
    """Add tags to a job or remove them, and print those that it has then."""
    from gradient_cli.api.client import connect

    api = connect(args)
    job = api.change_tags(resolve_job_id(args.id, api), {args.change: args.tags})
    if args.json:
        print_json(job)
    else:
        left = ", ".join(map(terminal.sanitize, job.get("tags") or [])) or "none"
        terminal.print_message(f"tags of {terminal.sanitize(job['id'])}: {left}")
    return OK
