"""`jobs diff`: the options in which two jobs differ."""

from __future__ import annotations

from gradient_cli import terminal
from gradient_cli.errors import OK
from gradient_cli.formatting import print_json, print_table
from gradient_cli.options import add_connection, add_json, add_positional, resolve_job_id

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    import argparse
    from typing import Any

_COMPARED = (
    *("name", "project", "command", "machineType", "backend", "simulated", "container", "image", "imageDigest"),
    *("useDockerfile", "relDockerfilePath", "buildOnly", "registryTarget", "imagePullPolicy"),
    *("workspace", "workspaceSha256", "codeCommit", "workingDir", "user", "cpus", "memoryMb", "sharedMemMb"),
    *("timeLimit", "stopGrace", "maxAttempts", "priority", "capacity", "dataDisks", "tags"),
)
_HIDDEN = "••••••"  # as the server writes a value that it does not show


def add_diff(parser: argparse.ArgumentParser) -> None:
    """Set up the parser of `jobs diff`."""
    for name in ("first", "second"):
        add_positional(
            parser, name, needed=True, metavar=name[0].upper(), help=f"id of the {name} job, its beginning, or @last"
        )
    add_json(parser)
    add_connection(parser)
    parser.set_defaults(run=diff)


def diff(args: argparse.Namespace) -> int:
    """Print the options in which two jobs differ, with both values."""
    from gradient_cli.api.client import connect

    api = connect(args)
    jobs = [api.job(resolve_job_id(one, api)) for one in (args.first, args.second)]
    first, second = map(_options, jobs)
    names = list(dict.fromkeys([*first, *second]))
    differing = [name for name in names if first.get(name) != second.get(name)]
    hidden = [name for name in names if first.get(name) == second.get(name) == _HIDDEN]
    if args.json:
        found = {name: {"first": first.get(name), "second": second.get(name)} for name in differing}
        print_json({"first": jobs[0]["id"], "second": jobs[1]["id"], "differences": found, "hidden": hidden})
        return OK
    if differing:
        rows = [[name, _format(first.get(name)), _format(second.get(name))] for name in differing]
        print_table(("OPTION", str(jobs[0]["id"]), str(jobs[1]["id"])), rows)
    else:
        terminal.print_message("no option differs")
    if hidden:
        terminal.print_message(f"not shown by the server, may differ: {terminal.sanitize(', '.join(hidden))}")
    return OK


def _options(job: dict[str, Any]) -> dict[str, Any]:
    variables = {f"envVars.{name}": value for name, value in sorted((job.get("envVars") or {}).items())}
    ports = [port["internal"] for port in job.get("ports") or []]
    return {**{name: job.get(name) for name in _COMPARED}, "ports": ports, **variables}


def _format(value: object) -> str:
    if value is None or value == []:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
