from __future__ import annotations

import json
import sys

from gradient_cli import TYPE_CHECKING, terminal
from gradient_cli.errors import INTERRUPTED, OK, ServerError, UsageError
from gradient_cli.formatting import format_count
from gradient_cli.options import add_common, add_positional, connect
from gradient_cli.text import decode
from gradient_cli.workspace import job_spec as specs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable
    from typing import Any

    from gradient_cli.workspace.batch_submission import Outcome

    Job = tuple[dict[str, Any], str, list[str]]

_OWN = ("idempotencyKey", "workspaceSha256")  # fields of a line that are no options of `jobs create`
_MOST_ERRORS = 20
_PROGRESS_JOBS = 1000


def add_create_batch(parser: argparse.ArgumentParser) -> None:
    specs.add_options(parser)
    add_positional(
        parser,
        "file",
        needed=True,
        metavar="FILE",
        help="a JSON object for each job on a line of its own, with the options below by their names, such as "
        '{"command": "python train.py --lr 0.1"}; - reads standard input',
    )
    add_common(parser, create_batch, "print the result of each line as one JSON object on a line of its own")


def create_batch(args: argparse.Namespace) -> int:
    """Submit the jobs of a file; print the id of each, and the number and error of each line that was refused."""
    from gradient_cli.workspace import batch_submission

    lines = _read_lines(args)
    results: dict[int, Outcome] = {}
    try:
        for place, outcome in batch_submission.submit(connect(args), [job for _, job in lines], terminal.print_message):
            results[place] = outcome
            _show(args, lines[place][0], outcome)
            if len(results) % _PROGRESS_JOBS == 0:
                terminal.print_message(f"{len(results):,} of {format_count(len(lines), 'job')}")
    except KeyboardInterrupt:
        terminal.print_message("\ninterrupted; `gradient-cli jobs list` shows which jobs were created")
        return INTERRUPTED
    finally:
        refused = [outcome for outcome in results.values() if isinstance(outcome, ServerError)]
        terminal.print_message(
            f"{format_count(len(results) - len(refused), 'job')} created, {len(refused):,} refused"
            + (f", {len(lines) - len(results):,} not answered" if len(results) < len(lines) else "")
        )
    return max((error.code for error in refused), default=OK)


def _show(args: argparse.Namespace, number: int, outcome: Outcome) -> None:
    if isinstance(outcome, ServerError):
        terminal.print_message(f"line {number}: {outcome}")
        if args.json:
            print(json.dumps({"line": number, "error": outcome.as_json()}), flush=True)
    elif args.json:
        print(json.dumps({"line": number, "job": outcome}), flush=True)
    else:
        print(outcome["id"], flush=True)


def _read_lines(args: argparse.Namespace) -> list[tuple[int, Job]]:
    found: list[tuple[int, Job]] = []
    wrong: list[str] = []
    for number, text in enumerate(_read(args.file), 1):
        if text.strip():
            try:
                found.append((number, _parse_line(args, text)))
            except UsageError as error:
                wrong.append(f"line {number}: {error}" + (f" ({error.hint})" if error.hint else ""))
    if wrong:
        for line in wrong[:_MOST_ERRORS]:
            terminal.print_message(line)
        raise UsageError(
            f"{args.file}: {format_count(len(wrong), 'line')} cannot be understood, so nothing was submitted",
            hint="Correct the lines named above.",
        )
    if not found:
        raise UsageError(f"{args.file}: no job in it", hint='Write one for each line: {"command": "python main.py"}')
    return found


def _read(path: str) -> Iterable[str]:
    try:
        if path == "-":
            return decode(sys.stdin.buffer.read()).split("\n")
        with open(path, "rb") as file:
            return decode(file.read()).split("\n")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text", hint="Save it as UTF-8.") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="Give a file of JSON lines, or -.") from None


def _parse_line(args: argparse.Namespace, text: str) -> Job:
    """Merge the options of the command line over those of a line, and these over the project file's."""
    try:
        line = json.loads(text)
    except ValueError as error:
        raise UsageError(f"not JSON: {error}") from None
    if not isinstance(line, dict):
        raise UsageError("not a JSON object", hint='For example {"command": "python main.py"}.')
    own = {name: line.pop(name) for name in _OWN if name in line}
    for name, value in own.items():
        if not isinstance(value, str):
            raise UsageError(f"{name}: must be text, not {value!r}")
    spec, workspace, include = specs.resolve(args, line=line)
    return {**spec, **own}, workspace, include
