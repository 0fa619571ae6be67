"""Transfers of files between this machine and a project's storage; what is the same on both sides is skipped."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from http.client import HTTPResponse
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.errors import ClientError, ServerError, UsageError
from gradient_cli.formatting import format_count, parse_time
from gradient_cli.workspace.packing.digest import sha256
from gradient_cli.workspace.transfer.progress import Progress
from gradient_cli.workspace.transfer.public_names import to_local_name, to_public_name

STORAGE = "/storage"
DATASETS = "datasets"  # of all projects: only listed by itself
_MAX_NAMED = 10


def remote_path(given: str) -> str:
    """Return a path in the storage as the server writes it; `/storage/x`, as jobs write it, is the same as `x`."""
    path = os.path.normpath(f"/{given}").lstrip("/")
    path = path.removeprefix("storage").lstrip("/") if f"{given}/".startswith(f"{STORAGE}/") else path
    return "" if path == "." else path


def list_entries(api: Api, project_id: str, path: str, *, recursive: bool) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    after = None
    while True:
        page = api.storage(project_id, path, recursive=recursive, after=after)
        entries += page["entries"]
        after = page.get("next")
        if not after:
            return entries


def list_with_sizes(api: Api, project_id: str, path: str, *, recursive: bool) -> list[dict[str, Any]]:
    """List entries, folders with the sum of what is in them; without it where the server needs many pages to tell."""
    page = api.storage(project_id, path, recursive=True)
    if page.get("next") and not recursive:
        return list_entries(api, project_id, path, recursive=False)
    entries = list_entries(api, project_id, path, recursive=True) if page.get("next") else page["entries"]
    sizes: dict[str, int] = {}
    for entry in entries:
        folder = entry["path"]
        while entry["kind"] == "file" and (folder := folder.rpartition("/")[0]):
            sizes[folder] = sizes.get(folder, 0) + entry["size"]
    return [
        {**entry, "size": sizes.get(entry["path"], 0)}
        if entry["kind"] == "folder" and entry["path"] != DATASETS
        else entry
        for entry in entries
        if recursive or path in {entry["path"], entry["path"].rpartition("/")[0]}
    ]


class UploadPlan:
    """The local files to store, by their remote paths."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        # local paths that are not uploaded, each with the reason, and permissions that are not kept
        self.left_out: list[str] = []

    @classmethod
    def of(cls, sources: Sequence[str], target: str | None) -> UploadPlan:
        """Plan the upload of files and folders.

        `target`: remote path: that of the only source, or the folder of several if it ends with a slash or there are
        several; None: the top folder.
        """
        plan = cls()
        into = target is None or target.endswith("/") or len(sources) > 1 or not remote_path(target)
        for source in sources:
            name = os.path.basename(os.path.realpath(source) if source in {".", ".."} else os.path.normpath(source))
            base = remote_path(target or "")
            target_path = "/".join(filter(None, (base, to_public_name(name)))) if into else base
            if os.path.isdir(source):
                plan._add_folder(source, target_path)
            elif os.path.exists(source):
                plan._add_file(source, target_path)
            else:
                raise ClientError(
                    f"{source!r} does not exist",
                    hint="Name files or folders on this machine; the destination comes last.",
                )
        return plan

    def leave_out_modes(self, paths: list[str]) -> None:
        """Add files whose permission to execute is another one in the storage."""
        if paths:
            some, more = ", ".join(paths[:_MAX_NAMED]), len(paths) - _MAX_NAMED
            self.left_out.append(f"permission to execute: {some}{f' and {more} more' if more > 0 else ''}")

    def _add_folder(self, folder: str, target: str) -> None:
        for path, folders, names in os.walk(folder, onerror=_refuse_unreadable):
            relative = os.path.relpath(path, folder)
            above = [target] if relative == "." else [target, *map(to_public_name, relative.split("/"))]
            folders.sort()
            if not (folders or names):
                self.left_out.append(f"{path}: an empty folder")
            self.left_out += [
                f"{os.path.join(path, name)}: a link to a folder"
                for name in folders
                if os.path.islink(os.path.join(path, name))
            ]
            for name in sorted(names):
                self._add_file(os.path.join(path, name), "/".join([*above, to_public_name(name)]))

    def _add_file(self, path: str, target: str) -> None:
        if os.path.isfile(path):
            self.files[target] = path
        else:
            self.left_out.append(f"{path}: not a file, or a broken link")


