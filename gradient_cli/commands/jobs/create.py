"""`jobs create` and `jobs clone`: submit a job, and follow it."""

from __future__ import annotations

import math
import os
import sys

from gradient_cli import terminal
from gradient_cli.errors import INTERRUPTED, OK, ServerError, UsageError
from gradient_cli.formatting import describe_port, format_count, format_price, format_size, print_fields, print_json
from gradient_cli.options import add_connection, add_job_id, add_json, add_option, current_folder, resolve_job_id
from gradient_cli.progress import Progress
from gradient_cli.workspace import job_spec as specs

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from gradient_cli.api.client import Api
    from gradient_cli.workspace.archive import Archive, WorkspaceFolder

_MEGA = 1_000_000


def add_create(parser: argparse.ArgumentParser) -> None:
    """Set up the parser of `jobs create`."""
    specs.add_options(parser)
    _add_follow_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the job and its upload, but submit nothing")
    add_option(
        parser,
        "--largeWorkspace",
        metavar="MB",
        type=float,
        default=100.0,
        help="list the largest files of a workspace above this size, in MB (default: 100)",
    )
    add_connection(parser)
    parser.set_defaults(run=create)


def add_clone(parser: argparse.ArgumentParser) -> None:
    """Set up the parser of `jobs clone`."""
    add_job_id(parser)
    specs.add_change_options(parser)
    add_option(parser, "--pinImage", action="store_true", help="use the exact image digest of the original job")
    _add_follow_options(parser)
    add_connection(parser)
    parser.set_defaults(run=clone)


def _add_follow_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-d", "--detach", action="store_true", help="print the job's id and return, instead of following the job"
    )
    parser.add_argument("--raw", action="store_true", help="do not strip terminal escape sequences from the log")
    add_json(parser, "print the job as one JSON object; implies --detach")


def create(args: argparse.Namespace) -> int:
    """Submit a job from flags, project file and folder."""
    from gradient_cli.api.client import connect

    if args.program:
        args.command = _join_program(args.command, args.program)
    spec, workspace, include = specs.resolve(args)
    try:
        return _create(args, connect(args), spec, workspace, include)
    except KeyboardInterrupt:  # before the job's id was known; afterwards Ctrl-C detaches
        terminal.print_message("\ninterrupted; `gradient-cli jobs list` shows whether the job was created")
        return INTERRUPTED


def _join_program(command: str | None, program: list[str]) -> str:
    """Return the words after `--` as a command for the job's shell, which expands nothing in them."""
    import shlex

    if command is not None:
        raise UsageError("command: given both as --command and after --", hint="Give one of them.")
    return shlex.join(program)


def _create(args: argparse.Namespace, api: Api, spec: dict[str, Any], workspace: str, include: list[str]) -> int:
    if workspace == "none" or specs.is_url(workspace):
        _check_no_include(args)
        spec["workspace"] = workspace
        if args.dry_run:
            return _show_plan(args, api.resolve_job(spec), None, None)
        return _follow_or_detach(args, api, api.create_job(spec))
    # Without a limit in a dry run: it lists the largest files anyway.
    folder = _read_folder(workspace, math.inf if args.dry_run else args.largeWorkspace, include)
    if folder is None:
        _check_no_include(args)
    job = None
    if packed := _find_packed(api, folder):
        if args.dry_run:
            return _dry_run(args, api, spec, packed, folder, known=True)
        job = _submit_stored(api, spec, packed)
    if job is None:
        with _create_archive(workspace, folder) as archive:
            if args.dry_run:
                return _dry_run(args, api, spec, archive, folder, known=api.has_workspace(archive.sha256))
            job = _submit(api, spec, archive, folder)
    return _follow_or_detach(args, api, job)


def _check_no_include(args: argparse.Namespace) -> None:
    if args.include:
        raise UsageError("include: only possible with a folder as workspace", hint="Leave out --include.")


def _find_packed(api: Api, folder: WorkspaceFolder | None) -> Archive | None:
    """Return the archive of an unchanged folder that was packed before, if the server still has it."""
    if folder is None:
        return None
    from gradient_cli.workspace import pack_cache

    packed = pack_cache.find(folder)
    return packed if packed and api.has_workspace(packed.sha256) else None


def _dry_run(
    args: argparse.Namespace,
    api: Api,
    spec: dict[str, Any],
    archive: Archive,
    folder: WorkspaceFolder | None,
    *,
    known: bool,
) -> int:
    plan = api.resolve_job({**spec, "workspaceSha256": archive.sha256} if known else spec)
    _check_file_count(plan, folder)
    return _show_plan(args, plan, _upload_plan(archive, folder, known=known), folder)


def _check_file_count(plan: dict[str, Any], folder: WorkspaceFolder | None) -> None:
    most = plan.get("maxWorkspaceFiles")
    if folder and most and len(folder.entries) > most:
        raise UsageError(
            f"workspace: {folder.root} has {len(folder.entries):,} files and folders, more than the {most:,} that the "
            "server accepts",
            hint="Exclude some with a .gradientignore, or put data sets in the project's storage.",
        )


def clone(args: argparse.Namespace) -> int:
    """Submit an existing job again."""
    from gradient_cli.api.client import connect

    if args.program:
        args.command = _join_program(args.command, args.program)
    changes = specs.changes(args)
    api = connect(args)
    job = api.clone_job(resolve_job_id(args.id, api), changes, pin_image=args.pinImage)
    return _follow_or_detach(args, api, job)


