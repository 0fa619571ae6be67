"""`jobs artifacts list` and `get`: list and download a job's artifacts."""

from __future__ import annotations

import fnmatch

from gradient_cli import terminal
from gradient_cli.errors import FAILED, OK, ClientError
from gradient_cli.formatting import describe_removed, format_count, format_past, format_size, print_json, print_table
from gradient_cli.options import add_connection, add_job_id, add_json, add_positional, is_job_id, resolve_job_id

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
    add_job_id(parser)
    add_positional(
        parser,
        "patterns",
        nargs="*",
        metavar="PATTERN",
        help="files or folders to download; * and ? are wildcards (default: all). After @last, also names such as "
        "json that could be the beginning of an id",
    )
    parser.add_argument("-o", "--to", metavar="DIR", help="folder to download to (default: artifacts-ID)")
    parser.add_argument("--force", action="store_true", help="with --to: overwrite files that have other contents")
    add_json(parser)
    add_connection(parser)
    parser.set_defaults(run=get)


def list_files(args: argparse.Namespace) -> int:
    """Print a job's files."""
    from gradient_cli.api.client import connect

    api = connect(args)
    job_id = resolve_job_id(args.id, api)
    found = _list_all(api, job_id)
    if args.json:
        print_json(found)
        return OK
    rows = [
        [file["path"], format_size(file["size"]), (file["sha256"] or "")[:_SHOWN_DIGITS], format_past(file["modified"])]
        for file in found["files"]
    ]
    if rows:
        print_table(("PATH", "SIZE", "SHA256", "CHANGED"), rows)
    _print_state(found)
    if rows:
        terminal.print_message(f"  gradient-cli jobs artifacts get {terminal.sanitize(job_id)}")
    return OK


def get(args: argparse.Namespace) -> int:
    """Download a job's files and verify their checksums."""
    from gradient_cli.api.client import connect
    from gradient_cli.workspace.download import DownloadFolder

    if args.id and not is_job_id(args.id):
        args.patterns.insert(0, args.id)
        args.id = None
    api = connect(args)
    job_id = resolve_job_id(args.id, api)
    found = _list_all(api, job_id)
    if found.get("removed"):
        clone = f"`gradient-cli jobs clone {terminal.sanitize(job_id)}` runs the job again."
        raise ClientError(describe_removed(found["removed"]), hint=clone)
    files = _select(found["files"], args.patterns)
    # The folder's usual name is known to `jobs create`, which does not upload it; another one is marked.
    target = DownloadFolder(args.to or f"artifacts-{job_id}", mark=bool(args.to))
    if args.to and not args.force:
        target.refuse_overwriting(files)
    got, kept = [], 0
    for file in files:
        if target.fetch(api, job_id, file):
            got.append(file)
        else:
            kept += 1
    if args.json:
        print_json({"to": target.root, "files": files})
    else:
        have = f"; {kept} already downloaded" if kept else ""
        total = sum(file["size"] for file in got)
        if files:
            terminal.print_message(
                f"{format_count(len(got), 'file')} ({format_size(total)}) to {terminal.sanitize(target.root)}{have}"
            )
        _print_state(found)
    return FAILED if found.get("state") == "failed" else OK


def _list_all(api: Api, job_id: str) -> dict[str, Any]:
    found = api.artifacts(job_id)
    while found.get("next"):
        page = api.artifacts(job_id, after=found["next"])
        if not page["files"]:
            break
        found = {**page, "files": found["files"] + page["files"], "skipped": found.get("skipped")}
    return {**found, "next": None}


def _select(files: list[dict[str, Any]], patterns: list[str]) -> list[dict[str, Any]]:
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
                hint="`gradient-cli jobs artifacts list` lists them; quote patterns against the shell.",
            )
        chosen.update((file["path"], file) for file in hits)
    return list(chosen.values())


def _print_state(found: dict[str, Any]) -> None:
    if found.get("removed"):
        terminal.print_message(describe_removed(found["removed"]))
        return
    for item in found.get("skipped") or []:
        terminal.print_message(f"not stored: {terminal.sanitize(item['path'])}: {terminal.sanitize(item['why'])}")
    words = {
        "empty": "no artifacts",
        "none": "no artifacts yet",
        "partial": "more may come: the job has not ended or its artifacts are still being stored",
        "failed": "some could not be stored: `gradient-cli jobs show` shows why",
    }
    state = found.get("state")
    if state == "complete" and not found["files"]:
        state = "empty"
    if state in words:
        terminal.print_message(words[state])
