from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

from gradient_cli import follow, terminal
from gradient_cli.api.client import Api
from gradient_cli.api.retries import retry_until_connected
from gradient_cli.arguments import connect, is_array_id, parse_moment, resolve_id
from gradient_cli.errors import OK, UsageError
from gradient_cli.follow import JsonPrinter, LogPrinter, attach
from gradient_cli.formatting import describe_removed, list_nodes, parse_time
from gradient_cli.options import add_common, add_job_id

_PAGE = 2000
_POLL_SECONDS = 1.0
_SEARCH_CHARACTERS = 200
_NEAR = 500  # lines between two that are found, up to which they are read together


def add_logs(parser: argparse.ArgumentParser) -> None:
    add_job_id(parser)
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="follow the log until the job has ended, and exit with its exit code",
    )
    parser.add_argument("--line", type=int, metavar="N", help="print only the lines after line N (default: 0)")
    parser.add_argument(
        "-n", "--tail", type=int, metavar="N", help="print only the last N lines; 0: only new lines with --follow"
    )
    parser.add_argument(
        "--since", metavar="TIME", help="print only lines since this time: 10m, 2h or 1d ago, or a time"
    )
    parser.add_argument("--until", metavar="TIME", help="print only lines until this time")
    parser.add_argument("--search", metavar="TEXT", help="print only lines with this text, ignoring case")
    parser.add_argument(
        "--rank",
        type=int,
        metavar="N",
        help="print only the lines of the node of rank N, counted from 0 (of --nodes or a TPU slice)",
    )
    parser.add_argument("--raw", action="store_true", help="keep terminal escape sequences")
    parser.add_argument(
        "--to", metavar="FILE", help="download the whole log exactly as the job wrote it; - for standard output"
    )
    parser.add_argument("-t", "--timestamps", action="store_true", help="prefix each line with its time")
    parser.add_argument("--json", action="store_true", help="print each line as a JSON object")
    add_common(parser, logs, json="")


def logs(args: argparse.Namespace) -> int:
    _check(args)
    api = connect(args)
    given = {name: getattr(args, name) for name in ("since", "until")}
    within = [text and parse_moment(name, text, api) for name, text in given.items()]
    job_id = resolve_id(args.id, api)
    if args.rank is not None:
        job_id = _select_node(args, api, job_id)
    if is_array_id(job_id):
        if args.to is not None:
            raise UsageError(
                "to: only possible for a single job", hint=f"Name a member of the array, for example {job_id}_0."
            )
        return _print_members(args, api, job_id, *within)
    return _print(args, api, job_id, *within) if args.to is None else _download(api, job_id, args.to)


def _select_node(args: argparse.Namespace, api: Api, job_id: str) -> str:
    """Return the id of the job whose log has the lines of the node that is asked for; refuse one that does not exist.

    A host of a TPU slice, or a node in Slurm, has no job of its own: its lines are marked.
    """
    is_array = is_array_id(job_id)
    job = api.array(job_id) if is_array else api.job(job_id)
    count = job.get("nodes") if is_array else len(list_nodes(job))
    if not count and (is_array or job.get("startedAt")):
        raise UsageError(f"rank: {job_id} has no nodes", hint="Leave --rank out.")
    if count and args.rank >= count:
        raise UsageError(f"rank: {job_id} has {count} nodes, of rank 0 to {count - 1}", hint="Name one of these ranks.")
    if is_array:
        args.rank, job_id = None, resolve_id(f"{job_id}_{args.rank}", api)
    return job_id


def _print_members(
    args: argparse.Namespace, api: Api, array_id: str, since: datetime | None, until: datetime | None
) -> int:
    """Print the logs of all members of an array, each line after the member's index."""
    printers: dict[str, LogPrinter] = {}
    seen: dict[str, int] = {}
    ended: set[str] = set()
    try:
        while True:
            members = retry_until_connected(partial(api.members, array_id))
            for job in members:
                if job["id"] not in ended and job["state"] != follow.PENDING:
                    printer = printers.setdefault(job["id"], _printer(args, job["arrayIndex"]))
                    retry_until_connected(partial(_print_member, args, api, job, printer, seen, since, until))
                if job["finishedAt"]:
                    ended.add(job["id"])
            if not args.follow:
                break
            if all(job["finishedAt"] for job in members):
                return follow.array_exit_code(retry_until_connected(partial(api.array, array_id)))
            args.tail = None  # of a member that starts later, all lines are new
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        return follow.detach(array_id)
    if not any(printer.printed for printer in printers.values()):
        terminal.print_message("no lines")
    return OK


def _print_member(
    args: argparse.Namespace,
    api: Api,
    job: dict[str, Any],
    printer: LogPrinter,
    seen: dict[str, int],
    since: datetime | None,
    until: datetime | None,
) -> None:
    if job["id"] not in seen:
        seen[job["id"]] = _start_line(api, job["id"], args, since)
    unfinished = _print_lines(args, api, job["id"], printer, seen, until)
    if unfinished and not args.search and (job["finishedAt"] or not args.follow):
        printer.unfinished(unfinished)


def _printer(args: argparse.Namespace, member: int | None = None) -> LogPrinter:
    return (JsonPrinter if args.json else LogPrinter)(
        raw=args.raw, timestamps=args.timestamps, search=args.search or "", rank=args.rank, member=member
    )


