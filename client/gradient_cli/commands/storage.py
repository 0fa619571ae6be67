from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect
from gradient_cli.commands.projects import find_project
from gradient_cli.errors import FAILED, OK, UsageError
from gradient_cli.formatting import format_count, format_past, format_size, print_json, print_result, print_table
from gradient_cli.options import add_common, add_option, add_positional
from gradient_cli.workspace import project_file
from gradient_cli.workspace.transfer.download import DownloadFolder
from gradient_cli.workspace.transfer.storage_transfer import (
    DATASETS,
    STORAGE,
    StoredFiles,
    UploadPlan,
    list_entries,
    list_with_sizes,
    local_target,
    remote_path,
    upload,
)

_DEFAULT_PROJECT = "default"
_PATH_HELP = "path in the storage: data/train.npz, or /storage/data/train.npz as in jobs"


def add_ls(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "path", nargs="?", metavar="PATH", help=f"{_PATH_HELP} (default: all of it)")
    parser.add_argument("-r", "--recursive", action="store_true", help="also list the contents of folders")
    _add_common(parser, ls)


def add_put(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "paths", needed=True, nargs="*", metavar="LOCAL", help="files and folders to upload")
    parser.usage = f"{parser.usage} [DEST]"
    add_option(parser, "--to", metavar="DEST", help="destination; all other arguments are files to upload")
    parser.epilog = (
        "The last of several arguments is the destination DEST if it starts with /storage, ends with a slash, or does\n"
        "not exist on this machine; for a folder that exists on this machine, use --to. A single LOCAL is stored as\n"
        "DEST, or inside it if DEST ends with a slash; several are stored in the folder DEST. Without DEST, each is\n"
        "stored under its own name."
    )
    _add_common(parser, put)


def add_get(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "path", needed=True, metavar="REMOTE", help=_PATH_HELP)
    add_positional(parser, "to", nargs="?", metavar="LOCAL", help="file or folder to write (default: the same name)")
    parser.add_argument("--force", action="store_true", help="overwrite files that have other contents")
    _add_common(parser, get)


def add_rm(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "path", needed=True, metavar="PATH", help=_PATH_HELP)
    parser.add_argument("-r", "--recursive", action="store_true", help="delete a folder with its contents")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask; needed without a terminal")
    _add_common(parser, rm)


