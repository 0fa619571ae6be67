from __future__ import annotations

import argparse

from gradient_cli import terminal
from gradient_cli.arguments import connect, resolve_job_id
from gradient_cli.errors import UsageError
from gradient_cli.formatting import print_result
from gradient_cli.options import add_common, add_option, add_positional


def add_add(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, "add", nargs="*")
    add_option(parser, "--name", metavar="NAME", help="name of the job from now on; '' takes it away")
    add_option(parser, "--note", metavar="TEXT", help="note on the job, in place of the present one; '' takes it away")


def add_remove(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, "remove", nargs="+")


def _add_arguments(parser: argparse.ArgumentParser, change: str, nargs: str) -> None:
    add_positional(parser, "id", needed=True, metavar="ID", help="id of the job, its beginning, or @last")
    add_positional(parser, "tags", needed=nargs == "+", nargs=nargs, metavar="TAG", help=f"tag to {change}")
    add_common(parser, edit_job, "print the job as one JSON object", change=change, name=None, note=None)


def edit_job(args: argparse.Namespace) -> int:
    texts = {name: text or None for name in ("name", "note") if (text := getattr(args, name)) is not None}
    if not args.tags and not texts:
        raise UsageError("TAG: missing", hint="Give a tag, --name or --note.")
    api = connect(args)
    job = api.edit_job(resolve_job_id(args.id, api), {**({args.change: args.tags} if args.tags else {}), **texts})
    left = ", ".join(map(terminal.sanitize, job.get("tags") or [])) or "none"
    shown = [f"{name} of {terminal.sanitize(job['id'])}: {terminal.sanitize(job[name] or 'none')}" for name in texts]
    tagged = [f"tags of {terminal.sanitize(job['id'])}: {left}"] if args.tags else []
    return print_result(args, job, "\n".join([*shown, *tagged]))
