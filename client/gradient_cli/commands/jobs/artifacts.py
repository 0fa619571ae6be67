from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect, is_array_id, is_job_id, resolve_id
from gradient_cli.errors import FAILED, OK
from gradient_cli.formatting import describe_removed, format_count, format_past, format_size, print_json, print_table
from gradient_cli.options import add_common, add_for_job, add_job_id, add_positional
from gradient_cli.workspace.transfer.download import download

_SHOWN_DIGITS = 12


def add_get(parser: argparse.ArgumentParser) -> None:
    add_job_id(parser)
    add_positional(
        parser,
        "patterns",
        nargs="*",
        metavar="PATTERN",
        help="files or folders to download; * and ? are wildcards (default: all). If the first one looks "
        "like the beginning of an id, such as json, write @last before it",
    )
    parser.add_argument("-o", "--to", metavar="DIR", help="folder to download to (default: artifacts-ID)")
    parser.add_argument("--force", action="store_true", help="with --to: overwrite files that have other contents")
    add_common(parser, get)


def list_files(args: argparse.Namespace) -> int:
    api = connect(args)
    job_id = resolve_id(args.id, api)
    members = {f"{job['arrayIndex']}/": job["id"] for job in api.members(job_id)} if is_array_id(job_id) else {}
    listings = {folder: api.all_artifacts(member_id) for folder, member_id in (members or {"": job_id}).items()}
    if args.json:
        return print_json({"members": listings} if members else listings[""])
    rows = [
        [
            folder + file["path"],
            format_size(file["size"]),
            (file["sha256"] or "")[:_SHOWN_DIGITS],
            format_past(file["modified"]),
        ]
        for folder, files in listings.items()
        for file in files["files"]
    ]
    if rows:
        print_table(("PATH", "SIZE", "SHA256", "CHANGED"), rows)
    for folder, files in listings.items():
        _print_state(files, folder and f"{folder} ")
    if rows:
        terminal.print_message(f"  gradient-cli jobs artifacts get {terminal.sanitize(job_id)}")
    return OK


def get(args: argparse.Namespace) -> int:
    """Download a job's files, or those of each member of an array, and verify their checksums."""
    if args.id and not is_job_id(args.id):
        args.patterns.insert(0, args.id)
        args.id = None
    api = connect(args)
    job_id = resolve_id(args.id, api)
    if not is_array_id(job_id):
        return _get(args, api, job_id, args.to)
    folder = args.to or f"artifacts-{job_id}"
    return max([_get(args, api, job["id"], f"{folder}/{job['arrayIndex']}") for job in api.members(job_id)])


def _get(args: argparse.Namespace, api: Api, job_id: str, to: str | None) -> int:
    listing = api.all_artifacts(job_id)
    files, got, target = download(api, job_id, listing, args.patterns, to=to, force=args.force)
    if args.json:
        print_json({"to": target.root, "files": files, "leftOut": list(target.left_out)})
    else:
        target.print_left_out()
        kept = len(files) - len(got) - sum(file["path"] in target.left_out for file in files)
        have = f"; {kept} already downloaded" if kept else ""
        total = sum(file["size"] for file in got)
        if files:
            terminal.print_message(
                f"{format_count(len(got), 'file')} ({format_size(total)}) to {terminal.sanitize(target.root)}{have}"
            )
        _print_state(listing)
    return FAILED if listing.get("state") == "failed" or target.left_out else OK


def _print_state(listing: dict[str, Any], of: str = "") -> None:
    if listing.get("removed"):
        terminal.print_message(of + describe_removed(listing["removed"]))
        return
    for item in listing.get("skipped") or []:
        terminal.print_message(f"{of}not stored: {terminal.sanitize(item['path'])}: {terminal.sanitize(item['why'])}")
    explanations = {
        "empty": "no artifacts",
        "none": "no artifacts yet",
        "partial": "more may follow: the job has not ended or its artifacts are still being stored",
        "failed": "some could not be stored: `gradient-cli jobs show` shows why",
    }
    state = listing.get("state")
    if state == "complete" and not listing["files"]:
        state = "empty"
    if state in explanations:
        terminal.print_message(of + explanations[state])


add_list = partial(add_for_job, run=list_files)