def _print(args: argparse.Namespace, api: Api, job_id: str, since: datetime | None, until: datetime | None) -> int:
    printer = _printer(args)
    # Fails at once on an unknown job or an unreachable server, which following would retry.
    job = api.job(job_id) if args.follow else {}
    start = _start_line(api, job_id, args, since)
    seen = {job_id: start}
    unfinished: str | None = ""
    if not args.follow or args.tail is not None:
        unfinished = _print_lines(args, api, job_id, printer, seen, until)
    if args.follow:
        return attach(api, job, printer, line=seen[job_id])
    if unfinished is None:
        if not printer.printed:
            terminal.print_message("no lines before that time")
    elif unfinished and not args.search and args.rank is None:
        printer.unfinished(unfinished)
    elif seen[job_id] == start:
        _print_no_lines(api.logs(job_id, line=start, limit=1), more=bool(start))
    elif not printer.printed:
        node = "" if args.rank is None else f" of rank {args.rank}"
        terminal.print_message(f"no line{node} contains {args.search!r}" if args.search else f"no lines{node}")
    return OK


def _print_lines(
    args: argparse.Namespace, api: Api, job_id: str, printer: LogPrinter, seen: dict[str, int], until: datetime | None
) -> str | None:
    """Print the lines after the last that was `seen`; return the unfinished one after them, None if after `until`."""
    unfinished = ""
    for page in _pages(api, job_id, seen[job_id], args.tail, args.search or ""):
        for row in page["lines"]:
            if until and parse_time(row["timestamp"]) > until:
                return None
            if int(row["line"]) > seen[job_id]:
                printer.line(row)
                seen[job_id] = int(row["line"])
        seen[job_id] = max(seen[job_id], page.get("searchedTo", 0))
        unfinished = page.get("partial") or ""
    return unfinished


def _download(api: Api, job_id: str, path: str) -> int:
    with open(1 if path == "-" else path, "wb", closefd=path != "-") as file:
        file.writelines(api.raw_log(job_id))
    return OK


def _check(args: argparse.Namespace) -> None:
    pairs = [("line", "tail"), ("line", "since"), ("tail", "since"), ("follow", "until")]
    pairs += [("to", other) for other in ("follow", "line", "tail", "since", "until", "search", "rank")]
    for option, other in pairs:
        if getattr(args, option) not in {None, False} and getattr(args, other) not in {None, False}:
            raise UsageError(f"{option} and {other}: cannot be combined", hint="Give one of them.")
    for name in ("line", "tail", "rank"):
        if (getattr(args, name) or 0) < 0:
            raise UsageError(f"{name}: must not be negative", hint=f"For example --{name} 100.")


def _start_line(api: Api, job_id: str, args: argparse.Namespace, since: datetime | None) -> int:
    """Return the number of the line after which to begin: of the last one with `--tail 0`; 0 with another tail."""
    if args.tail == 0:
        return int(api.logs(job_id, tail=0, limit=1)["total"])
    return _first_line_since(api, job_id, since) if since else args.line or 0


def _first_line_since(api: Api, job_id: str, since: datetime) -> int:
    """Return the number of the last line before a time; 0 if there is none. Searches by halves: times only increase."""
    last = api.logs(job_id, tail=1)["lines"]
    low, high = 0, int(last[-1]["line"]) if last else 0
    while low < high:
        middle = (low + high) // 2
        row = api.logs(job_id, line=middle, limit=1)["lines"][0]
        if parse_time(row["timestamp"]) < since:
            low = middle + 1
        else:
            high = middle
    return low


def _print_no_lines(page: dict[str, Any], *, more: bool) -> None:
    """Print why there were no lines: none exist, none exist yet, or they were deleted."""
    if page.get("removed"):
        terminal.print_message(describe_removed(page["removed"]))
    else:
        terminal.print_message(f"no {'more ' if more else ''}lines{'' if page.get('complete') else ' yet'}")


def _pages(api: Api, job_id: str, line: int, tail: int | None, search: str) -> Iterator[dict[str, Any]]:
    # The server ignores the case of ASCII letters only.
    if tail is None and 0 < len(search) <= _SEARCH_CHARACTERS and search.isascii() and search.isprintable():
        yield from _pages_with(search, api, job_id, line)
        return
    yield from api.log_pages(job_id, line=line, tail=tail)


def _pages_with(text: str, api: Api, job_id: str, line: int) -> Iterator[dict[str, Any]]:
    """Yield the lines that the server finds, with some between them, and last how far it has searched."""
    page = api.logs(job_id, line=line, limit=1)
    if not page["lines"]:
        yield page  # a search in a log that was deleted is an error
        return
    complete = False
    while not complete:
        matches = api.search_log(job_id, text, line=line)
        for first, last in _group(matches["lines"]):
            after = first - 1
            while after < last and (rows := api.logs(job_id, line=after, limit=last - after)["lines"]):
                yield {"lines": rows}
                after = int(rows[-1]["line"])
        complete = matches["complete"] or matches["searchedTo"] <= line
        line = matches["searchedTo"]
    yield {"lines": [], "searchedTo": line}


def _group(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each group of lines that are near each other and fit on a page."""
    first = last = 0
    for number in numbers:
        if last and (number - last > _NEAR or number - first >= _PAGE):
            yield first, last
            first = number
        first, last = first or number, number
    if last:
        yield first, last
