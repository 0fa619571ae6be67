from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Iterable
from typing import Any

from gradient_cli import config, terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect, current_folder, is_array_id, resolve_id
from gradient_cli.commands.compare.hyperparameter_carry_over import add_carry_options, carry
from gradient_cli.commands.jobs import arrays
from gradient_cli.errors import FAILED, INTERRUPTED, OK, UsageError
from gradient_cli.follow import LogPrinter, attach, print_notes
from gradient_cli.formatting import describe_port, format_count, format_price, format_size, print_fields, print_json
from gradient_cli.options import add_common, add_job_id, add_json, add_option
from gradient_cli.workspace import job_spec as specs
from gradient_cli.workspace import preflight, submission, workspace_path
from gradient_cli.workspace.packing.absent_files import INFO, explain_command, explain_log
from gradient_cli.workspace.packing.archive import WorkspaceFolder, describe_skipped

_MEGA = 1_000_000


def add_create(parser: argparse.ArgumentParser) -> None:
    specs.add_options(parser)
    add_carry_options(parser)
    _add_follow_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the job and its upload, but submit nothing")
    add_large_workspace(parser)
    add_common(parser, create, json="", show=follow_or_detach, check=False)


def add_check(parser: argparse.ArgumentParser) -> None:
    specs.add_options(parser)
    add_carry_options(parser)
    add_large_workspace(parser)
    add_common(parser, create, show=follow_or_detach, check=True, dry_run=True)


def add_clone(parser: argparse.ArgumentParser) -> None:
    add_job_id(parser)
    specs.add_change_options(parser)
    add_carry_options(parser)
    add_option(parser, "--pinImage", action="store_true", help="use the exact image digest of the original job")
    add_option(parser, "--onlyFailed", action="store_true", help="for an array: only members that failed")
    _add_follow_options(parser)
    add_common(parser, clone, json="")


def add_large_workspace(parser: argparse.ArgumentParser) -> None:
    """Add the size above which the files of a workspace are listed."""
    add_option(
        parser,
        "--largeWorkspace",
        metavar="MB",
        type=float,
        default=100.0,
        help="list the largest files of workspaces above this size (default: 100)",
    )


def _add_follow_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-d", "--detach", action="store_true", help="print the job's id and return without following the job"
    )
    parser.add_argument("--raw", action="store_true", help="keep terminal escape sequences in the log")
    add_json(parser, "print the job as one JSON object; implies --detach")


def create(args: argparse.Namespace) -> int:
    if args.program:
        args.command = join_program(args.command, args.program)
    return submit(args, *specs.resolve(args))


def submit(args: argparse.Namespace, spec: dict[str, Any], workspace: str, include: list[str]) -> int:
    try:
        api = connect(args)
        submission.choose_machine_type(api, spec, terminal.print_message)
        spec["command"] = carry(args, api, spec["machineType"], spec["command"])
        return _create(args, api, spec, workspace, include)
    except KeyboardInterrupt:  # before the job's id was known; afterwards Ctrl-C detaches
        terminal.print_message("\ninterrupted; `gradient-cli jobs list` shows whether the job was created")
        return INTERRUPTED


def join_program(command: str | None, program: list[str]) -> str:
    """Return the words after `--` as a command for the job's shell, which expands nothing in them."""
    if command is not None:
        raise UsageError("command: given both as --command and after --", hint="Give one of them.")
    return shlex.join(program)


def _create(args: argparse.Namespace, api: Api, spec: dict[str, Any], workspace: str, include: list[str]) -> int:
    show: Callable[[argparse.Namespace, Api, dict[str, Any], WorkspaceFolder | None], int] = args.show
    if workspace == "none" or workspace_path.is_url(workspace):
        check_no_include(args)
        folder = None
        spec = {**spec, "workspace": workspace}
    else:
        # Without a limit in a dry run: it lists the largest files anyway.
        folder = read_folder(args, workspace, include, math.inf if args.dry_run else args.largeWorkspace)
    if args.dry_run:
        return _show_plan(args, preflight.plan_job(api, spec, workspace, folder, collect=args.check), folder)
    if "workspace" in spec:
        return show(args, api, _remembered(api, api.create(spec)), None)
    if folder:
        for finding in explain_command(folder, spec["command"] or "", spec.get("workingDir") or ""):
            terminal.print_message(f"workspace: {terminal.sanitize(finding)}")
    return show(args, api, _remembered(api, submission.submit(api, spec, workspace, folder)), folder)


def check_no_include(args: argparse.Namespace) -> None:
    if args.include:
        raise UsageError("include: only possible with a folder as workspace", hint="Leave out --include.")


def clone(args: argparse.Namespace) -> int:
    if args.program:
        args.command = join_program(args.command, args.program)
    changes = specs.changes(args)
    api = connect(args)
    job_id = resolve_id(args.id, api)
    _carry_to_clone(args, api, job_id, changes)
    job = api.clone_job(job_id, changes, pin_image=args.pinImage, only_failed=args.onlyFailed)
    return follow_or_detach(args, api, _remembered(api, job))


