from __future__ import annotations

from gradient_cli import TYPE_CHECKING, terminal
from gradient_cli.errors import OK
from gradient_cli.formatting import format_count, format_size, print_json, print_table
from gradient_cli.options import add_common, add_positional, connect, resolve_job_id

if TYPE_CHECKING:
    import argparse
    from typing import Any


def add_diff(parser: argparse.ArgumentParser) -> None:
    for name in ("first", "second"):
        add_positional(
            parser, name, needed=True, metavar=name[0].upper(), help=f"id of the {name} job, its beginning, or @last"
        )
    parser.add_argument("--patch", action="store_true", help="print the changes of text files as well")
    add_common(parser, diff)


def diff(args: argparse.Namespace) -> int:
    api = connect(args)
    first, second = (resolve_job_id(one, api) for one in (args.first, args.second))
    found = api.job_diff(first, second)
    if args.json:
        return print_json(found)
    differing = found["differences"]
    if differing:
        rows = [[name, _format(values["first"]), _format(values["second"])] for name, values in differing.items()]
        print_table(("OPTION", str(found["first"]), str(found["second"])), rows)
    else:
        terminal.print_message("no option differs")
    if found["hidden"]:
        terminal.print_message(f"not shown by the server, may differ: {terminal.sanitize(', '.join(found['hidden']))}")
    if found["workspace"]:
        _print_files(found["workspace"], patch=args.patch)
    return OK


def _print_files(found: dict[str, Any], *, patch: bool) -> None:
    if found["leftOut"]:
        terminal.print_message(terminal.sanitize(found["leftOut"]))
        return
    rows = [["added", one["path"], format_size(one["size"])] for one in found["added"]]
    rows += [["removed", one["path"], format_size(one["size"])] for one in found["removed"]]
    rows += [["changed", one["path"], format_size(one["secondSize"])] for one in found["changed"]]
    if rows:
        print()
        print_table(("FILE", "PATH", "SIZE"), rows)
    total = found["addedCount"] + found["removedCount"] + found["changedCount"]
    if total > len(rows):
        terminal.print_message(f"{format_count(total - len(rows), 'more file')} differ")
    for one in found["changed"] if patch else ():
        if one["diff"]:
            print()
            for line in one["diff"].splitlines():
                print(terminal.sanitize_line(line, colours=False))
        if one["leftOut"]:
            terminal.print_message(terminal.sanitize(f"{one['path']}: {one['leftOut']}"))


def _format(value: object) -> str:
    if value is None or value == []:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
