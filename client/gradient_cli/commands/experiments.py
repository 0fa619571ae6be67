"""`experiments list`, `show` and `run`: repeat published experiments, and report their figures beside the published."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect
from gradient_cli.errors import FAILED, INTERRUPTED, OK, UsageError
from gradient_cli.experiments import recipe as recipes
from gradient_cli.experiments import repetition, report
from gradient_cli.experiments.recipe import Recipe
from gradient_cli.experiments.repetition import Run
from gradient_cli.formatting import format_count, print_fields, print_json, print_list, print_table
from gradient_cli.options import add_common, add_json, add_option, add_positional


def add_list(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    parser.set_defaults(run=list_experiments)


def add_show(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    add_json(parser)
    parser.set_defaults(run=show)


def add_run(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    add_option(
        parser,
        "--machineType",
        metavar="NAME,NAME,...",
        help="machine types to run on (default: the publication's machine types, if the server has them)",
    )
    parser.add_argument("--full", action="store_true", help="run the full version, not the scaled-down one")
    add_option(
        parser,
        "--repeats",
        metavar="N",
        type=int,
        default=1,
        help="jobs of each member on each machine type, with SEED=1 to N (default: 1)",
    )
    parser.add_argument(
        "--parallel",
        action="store_true",
        help="let jobs run at the same time; they slow each other down if they share a host",
    )
    parser.add_argument(
        "--data",
        metavar="NAME=OTHER",
        action="append",
        default=[],
        help="replace a data set that `show` lists with another one from `storage put`: cifar10=photos.zip; repeatable",
    )
    add_option(
        parser, "--output", metavar="FOLDER", help="folder for the report (default: experiment-NAME in this folder)"
    )
    add_common(parser, run, "print the measured figures as one JSON object")


def _add_name(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "name", needed=True, metavar="NAME", help="name of the experiment, from `experiments list`")


def list_experiments(args: argparse.Namespace) -> int:
    recipes_found = [recipes.load(name) for name in recipes.names()]
    shown = [
        {
            "name": listed.name,
            "title": listed.title,
            "machineTypes": listed.machine_types,
            "source": listed.source,
        }
        for listed in recipes_found
    ]
    rows = [
        [
            listed.name,
            listed.title,
            str(listed.source["year"]),
            str(len(listed.members)),
            ", ".join(listed.machine_types),
        ]
        for listed in recipes_found
    ]
    heads, spare = ("NAME", "TITLE", "YEAR", "MEMBERS", "MACHINE TYPES"), ("MACHINE TYPES",)
    return print_list(args, {"experiments": shown}, heads, rows, spare=spare)


def show(args: argparse.Namespace) -> int:
    recipe = recipes.load(args.name)
    if args.json:
        from dataclasses import asdict

        return print_json(asdict(recipe))
    source = recipe.source
    print(f"{recipe.title}\n{recipe.summary}\n")
    print_fields(
        {
            "source": f"{source['title']} ({source['author']}, {source['year']})",
            "address": str(source.get("url", "")),
            "machine types": ", ".join(recipe.machine_types),
            "data sets": ", ".join(sorted(recipe.data_sets())),
            "scaled down": recipe.scaled,
            "--full": recipe.full,
        }
    )
    if recipe.rows:
        print("\nPublished:")
        print_table([head.upper() for head in recipe.columns], recipe.rows)
    for remark in recipe.notes:
        print(remark)
    print("\nMembers:")
    rows = [
        [
            member.name,
            member.description,
            ", ".join(member.machine_types or ["all"]),
            recipe.command_of(member, {}, full=False),
        ]
        for member in recipe.members
    ]
    print_table(("NAME", "STANDS FOR", "ON", "COMMAND, SCALED DOWN"), rows)
    return OK


def run(args: argparse.Namespace) -> int:
    recipe = recipes.load(args.name)
    data_sets = recipe.data_sets()
    data: dict[str, str] = {}
    for pair in args.data:
        name, _, other = pair.partition("=")
        if name not in data_sets or not other:
            raise UsageError(
                f"data: {pair!r} does not replace a data set of {recipe.name}",
                hint=f"Write NAME=OTHER with a NAME of {', '.join(sorted(data_sets)) or 'another experiment'}.",
            )
        data[name] = _quote(other)
    if args.repeats < 1:
        raise UsageError(f"repeats: {args.repeats} must be at least 1", hint="Leave it out for one job each.")
    folder = _free_folder(args.output, recipe.name)
    api = connect(args)
    machine_types = repetition.choose_machine_types(api, recipe, args.machineType)
    repetition.check_count(recipe, machine_types, args.repeats)
    os.makedirs(folder, exist_ok=True)
    runs = repetition.submit(
        api, recipe, machine_types, data, full=args.full, repeats=args.repeats, parallel=args.parallel
    )
    comparison_id = repetition.compare(api, recipe, runs)
    try:
        repetition.wait(api, runs)
    except KeyboardInterrupt:
        ids = " ".join(member_run.job["id"] for member_run in runs)
        terminal.print_message(
            "\ninterrupted; the jobs continue, but no report will be written. To stop them: gradient-cli jobs stop "
            f"{ids}" + (f"\n  see them  gradient-cli compare show {comparison_id} --wait" if comparison_id else "")
        )
        return INTERRUPTED
    return _report(args, api, recipe, runs, comparison_id, folder)


def _report(
    args: argparse.Namespace, api: Api, recipe: Recipe, runs: Sequence[Run], comparison_id: str | None, folder: str
) -> int:
    cells = repetition.measure(api, runs, comparison_id)
    scale = f"full: {recipe.full}" if args.full else f"scaled down: {recipe.scaled}"
    links = [f"Comparison: {api.comparison(comparison_id)['url']}"] if comparison_id else []
    sections = report.build(recipe, cells, scale, links)
    figures = report.as_json(recipe, cells, scale)
    path = report.write(folder, sections, figures)
    if args.json:
        print_json(figures)
    else:
        for section in sections[1:]:
            for part in section.parts:
                if isinstance(part, report.Table) and section.heading.startswith("Measured"):
                    print_table([head.upper() for head in part.heads], part.rows)
        print(path)
    failed = [member_run for member_run in runs if not member_run.succeeded]
    if failed:
        first = failed[0].job
        terminal.print_message(
            f"{format_count(len(failed), 'job')} of {len(runs)} did not succeed; their figures are not in the report. "
            f"The first: gradient-cli jobs logs {first['id']}"
        )
    return FAILED if failed else OK


def _quote(text: str) -> str:
    return shlex.quote(text)


def _free_folder(given: str | None, name: str) -> str:
    """Return the folder for the report, refused before any job is submitted if it contains one."""
    folder = given or _unused(f"experiment-{name}")
    if os.path.exists(os.path.join(folder, "report.md")):
        raise UsageError(f"output: {folder} contains a report already", hint="Give another folder.")
    return folder


def _unused(name: str) -> str:
    number, folder = 1, name
    while os.path.exists(folder):
        number += 1
        folder = f"{name}-{number}"
    return folder
