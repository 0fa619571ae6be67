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
from gradient_cli.errors import INTERRUPTED, OK, UsageError
from gradient_cli.follow import LogPrinter, attach, print_notes
from gradient_cli.formatting import describe_port, format_count, format_price, format_size, print_fields, print_json
from gradient_cli.options import add_connection, add_job_id, add_json, add_option
from gradient_cli.workspace import job_spec as specs
from gradient_cli.workspace import submission, workspace_path
from gradient_cli.workspace.dependencies.requirements_plan import RequirementsPlan
from gradient_cli.workspace.packing.absent_files import explain_command, explain_log
from gradient_cli.workspace.packing.archive import Archive, WorkspaceFolder, describe_skipped
from gradient_cli.workspace.submission import check_file_count

_MEGA = 1_000_000


def add_create(parser: argparse.ArgumentParser) -> None:
    specs.add_options(parser)
    add_carry_options(parser)
    _add_follow_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the job and its upload, but submit nothing")
    add_large_workspace(parser)
    add_connection(parser)
    parser.set_defaults(run=create, show=follow_or_detach)


def add_clone(parser: argparse.ArgumentParser) -> None:
    add_job_id(parser)
    specs.add_change_options(parser)
    add_carry_options(parser)
    add_option(parser, "--pinImage", action="store_true", help="use the exact image digest of the original job")
    add_option(parser, "--onlyFailed", action="store_true", help="for an array: only members that failed")
    _add_follow_options(parser)
    add_connection(parser)
    parser.set_defaults(run=clone)


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
        spec["workspace"] = workspace
        if args.dry_run:
            return _show_plan(args, api.resolve_job(spec), None, None)
        return show(args, api, _remembered(api, api.create(spec)), None)
    # Without a limit in a dry run: it lists the largest files anyway.
    folder = read_folder(args, workspace, include, math.inf if args.dry_run else args.largeWorkspace)
    if folder:
        for line in explain_command(folder, spec["command"] or "", spec.get("workingDir") or ""):
            terminal.print_message(f"workspace: {terminal.sanitize(line)}")
    if not args.dry_run:
        return show(args, api, _remembered(api, submission.submit(api, spec, workspace, folder)), folder)
    planned = submission.plan_upload(api, workspace, folder)
    return _dry_run(args, api, spec, planned, folder, is_stored=api.has_workspace(planned.sha256))


def check_no_include(args: argparse.Namespace) -> None:
    if args.include:
        raise UsageError("include: only possible with a folder as workspace", hint="Leave out --include.")


def _dry_run(
    args: argparse.Namespace,
    api: Api,
    spec: dict[str, Any],
    archive: Archive,
    folder: WorkspaceFolder | None,
    *,
    is_stored: bool,
) -> int:
    spec = {**spec, "workspaceSha256": archive.sha256} if is_stored else spec
    plan, requirements = api.resolve_job(spec), None
    check_file_count(plan, folder)
    if folder and plan["job"].get("backend") == "process" and not plan["job"].get("image"):  # which brings its packages
        requirements = RequirementsPlan(spec, folder.root, plan["defaultPackages"])
        plan = api.resolve_job(spec, requirements.digest) if requirements.digest else plan
    return _show_plan(args, plan, _upload_plan(archive, folder, is_stored=is_stored), folder, requirements)


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
        return explain_log(folder, lines, job.get("workingDir") or "") if folder else []

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


def _upload_plan(archive: Archive, folder: WorkspaceFolder | None, *, is_stored: bool) -> dict[str, Any]:
    return {
        "sha256": archive.sha256,
        "size": archive.size,
        "alreadyStored": is_stored,
        "files": len(folder.files) if folder else None,
        "bytes": folder.size if folder else None,
        "largest": [{"path": entry.path, "size": entry.size} for entry in folder.largest()] if folder else [],
        "leftOut": folder.left_out if folder else [],
    }


def _show_plan(
    args: argparse.Namespace,
    plan: dict[str, Any],
    upload: dict[str, Any] | None,
    folder: WorkspaceFolder | None,
    requirements: RequirementsPlan | None = None,
) -> int:
    if args.json:
        return print_json({**plan, "upload": upload, "requirements": requirements.as_json() if requirements else None})
    shown = {
        name: _format_value(value)
        for name, value in plan["job"].items()
        if name not in {"machineType", "workspaceSha256"}
    }
    shown["ports"] = ", ".join(describe_port(port) for port in plan["job"].get("ports") or [])
    machine = plan.get("machineType")
    kind = machine if isinstance(machine, dict) else {}
    print_fields(
        {
            "machineType": " · ".join(part for part in (_format_value(kind.get("name")), format_price(plan)) if part),
            **shown,
            **(requirements.as_fields(plan) if requirements else {}),
            "start": plan.get("wouldStart") or "",
            "upload": _describe_upload(upload),
        }
    )
    for entry in folder.largest() if folder else []:
        print(f"  {format_size(entry.size):>9}  {terminal.sanitize(entry.path)}")
    print_notes(plan)
    terminal.print_message("nothing was submitted; leave out --dry-run to submit this job")
    return OK


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