def upload(api: Api, project_id: str, plan: UploadPlan) -> tuple[list[str], int]:
    """Store the files that are missing or differ; return their remote paths, and their bytes."""
    there = _find_stored(api, project_id, plan.files)
    due, total = {}, 0
    other_modes: list[str] = []
    for target, path in plan.files.items():
        status = os.stat(path)
        if target not in there or not _is_same(path, status, there[target]):
            due[target] = path
            total += status.st_size
        elif _is_executable(status) != there[target].get("executable", False):
            other_modes.append(path)
    progress, done = Progress(f"uploading {format_count(len(due), 'file')}", total), 0
    try:
        for target, path in due.items():
            before = done

            def sent(size: int, before: int = before) -> None:
                progress.update(before + size)

            status, stored = _store(api, project_id, target, path, sent)
            done += status.st_size
            if _is_executable(status) != stored.get("executable", False):
                other_modes.append(path)
    finally:
        progress.close()
    plan.leave_out_modes(other_modes)
    return list(due), done


def _store(
    api: Api, project_id: str, target: str, path: str, sent: Callable[[int], None]
) -> tuple[os.stat_result, dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            facts = {"sha256": sha256(file), "modified": modified(status), "executable": _is_executable(status)}
            stored = api.store_file(project_id, target, file, sent, size=status.st_size, facts=facts)
    except OSError as error:
        raise _unreadable(path, error) from None
    return status, stored


def _is_executable(status: os.stat_result) -> bool:
    return bool(status.st_mode & stat.S_IXUSR)


def _is_same(path: str, status: os.stat_result, stored: dict[str, Any]) -> bool:
    """Return whether a local file is the stored one: by content if the server knows its digest, else by time."""
    if status.st_size != stored["size"]:
        return False
    if not stored.get("sha256"):
        return modified(status) == str(stored["modified"])
    try:
        with open(path, "rb") as file:
            return sha256(file) == str(stored["sha256"])
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError) -> ClientError:
    return ClientError(
        f"cannot read {terminal.sanitize(path)}: {error.strerror}", hint="Repair it, then repeat the transfer."
    )


def _find_stored(api: Api, project_id: str, files: dict[str, str]) -> dict[str, dict[str, Any]]:
    top = os.path.commonpath([os.path.dirname(f"/{target}") for target in files]).lstrip("/") if files else ""
    try:
        entries = list_entries(api, project_id, top, recursive=any(os.path.dirname(target) != top for target in files))
    except ServerError as error:
        if error.status != 404:  # noqa: PLR2004  not found: nothing is stored there yet
            raise
        return {}
    return {entry["path"]: entry for entry in entries}


def modified(status: os.stat_result) -> str:
    """Return the time of a file's last change as the server writes it."""
    moment = datetime.fromtimestamp(status.st_mtime_ns // 1_000_000 / 1000, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def set_time(path: str, modified: str) -> None:
    """Set the time of a file or folder to one that the server writes."""
    ms = round(parse_time(modified).timestamp() * 1000)
    os.utime(path, ns=(ms * 1_000_000, ms * 1_000_000))


def local_target(files: Sequence[dict[str, Any]], remote: str, local: str | None) -> tuple[str, list[str]]:
    """Return the folder to download into, and the path of each file below it, of public names.

    Args:
        files: The stored files at `remote` or below it.
        local: The file or folder to write; None: one of the same name in the current folder.
    """
    name = to_local_name(os.path.basename(remote))
    if [file["path"] for file in files] == [remote]:
        into = local is None or local.endswith("/") or os.path.isdir(local)
        target = os.path.join(local or "", name) if into else str(local)
        return os.path.dirname(target) or ".", [to_public_name(os.path.basename(target))]
    return local or name or "storage", [file["path"][len(remote) :].lstrip("/") for file in files]


class StoredFiles:
    ELSEWHERE = "another LOCAL"

    def __init__(self, api: Api, project_id: str) -> None:
        self.api = api
        self._project_id = project_id

    def open(self, path: str, offset: int, etag: str) -> HTTPResponse:
        return self.api.stored_file(self._project_id, path, offset=offset, etag=etag)

    def etag(self, file: dict[str, Any]) -> str | None:
        return str(file["etag"])

    def is_same(self, path: str, file: dict[str, Any]) -> bool:
        try:
            status = os.lstat(path)
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and _is_same(path, status, file)

    def finish(self, path: str, file: dict[str, Any]) -> None:
        if file.get("executable"):
            mode = os.stat(path).st_mode
            os.chmod(path, mode | (mode & 0o444) >> 2)  # for those who may read it
        set_time(path, file["modified"])


def _refuse_unreadable(error: OSError) -> None:
    raise UsageError(f"cannot read {error.filename}: {error.strerror}", hint="Repair its permissions.")
