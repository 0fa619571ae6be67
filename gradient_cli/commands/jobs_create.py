"""`jobs create` and `jobs clone`: submit a job, and follow it."""

from __future__ import annotations

import math
import os
import sys

from gradient_cli import terminal
from gradient_cli.errors import INTERRUPTED, OK, RefusedError, UsageError
from gradient_cli.formatting import count, port_words, price, print_fields, print_json, size
from gradient_cli.options import add_connection, add_job_id, add_json, add_option, chosen_job, this_folder
from gradient_cli.progress import Progress
from gradient_cli.workspace import spec as specs

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from gradient_cli.api.client import Api
    from gradient_cli.workspace.archive import Archive, Folder

_MEGA = 1_000_000


def add_create(parser: argparse.ArgumentParser) -> None:
    """Set up the parser of `jobs create`."""
    specs.add_options(parser)
    _add_manner(parser)
    parser.add_argument("--dry-run", action="store_true", help="show what would be run and uploaded; make nothing")
    add_option(
        parser,
        "--largeWorkspace",
        metavar="MB",
        type=float,
        default=100.0,
        help="name the largest files of a workspace above this size (default: 100)",
    )
    add_connection(parser)
    parser.set_defaults(run=create)


def add_clone(parser: argparse.ArgumentParser) -> None:
    """Set up the parser of `jobs clone`."""
    add_job_id(parser)
    add_option(
        parser, "--pinImage", action="store_true", help="run the very image that the job ran, whatever its tag says now"
    )
    _add_manner(parser)
    add_connection(parser)
    parser.set_defaults(run=clone)


def _add_manner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--detach", action="store_true", help="print the id and return, instead of following the job")
    parser.add_argument("--raw", action="store_true", help="leave terminal escapes in the log as they are")
    add_json(parser, "print the job as one JSON object; implies --detach")


def create(args: argparse.Namespace) -> int:
    """Submit a job from flags, project file and folder."""
    from gradient_cli.api.client import connect

    spec, workspace = specs.resolve(args)
    try:
        return _create(args, connect(args), spec, workspace)
    except KeyboardInterrupt:  # before the job's id was known; afterwards Ctrl-C detaches
        terminal.note("\ninterrupted; `gradient-cli jobs list` shows whether the job was made")
        return INTERRUPTED


def _create(args: argparse.Namespace, api: Api, spec: dict[str, Any], workspace: str) -> int:
    if workspace == "none" or specs.is_url(workspace):
        spec["workspace"] = workspace
        if args.dry_run:
            return _show_plan(args, api.resolve_job(spec), None, None)
        return _stay(args, api, api.create_job(spec))
    # Without a limit in a dry run: it lists the largest files anyway.
    folder = _read_folder(workspace, math.inf if args.dry_run else args.largeWorkspace)
    with _archive(workspace, folder) as archive:
        if args.dry_run:
            known = api.has_workspace(archive.sha256)
            plan = api.resolve_job({**spec, "workspaceSha256": archive.sha256} if known else spec)
            return _show_plan(args, plan, _upload_plan(archive, folder, known=known), folder)
        return _stay(args, api, _submit(api, spec, archive))


def clone(args: argparse.Namespace) -> int:
    """Submit an existing job again."""
    from gradient_cli.api.client import connect

    api = connect(args)
    return _stay(args, api, api.clone_job(chosen_job(args.id, api.url), pin_image=args.pinImage))


def _read_folder(path: str, large: float) -> Folder | None:
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise UsageError(
                f"workspace: {path} is not there",
                hint="Give a folder, an archive (.zip, .tar.gz), a git URL such as https://host/repo.git#ref, or none.",
            )
        return None
    from gradient_cli.workspace import archive as packing

    folder = packing.Folder(path)
    for note in packing.notes(folder):
        terminal.note(f"workspace: {terminal.plain(note)}")
    if not folder.files:
        terminal.note(f"workspace: {path} holds no file to upload; --workspace names another folder")
    if folder.size > large * _MEGA:
        terminal.note(f"workspace: {path} is large ({size(folder.size)}); its largest files:")
        for entry in folder.largest():
            terminal.note(f"  {size(entry.size):>9}  {terminal.plain(entry.path)}")
        terminal.note("  a .gradientignore keeps files out; --largeWorkspace MB moves this limit")
    return folder


