from __future__ import annotations

from gradient_cli import TYPE_CHECKING, terminal
from gradient_cli.commands.jobs.open import show_link
from gradient_cli.errors import OK
from gradient_cli.formatting import print_json
from gradient_cli.options import add_common, add_job_ids, connect, resolve_job_id

if TYPE_CHECKING:
    import argparse


def add_tensorboard(parser: argparse.ArgumentParser) -> None:
    add_job_ids(parser)
    add_common(parser, open_tensorboard, "print the link and the runs as one JSON object, and open no browser")


def open_tensorboard(args: argparse.Namespace) -> int:
    """Print a link to TensorBoard that works once; on a desktop, open it, too."""
    api = connect(args)
    opened = api.open_tensorboard([resolve_job_id(one, api) for one in args.ids or [None]])
    link = terminal.sanitize(opened["url"])
    if args.json:
        return print_json({"url": link, "runs": opened["runs"]})
    show_link(link)
    return OK
