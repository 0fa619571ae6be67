from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import Any

from gradient_cli import config, terminal
from gradient_cli.api.client import Api
from gradient_cli.api.paths import COMPARISONS
from gradient_cli.arguments import connect, current_folder, resolve_job_id
from gradient_cli.commands.compare.hyperparameter_carry_over import add_carry_options, carry
from gradient_cli.commands.compare.race import race
from gradient_cli.commands.jobs import create as jobs
from gradient_cli.errors import INTERRUPTED, OK, UsageError
from gradient_cli.formatting import format_count, print_json
from gradient_cli.options import add_common, add_job_ids, add_option
from gradient_cli.workspace import job_spec as specs
from gradient_cli.workspace import submission, workspace_path


def add_create(parser: argparse.ArgumentParser) -> None:
    specs.add_options(parser, without="metricPatterns")  # its --metric is another: a project file may have them
    specs.describe(parser, "machineType", "NAME,NAME,...", "machine types to run on (required)")
    parser.add_argument(
        "--repeats", metavar="N", type=int, default=1, help="jobs on each machine type, with SEED=1 to N (default: 1)"
    )
    parser.add_argument(
        "--parallel",
        action="store_true",
        help="let jobs run at the same time; they slow each other down if they share a host",
    )
    parser.add_argument(
        "--race",
        action="store_true",
        help="wait and repeat only machine types that could be the cheapest, until one is left or --maxCost is spent",
    )
    _add_judgement(parser)
    add_carry_options(parser, may_apply=False)
    jobs.add_large_workspace(parser)
    add_common(parser, create)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    add_job_ids(parser)
    parser.add_argument("--name", metavar="NAME", help="name of the comparison")
    _add_judgement(parser)
    add_common(parser, compare_jobs)


def _add_judgement(parser: argparse.ArgumentParser) -> None:
    add_option(
        parser,
        "--metric",
        metavar="NAME[:min|max]",
        help="metric that judges the result, with min or max as the better direction (default: min for a loss, an "
        "error or a time, otherwise max)",
    )
    add_option(
        parser,
        "--target",
        metavar="VALUE",
        type=float,
        help="measure time and cost until --metric reaches this value",
    )


def create(args: argparse.Namespace) -> int:
    if args.program:
        args.command = jobs.join_program(args.command, args.program)
    job, workspace, include = specs.resolve(args)
    if not job.get("machineType"):
        raise UsageError(
            "machineType: required", hint="Give --machineType NAME,NAME; `gradient-cli machine-types` lists them."
        )
    spec = {**job, "repeats": args.repeats, "serial": not args.parallel, **_judgement(args)}
    ceiling = job.get("maxCost")
    if args.race:
        if ceiling is None:
            raise UsageError("--race: requires --maxCost", hint="For example --race --maxCost 5.00.")
        # Two repeats decide at the soonest: the first may take half.
        spec["maxCost"] = ceiling * args.repeats / max(2, args.repeats)
    try:
        api = connect(args)
        carry(args, api, job["machineType"], job["command"])
        made = _create(args, api, spec, job, workspace, include)
        if not args.race or ceiling is None:
            return _report(args, api, made)
        _remember(api, made)
        print(made["id"], file=sys.stderr if args.json else sys.stdout)
        return race(api, made["id"], ceiling, as_json=args.json)
    except KeyboardInterrupt:
        terminal.print_message("\ninterrupted; `gradient-cli compare list` shows whether the comparison was created")
        return INTERRUPTED


def _create(
    args: argparse.Namespace, api: Api, spec: dict[str, Any], job: dict[str, Any], workspace: str, include: list[str]
) -> dict[str, Any]:
    if workspace == "none" or workspace_path.is_url(workspace):
        if include:
            raise UsageError("include: only possible with a folder as workspace", hint="Leave out --include.")
        return api.create({**spec, "workspace": workspace}, to=COMPARISONS)
    folder = jobs.read_folder(args, workspace, include, args.largeWorkspace)
    first = {**job, "machineType": job["machineType"].split(",")[0]}
    return submission.submit(api, spec, workspace, folder, to=COMPARISONS, planned=first)


def compare_jobs(args: argparse.Namespace) -> int:
    api = connect(args)
    ids = [resolve_job_id(job_id, api) for job_id in args.ids]
    name = {} if args.name is None else {"name": args.name}
    return _report(args, api, api.compare_jobs({"jobs": ids, **name, **_judgement(args)}))


def _judgement(args: argparse.Namespace) -> dict[str, Any]:
    given = {"metric": args.metric, "target": args.target}
    return {name: value for name, value in given.items() if value is not None}


def _remember(api: Api, made: dict[str, Any]) -> None:
    with suppress(OSError):  # it only saves typing
        config.remember("comparisons", current_folder(), api.url, str(made["id"]))


def _report(args: argparse.Namespace, api: Api, made: dict[str, Any]) -> int:
    _remember(api, made)
    if args.json:
        return print_json(made)
    print(made["id"])
    terminal.print_message(
        f"{terminal.sanitize(made.get('url') or '')}\n  {format_count(made['jobs'], 'job')} on "
        f"{format_count(len(made['rows']), 'machine type')}\n  see it when all have ended  gradient-cli compare "
        f"show {made['id']} --wait"
    )
    return OK
