"""`jobs artifacts list` and `get`: list and download a job's artifacts."""

from __future__ import annotations

import fnmatch

from gradient_cli import terminal
from gradient_cli.errors import FAILED, OK, ClientError
from gradient_cli.formatting import ago, count, print_json, print_table, removed_line, size
from gradient_cli.options import add_connection, add_job_id, add_json, add_positional, chosen_job, is_job_id

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from gradient_cli.api.client import Api

_SHOWN_DIGITS = 12


def add_list(parser: argparse.ArgumentParser) -> None:
    """Set up the parser of `jobs artifacts list`."""
    add_job_id(parser)
    add_json(parser)
    add_connection(parser)
    parser.set_defaults(run=list_files)


def add_get(parser: argparse.ArgumentParser) -> None:
    """Set up the parser of `jobs artifacts get`."""
    add_positional(parser, "id", nargs="?", metavar="ID", help="the job (default: the last one of this folder)")
    add_positional(
        parser,
        "patterns",
        nargs="*",
        metavar="PATTERN",
        help="files or folders; * and ? stand for others (default: all)",
    )
    parser.add_argument("--to", metavar="DIR", help="where to put them (default: artifacts-ID)")
    add_json(parser)
    add_connection(parser)
    parser.set_defaults(run=get)


def list_files(args: argparse.Namespace) -> int:
    """Print a job's files."""
    from gradient_cli.api.client import connect

    api = connect(args)
    job_id = chosen_job(args.id, api.url)
    found = _all(api, job_id)
    if args.json:
        print_json(found)
        return OK
    rows = [
        [file["path"], size(file["size"]), (file["sha256"] or "")[:_SHOWN_DIGITS], ago(file["modified"])]
        for file in found["files"]
    ]
    if rows:
        print_table(("PATH", "SIZE", "SHA256", "CHANGED"), rows)
    _tell_state(found)
    if rows:
        terminal.note(f"  gradient-cli jobs artifacts get {terminal.plain(job_id)}")
    return OK


def get(args: argparse.Namespace) -> int:
    """Download a job's files and verify their checksums."""
    from gradient_cli.api.client import connect
    from gradient_cli.workspace.download import Target

    if args.id and not is_job_id(args.id):
        args.patterns.insert(0, args.id)
        args.id = None
    api = connect(args)
    job_id = chosen_job(args.id, api.url)
    found = _all(api, job_id)
    if found.get("removed"):
        clone = f"`gradient-cli jobs clone {terminal.plain(job_id)}` runs it again."
        raise ClientError(removed_line(found["removed"]), hint=clone)
    files = _matching(found["files"], args.patterns)
    target = Target(args.to or f"artifacts-{job_id}")
    got, kept = [], 0
    for file in files:
        if target.fetch(api, job_id, file):
            got.append(file)
        else:
            kept += 1
    if args.json:
        print_json({"to": target.root, "files": files})
    else:
        have = f"; {kept} {'was' if kept == 1 else 'were'} there already" if kept else ""
        total = sum(file["size"] for file in got)
        if files:
            terminal.note(f"{count(len(got), 'file')} ({size(total)}) to {terminal.plain(target.root)}{have}")
        _tell_state(found)
    return FAILED if found.get("state") == "failed" else OK


def _all(api: Api, job_id: str) -> dict[str, Any]:
    found = api.artifacts(job_id)
    while found.get("next"):
        page = api.artifacts(job_id, after=found["next"])
        if not page["files"]:
            break
        found = {**page, "files": found["files"] + page["files"], "skipped": found.get("skipped")}
    return {**found, "next": None}


def _matching(files: list[dict[str, Any]], patterns: list[str]) -> list[dict[str, Any]]:
    if not patterns:
        return files
    chosen: dict[str, dict[str, Any]] = {}
    for pattern in patterns:
        clean = pattern.removeprefix("./").rstrip("/")
        hits = [
            file
            for file in files
            if fnmatch.fnmatchcase(file["path"], clean) or fnmatch.fnmatchcase(file["path"], f"{clean}/*")
        ]
        if not hits:
            raise ClientError(
                f"no artifact matches {pattern!r}",
                hint="`gradient-cli jobs artifacts list` shows them; quote patterns against this shell.",
            )
        chosen.update((file["path"], file) for file in hits)
    return list(chosen.values())


def _tell_state(found: dict[str, Any]) -> None:
    if found.get("removed"):
        terminal.note(removed_line(found["removed"]))
        return
    for item in found.get("skipped") or []:
        terminal.note(f"not kept: {terminal.plain(item['path'])}: {terminal.plain(item['why'])}")
    words = {
        "empty": "no artifacts",
        "none": "no artifacts so far",
        "partial": "more may come: the job's artifacts are not closed yet",
        "failed": "not all could be kept: `gradient-cli jobs show` says why",
    }
    state = found.get("state")
    if state == "complete" and not found["files"]:
        state = "empty"
    if state in words:
        terminal.note(words[state])