def _carry_to_clone(args: argparse.Namespace, api: Api, job_id: str, changes: dict[str, Any]) -> None:
    if args.carryFrom is None and not args.applyCarry:
        return
    options = {**(api.array(job_id) if is_array_id(job_id) else api.job(job_id)), **changes}
    command = carry(args, api, options["machineType"], options["command"])
    if args.applyCarry:
        changes["command"] = command


def read_folder(args: argparse.Namespace, path: str, include: list[str], large: float) -> WorkspaceFolder | None:
    """Read the folder of a workspace and print what is noteworthy; None if it is an archive.

    `large`: size in MB above which the largest files are listed.
    """
    folder = submission.read_folder(path, include)
    if folder is None:
        check_no_include(args)
    else:
        for line in describe_skipped(folder):
            terminal.print_message(f"workspace: {terminal.sanitize(line)}")
        if not folder.files:
            terminal.print_message(f"workspace: {path} contains no files to upload; --workspace selects another folder")
        if folder.size > large * _MEGA:
            terminal.print_message(f"workspace: {path} is large ({format_size(folder.size)}); its largest files:")
            for entry in folder.largest():
                terminal.print_message(f"  {format_size(entry.size):>9}  {terminal.sanitize(entry.path)}")
            terminal.print_message("  a .gradientignore excludes files; --largeWorkspace MB changes this limit")
    return folder


def follow_or_detach(
    args: argparse.Namespace, api: Api, job: dict[str, Any], folder: WorkspaceFolder | None = None
) -> int:
    job_id = str(job["id"])
    if args.json:
        return print_json(job)
    if job.get("arrayId"):
        return arrays.wait_or_detach(args, api, job)
    if args.detach:
        print(job_id)
        print_notes(job)
        terminal.print_message(
            f"{terminal.sanitize(job.get('url') or '')}\n"
            f"  follow it  gradient-cli jobs logs {job_id} --follow\n"
            f"  stop it    gradient-cli jobs stop {job_id}"
        )
        return OK
    terminal.print_message(
        f"job {terminal.style(job_id, 'bold', sys.stderr)}  {terminal.sanitize(job.get('url') or '')}"
    )
    print_notes(job)

    def explain(lines: Iterable[str]) -> list[str]:
        return list(map(str, explain_log(folder, lines, job.get("workingDir") or ""))) if folder else []

    return attach(api, job, LogPrinter(raw=args.raw), shown_notes=job.get("notes") or [], explain=explain)


def _remembered(api: Api, job: dict[str, Any]) -> dict[str, Any]:
    """Return the job, after storing it as the folder's last."""
    try:
        config.remember("jobs", current_folder(), api.url, str(job.get("arrayId") or job["id"]))
    except OSError as error:
        terminal.print_message(
            f"cannot remember this job as the folder's last: {error.strerror}: {config.config_dir()}"
        )
    return job


def _show_plan(args: argparse.Namespace, plan: preflight.JobPlan, folder: WorkspaceFolder | None) -> int:
    bad = args.check and any(finding.severity != INFO for finding in plan.findings)
    if args.json:
        findings = [finding.as_json() for finding in plan.findings]
        requirements = plan.requirements.as_json() if plan.requirements else None
        print_json({**plan.answer, "upload": plan.upload, "requirements": requirements, "findings": findings})
        return FAILED if bad else OK
    if plan.answer:
        _print_plan(plan, folder)
    for finding in plan.findings:
        print(f"{finding.severity:<7}  {terminal.sanitize(finding)}")
    step = "`gradient-cli jobs create` submits it" if args.check else "leave out --dry-run to submit this job"
    terminal.print_message(f"nothing was submitted; {step}")
    return FAILED if bad else OK


def _print_plan(plan: preflight.JobPlan, folder: WorkspaceFolder | None) -> None:
    answer, job = plan.answer, plan.answer["job"]
    shown = {name: _format_value(job[name]) for name in job if name not in {"machineType", "workspaceSha256"}}
    shown["ports"] = ", ".join(describe_port(port) for port in job.get("ports") or [])
    machine = answer.get("machineType")
    kind = machine if isinstance(machine, dict) else {}
    print_fields(
        {
            "machineType": " · ".join(part for part in (_format_value(kind.get("name")), format_price(answer)) if part),
            **shown,
            **(plan.requirements.as_fields(answer) if plan.requirements else {}),
            "start": answer.get("wouldStart") or "",
            "registry": answer["imageCheck"]["message"] if (answer.get("imageCheck") or {}).get("digest") else "",
            "upload": _describe_upload(plan.upload),
        }
    )
    for entry in folder.largest() if folder else []:
        print(f"  {format_size(entry.size):>9}  {terminal.sanitize(entry.path)}")
    print_notes(answer)


def _describe_upload(upload: dict[str, Any] | None) -> str:
    if upload is None:
        return "nothing"
    what = f"{format_size(upload['size'])} to send"
    if upload["files"] is not None:
        what = f"{format_count(upload['files'], 'file')}, {format_size(upload['bytes'])}, {what}"
    return f"nothing: the server already has it ({what})" if upload["alreadyStored"] else what


def _format_value(value: object) -> str:
    if value is None or value in ([], {}):
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else ""
    return f"{value:g}" if isinstance(value, float) else str(value)
