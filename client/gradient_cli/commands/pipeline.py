"""`run`: submit the jobs of a file, which name the jobs above them that they wait for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect
from gradient_cli.errors import OK, ClientError, UsageError
from gradient_cli.formatting import print_json
from gradient_cli.options import add_common, add_positional
from gradient_cli.workspace import job_spec as specs
from gradient_cli.workspace import project_file, submission, workspace_path

Step = tuple[str, dict[str, Any], str, list[str]]


_NAMED = ("after", "inputs")


def add_run(parser: argparse.ArgumentParser) -> None:
    add_positional(
        parser,
        "file",
        needed=True,
        metavar="FILE",
        help="TOML file with a table [[jobs]] for each job, with the options of `jobs create`; after and inputs may "
        "refer to a job above by its name",
    )
    add_common(parser, run, "print the jobs as one JSON array")


def run(args: argparse.Namespace) -> int:
    """Submit the jobs from top to bottom, and print the id of each; if one is refused, stop those above it."""
    steps = _read(args.file)
    api = connect(args)
    made: list[dict[str, Any]] = []
    try:
        for job in _submit(api, steps):
            made.append(job)
            if not args.json:
                print(f"{job['id']}  {terminal.sanitize(job['name'])}", flush=True)
    except (ClientError, KeyboardInterrupt):
        if made:
            api.act_on_jobs("stop", [job["id"] for job in made])
            terminal.print_message(f"{steps[len(made)][0]} was not submitted, so the jobs above it are being stopped")
        raise
    if args.json:
        print_json(made)
    terminal.print_message(f"wait for all: gradient-cli jobs wait {' '.join(job['id'] for job in made)}")
    return OK


def _submit(api: Api, steps: list[Step]) -> Iterator[dict[str, Any]]:
    ids: dict[str, str] = {}
    uploaded: dict[tuple[str, tuple[str, ...]], str] = {}
    for name, spec, workspace, include in steps:
        submission.choose_machine_type(api, spec, terminal.print_message)
        for option in _NAMED:
            if option in spec:
                spec[option] = [_with_id(text, ids) for text in spec[option]]
        folder = workspace, tuple(include)
        if workspace == "none" or workspace_path.is_url(workspace):
            job = api.create({**spec, "workspace": workspace})
        elif folder in uploaded:
            job = api.create({**spec, "workspaceSha256": uploaded[folder]})
        else:
            job = submission.submit(api, spec, workspace, submission.read_folder(workspace, include))
            uploaded[folder] = job["workspaceSha256"]
        ids[name] = job["id"]
        yield job


def _with_id(text: str, ids: dict[str, str]) -> str:
    name, colon, rest = text.partition(":")
    return f"{ids.get(name, name)}{colon}{rest}"


def _read(path: str) -> list[Step]:
    content = project_file.read(path)
    jobs = content.pop("jobs", None)
    if content or not isinstance(jobs, list) or not jobs or not all(isinstance(job, dict) for job in jobs):
        raise UsageError(
            f"{path}: not a list of jobs", hint="Begin each job with a line [[jobs]]; other tables are not allowed."
        )
    names = [job.get("name") for job in jobs]
    options = argparse.Namespace(**dict.fromkeys(specs.option_names()))
    steps = []
    for number, job in enumerate(jobs, 1):
        name = job.get("name")
        if not isinstance(name, str) or ":" in name or names.index(name) != number - 1:
            raise UsageError(
                f"{path}: job {number} has no unique name", hint='For example name = "train", without a colon.'
            )
        try:
            steps.append((name, *specs.resolve(options, line=job)))
        except UsageError as error:
            raise UsageError(f"{path}: {name}: {error}", hint=error.hint) from None
        if steps[-1][1].get("array"):
            raise UsageError(
                f"{path}: {name}: an array cannot be a job of a list", hint="Submit it with `jobs create`."
            )
        for text in [text for option in _NAMED for text in job.get(option, [])]:
            if text.partition(":")[0] in names[number - 1 :]:
                raise UsageError(
                    f"{path}: {name} waits for {text}, which is not above it",
                    hint="Write each job below the jobs it waits for; a job cannot wait for itself.",
                )
    return steps