def _archive(path: str, folder: Folder | None) -> Archive:
    from gradient_cli.workspace import archive as packing

    if folder is None:
        return packing.existing(path)
    progress = Progress("packing", folder.size)
    try:
        return packing.pack(folder, progress.update)
    finally:
        progress.close()


def _submit(api: Api, spec: dict[str, Any], archive: Archive) -> dict[str, Any]:
    if api.has_workspace(archive.sha256):
        try:
            job = api.create_job({**spec, "workspaceSha256": archive.sha256})
        except RefusedError as error:
            if error.field != "workspaceSha256":
                raise
            # The archive was deleted between the check and the submission: upload it.
        else:
            terminal.note(f"workspace unchanged, not uploaded ({size(archive.size)})")
            return job
    api.resolve_job(spec)  # an invalid spec is refused now rather than after the upload
    progress = Progress("uploading", archive.size)
    try:
        job = api.create_job_with(spec, archive.path, progress.update)
    finally:
        progress.close()
    terminal.note(f"workspace uploaded ({size(archive.size)})")
    return job


def _stay(args: argparse.Namespace, api: Api, job: dict[str, Any]) -> int:
    job_id = str(job["id"])
    _remember(api.url, job_id)
    if args.json:
        print_json(job)
        return OK
    if args.detach:
        print(job_id)
        terminal.note(
            f"{terminal.plain(job.get('url') or '')}\n"
            f"  follow it  gradient-cli jobs logs {job_id} --follow\n"
            f"  stop it    gradient-cli jobs stop {job_id}"
        )
        return OK
    from gradient_cli.follow import LogPrinter, attach

    terminal.note(f"job {terminal.style(job_id, 'bold', sys.stderr)}  {terminal.plain(job.get('url') or '')}")
    return attach(api, job_id, LogPrinter(raw=args.raw))


def _remember(url: str, job_id: str) -> None:
    from gradient_cli import config

    try:
        config.remember_job(this_folder(), url, job_id)
    except OSError as error:
        terminal.note(f"cannot remember this job as the folder's last: {error.strerror}: {config.config_dir()}")


def _upload_plan(archive: Archive, folder: Folder | None, *, known: bool) -> dict[str, Any]:
    return {
        "sha256": archive.sha256,
        "size": archive.size,
        "alreadyStored": known,
        "files": len(folder.files) if folder else None,
        "bytes": folder.size if folder else None,
        "largest": [{"path": entry.path, "size": entry.size} for entry in folder.largest()] if folder else [],
    }


def _show_plan(
    args: argparse.Namespace, plan: dict[str, Any], upload: dict[str, Any] | None, folder: Folder | None
) -> int:
    if args.json:
        print_json({**plan, "upload": upload})
        return OK
    shown = {
        name: _shown(value) for name, value in plan["job"].items() if name not in {"machineType", "workspaceSha256"}
    }
    shown["ports"] = ", ".join(port_words(port) for port in plan["job"].get("ports") or [])
    machine = plan.get("machineType")
    kind = machine if isinstance(machine, dict) else {}
    print_fields(
        {
            "machineType": " · ".join(part for part in (_shown(kind.get("name")), price(plan)) if part),
            **shown,
            "upload": _upload_words(upload),
        }
    )
    for entry in folder.largest() if folder else []:
        print(f"  {size(entry.size):>9}  {terminal.plain(entry.path)}")
    for note in plan.get("notes") or []:
        terminal.note(f"note: {terminal.plain(note)}")
    terminal.note("nothing was made; without --dry-run this job is submitted")
    return OK


def _upload_words(upload: dict[str, Any] | None) -> str:
    if upload is None:
        return "nothing"
    what = f"{size(upload['size'])} packed"
    if upload["files"] is not None:
        what = f"{count(upload['files'], 'file')}, {size(upload['bytes'])}, {what}"
    return f"nothing: the server has it already ({what})" if upload["alreadyStored"] else what


def _shown(value: object) -> str:
    if value is None or value in ([], {}):
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else ""
    return f"{value:g}" if isinstance(value, float) else str(value)