def _read_folder(path: str, large: float, include: list[str]) -> WorkspaceFolder | None:
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise UsageError(
                f"workspace: {path} does not exist",
                hint="Give a folder, an archive (.zip, .tar.gz), a git URL such as https://host/repo.git#ref, or none.",
            )
        return None
    from gradient_cli.workspace import archive as packing

    folder = packing.WorkspaceFolder(path, include)
    for line in packing.describe_skipped(folder):
        terminal.print_message(f"workspace: {terminal.sanitize(line)}")
    if not folder.files:
        terminal.print_message(f"workspace: {path} contains no files to upload; --workspace selects another folder")
    if folder.size > large * _MEGA:
        terminal.print_message(f"workspace: {path} is large ({format_size(folder.size)}); its largest files:")
        for entry in folder.largest():
            terminal.print_message(f"  {format_size(entry.size):>9}  {terminal.sanitize(entry.path)}")
        terminal.print_message("  a .gradientignore excludes files; --largeWorkspace MB changes this limit")
    return folder


def _create_archive(path: str, folder: WorkspaceFolder | None) -> Archive:
    from gradient_cli.workspace import archive as packing

    if folder is None:
        return packing.open_archive(path)
    from gradient_cli.workspace import pack_cache

    progress = Progress("packing", folder.size)
    try:
        archive = packing.create_archive(folder, progress.update)
    finally:
        progress.close()
    pack_cache.remember(folder, archive)
    return archive


def _submit_stored(api: Api, spec: dict[str, Any], archive: Archive) -> dict[str, Any] | None:
    """Submit a job with an archive that the server has; None if it was deleted meanwhile."""
    try:
        job = api.create_job({**spec, "workspaceSha256": archive.sha256})
    except ServerError as error:
        if error.field != "workspaceSha256":
            raise
        return None
    terminal.print_message(f"workspace unchanged, not uploaded ({format_size(archive.size)})")
    return job


def _submit(api: Api, spec: dict[str, Any], archive: Archive, folder: WorkspaceFolder | None) -> dict[str, Any]:
    if api.has_workspace(archive.sha256) and (stored := _submit_stored(api, spec, archive)):
        return stored
    # An invalid spec or too many files are refused now rather than after the upload.
    _check_file_count(api.resolve_job(spec), folder)
    progress = Progress("uploading", archive.size)
    try:
        job = api.create_job_with_archive(spec, archive.path, progress.update)
    finally:
        progress.close()
    terminal.print_message(f"workspace uploaded ({format_size(archive.size)})")
    return job


def _follow_or_detach(args: argparse.Namespace, api: Api, job: dict[str, Any]) -> int:
    job_id = str(job["id"])
    _remember_job(api.url, job_id)
    if args.json:
        print_json(job)
        return OK
    if args.detach:
        print(job_id)
        terminal.print_message(
            f"{terminal.sanitize(job.get('url') or '')}\n"
            f"  follow it  gradient-cli jobs logs {job_id} --follow\n"
            f"  stop it    gradient-cli jobs stop {job_id}"
        )
        return OK
    from gradient_cli.follow import LogPrinter, attach

    terminal.print_message(
        f"job {terminal.style(job_id, 'bold', sys.stderr)}  {terminal.sanitize(job.get('url') or '')}"
    )
    return attach(api, job, LogPrinter(raw=args.raw))


def _remember_job(url: str, job_id: str) -> None:
    from gradient_cli import config

    try:
        config.remember_job(current_folder(), url, job_id)
    except OSError as error:
        terminal.print_message(
            f"cannot remember this job as the folder's last: {error.strerror}: {config.config_dir()}"
        )


def _upload_plan(archive: Archive, folder: WorkspaceFolder | None, *, known: bool) -> dict[str, Any]:
    return {
        "sha256": archive.sha256,
        "size": archive.size,
        "alreadyStored": known,
        "files": len(folder.files) if folder else None,
        "bytes": folder.size if folder else None,
        "largest": [{"path": entry.path, "size": entry.size} for entry in folder.largest()] if folder else [],
        "leftOut": folder.left_out if folder else [],
    }


def _show_plan(
    args: argparse.Namespace, plan: dict[str, Any], upload: dict[str, Any] | None, folder: WorkspaceFolder | None
) -> int:
    if args.json:
        print_json({**plan, "upload": upload})
        return OK
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
            "upload": _describe_upload(upload),
        }
    )
    for entry in folder.largest() if folder else []:
        print(f"  {format_size(entry.size):>9}  {terminal.sanitize(entry.path)}")
    for line in plan.get("notes") or []:
        terminal.print_message(f"note: {terminal.sanitize(line)}")
    terminal.print_message("nothing was submitted; without --dry-run this job is submitted")
    return OK


def _describe_upload(upload: dict[str, Any] | None) -> str:
    if upload is None:
        return "nothing"
    what = f"{format_size(upload['size'])} packed"
    if upload["files"] is not None:
        what = f"{format_count(upload['files'], 'file')}, {format_size(upload['bytes'])}, {what}"
    return f"nothing: the server has it already ({what})" if upload["alreadyStored"] else what


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
