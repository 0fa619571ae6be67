from __future__ import annotations

import argparse
from functools import partial

from gradient_cli import terminal
from gradient_cli.arguments import connect, resolve_id
from gradient_cli.errors import OK
from gradient_cli.formatting import print_fields, print_json, print_result, state_word
from gradient_cli.next_steps import next_steps
from gradient_cli.options import add_for_job


def why(args: argparse.Namespace) -> int:
    """Print why a job failed, or the reason for its state if that is not known."""
    api = connect(args)
    explanation = api.why(resolve_id(args.id, api))
    if args.json:
        return print_json(explanation)
    evidence, location = explanation["evidence"] or {}, explanation["place"] or {}
    fields = {
        "class": f"{explanation['cause']}: {explanation['meaning']}" if explanation["cause"] else "",
        "message": str(explanation["message"] or state_word(explanation["state"])),
        "evidence": f"line {evidence['line']}: {evidence['message']}" if evidence else "",
        "place": f"{location['file']}:{location['line']}" if location else "",
        "remedy": str(explanation["remedy"] or ""),
    }
    print_fields(fields)
    if explanation["clone"]:
        terminal.print_message(f"next\n  {next_steps(explanation)[0]}")
    return OK


def release(args: argparse.Namespace) -> int:
    api = connect(args)
    job = api.release_job(resolve_id(args.id, api))
    return print_result(args, job, f"released {terminal.sanitize(job['id'])}")


add_why, add_release = (partial(add_for_job, run=run) for run in (why, release))
