from __future__ import annotations

import argparse

from gradient_cli import terminal
from gradient_cli.arguments import connect, resolve_id
from gradient_cli.formatting import print_result
from gradient_cli.options import add_common, add_job_id


def add_release(parser: argparse.ArgumentParser) -> None:
    add_job_id(parser)
    add_common(parser, release)


def release(args: argparse.Namespace) -> int:
    api = connect(args)
    job = api.release_job(resolve_id(args.id, api))
    return print_result(args, job, f"released {terminal.sanitize(job['id'])}")