def _add_common(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    text = "name of the project (default: the project file's project, otherwise default)"
    add_option(parser, "--project", "-p", metavar="NAME", help=text)
    add_option(parser, "--projectId", metavar="ID", help="id of the project, instead of --project")
    add_common(parser, run)


def ls(args: argparse.Namespace) -> int:
    api = connect(args)
    path = remote_path(args.path or "")
    entries = list_with_sizes(api, _project_id(api, args), path, recursive=args.recursive)
    if args.json:
        print_json({"entries": entries})
    elif not entries:
        empty = (
            "this folder is empty" if path else "the storage is empty; `gradient-cli storage put FILE` uploads a file"
        )
        terminal.print_message(empty)
    else:
        ends = {"folder": "/", "other": " (not a file)"}
        rows = [
            [
                entry["path"] + ends.get(entry["kind"], ""),
                "" if entry["size"] is None else format_size(entry["size"]),
                format_past(entry["modified"]),
            ]
            for entry in entries
        ]
        print_table(("PATH", "SIZE", "CHANGED"), rows)
        folders = [entry for entry in entries if entry["kind"] == "folder" and entry["path"] != DATASETS]
        if any(entry["size"] is None for entry in folders):
            terminal.print_message(
                "sizes of folders are not shown, because they contain many files; --recursive adds them up"
            )
    return OK


def put(args: argparse.Namespace) -> int:
    if not args.paths:
        raise UsageError("LOCAL: required", hint="For example: gradient-cli storage put data/ /storage/data")
    *others, last = args.paths
    is_target = f"{last}/".startswith(f"{STORAGE}/") or last.endswith("/") or not os.path.exists(last)
    if args.to is not None:
        sources, target = args.paths, args.to
    elif others and os.path.isdir(last) and not is_target:
        raise UsageError(
            f"{last!r} is a folder on this machine: upload it, or is it the destination?",
            hint=f"Destination: --to {shlex.quote(last)}. To upload it with the others: --to /storage.",
        )
    else:
        sources, target = (others, last) if others and is_target else (args.paths, None)
    plan = UploadPlan.of(sources, target)
    api = connect(args)
    stored, size = upload(api, _project_id(api, args, create=True), plan)
    unchanged = len(plan.files) - len(stored)
    if args.json:
        return print_json({"files": stored, "bytes": size, "unchanged": unchanged, "leftOut": plan.left_out})
    for line in plan.left_out:
        terminal.print_message(f"left out: {terminal.sanitize(line)}")
    folders = {target if len(plan.files) == 1 else os.path.dirname(target) for target in plan.files}
    top = os.path.commonpath(folders) if folders else remote_path(target or "")
    have = f"; {unchanged} unchanged" if unchanged else ""
    where = terminal.sanitize(f"{STORAGE}/{top}".rstrip("/"))
    terminal.print_message(f"{format_count(len(stored), 'file')} ({format_size(size)}) to {where}{have}")
    return OK


def get(args: argparse.Namespace) -> int:
    api = connect(args)
    project_id, path = _project_id(api, args), remote_path(args.path)
    entries = list_entries(api, project_id, path, recursive=True)
    files = [entry for entry in entries if entry["kind"] == "file"]
    root, names = local_target(files, path, args.to)
    target = DownloadFolder(root, StoredFiles(api, project_id))
    if not args.force:
        target.refuse_overwriting([{**file, "path": name} for file, name in zip(files, names)])
    got = [file for file, name in zip(files, names) if target.fetch(file, name)]
    below = [entry for entry in entries if entry["kind"] == "folder" and entry["path"] != path]
    target.make_folders([{**folder, "path": folder["path"][len(path) :].lstrip("/")} for folder in below])
    code = FAILED if target.left_out else OK
    unchanged = len(files) - len(got) - sum(file["path"] in target.left_out for file in files)
    target.left_out |= {entry["path"]: "not a file" for entry in entries if entry["kind"] == "other"}
    if args.json:
        paths = [file["path"] for file in got]
        print_json({"to": root, "files": paths, "unchanged": unchanged, "leftOut": list(target.left_out)})
        return code
    target.print_left_out()
    have = f"; {unchanged} already downloaded" if unchanged else ""
    size = format_size(sum(file["size"] for file in got))
    where = os.path.normpath(target.local_path(names[0])) if [file["path"] for file in files] == [path] else root
    terminal.print_message(f"{format_count(len(got), 'file')} ({size}) to {terminal.sanitize(where)}{have}")
    return code


def rm(args: argparse.Namespace) -> int:
    path = remote_path(args.path)
    if not path:
        raise UsageError("path: required", hint="Name a file or a folder in the storage; `storage ls` lists them.")
    api = connect(args)
    project_id = _project_id(api, args)
    if not args.yes:
        entries = list_entries(api, project_id, path, recursive=True)
        files = [entry for entry in entries if entry["kind"] == "file"]
        size = format_size(sum(entry["size"] for entry in files))
        terminal.confirm_deletion(f"{STORAGE}/{path} ({format_count(len(files), 'file')}, {size})")
    api.delete_stored(project_id, path, recursive=args.recursive)
    return print_result(args, {"path": path, "deleted": True}, f"deleted {STORAGE}/{terminal.sanitize(path)}")


def _project_id(api: Api, args: argparse.Namespace, *, create: bool = False) -> str:
    """Return the id of the project: that of the options, else of the project file, else the default one."""
    if args.project and args.projectId:
        raise UsageError("project: given as both --project and --projectId", hint="Give one of them.")
    if args.projectId:
        return str(find_project(api, args.projectId)["id"])
    path = project_file.find()
    filed = project_file.read(path) if path and not args.project else {}
    if filed.get("projectId"):
        return str(find_project(api, filed["projectId"])["id"])
    name = args.project or filed.get("project") or _DEFAULT_PROJECT
    return str((api.create_project(name) if create else find_project(api, name))["id"])
