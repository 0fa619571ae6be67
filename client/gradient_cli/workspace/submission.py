"""Submission of a job with its workspace, which is packed and uploaded only if the server lacks it."""

from __future__ import annotations

import os

from gradient_cli import terminal
from gradient_cli.errors import ServerError, UsageError
from gradient_cli.formatting import format_size
from gradient_cli.progress import Progress
from gradient_cli.workspace import archive as packing
from gradient_cli.workspace import pack_cache
from gradient_cli.workspace.archive import WorkspaceFolder

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gradient_cli.api.client import Api
    from gradient_cli.workspace.archive import Archive


def choose_machine_type(api: Api, spec: dict[str, Any], report: Callable[[str], None]) -> None:
    """Set the server's default machine type in a job that names none.

    Raises:
        UsageError: The server, of an earlier release, has no default.
    """
    if spec.get("machineType"):
        return
    spec["machineType"] = api.machine_types().get("default")
    if not spec["machineType"]:
        raise UsageError(
            "machineType: required", hint="Give --machineType NAME; `gradient-cli machine-types` lists them."
        )
    report(f"machine type: {spec['machineType']}, the server's default; --machineType NAME selects another")


def read_folder(path: str, include: list[str]) -> WorkspaceFolder | None:
    """List the files of a workspace; None if it is an archive.

    Raises:
        UsageError: There is no such folder or file.
        ClientError: A file of it cannot be read.
    """
    if os.path.isdir(path):
        return WorkspaceFolder(path, include)
    if not os.path.exists(path):
        raise UsageError(
            f"workspace: {path} does not exist",
            hint="Give a folder, an archive (.zip, .tar.gz), a git URL such as https://host/repo.git#ref, or none.",
        )
    return None


def find_packed(api: Api, folder: WorkspaceFolder | None) -> Archive | None:
    """Return the archive of an unchanged folder that was packed before, if the server still has it."""
    packed = pack_cache.find(folder) if folder else None
    return packed if packed and api.has_workspace(packed.sha256) else None


def create_archive(path: str, folder: WorkspaceFolder | None) -> Archive:
    """Pack a folder, or open the archive at this path, and return it to be closed after use."""
    if folder is None:
        return packing.open_archive(path)
    progress = Progress("packing", folder.size)
    try:
        archive = packing.create_archive(folder, progress.update)
    finally:
        progress.close()
    pack_cache.remember(folder, archive)
    return archive


def submit(
    api: Api,
    spec: dict[str, Any],
    path: str,
    folder: WorkspaceFolder | None,
    report: Callable[[str], None] = terminal.print_message,
    *,
    to: str = "/jobs",
    planned: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Submit a job, or a comparison, with a folder or an archive.

    Args:
        api: The server.
        spec: The fields of what is submitted.
        path: The folder or archive.
        folder: The folder's files; None: it is an archive.
        report: Called with a line about the upload.
        to: The endpoint.
        planned: A job to validate before the upload; None: `spec`.
    """
    packed = find_packed(api, folder)
    made = _submit_stored(api, spec, packed, report, to) if packed else None
    if made is not None:
        return made
    with create_archive(path, folder) as archive:
        if api.has_workspace(archive.sha256) and (made := _submit_stored(api, spec, archive, report, to)):
            return made
        # An invalid spec or too many files are refused now rather than after the upload.
        check_file_count(api.resolve_job(planned or spec), folder)
        progress = Progress("uploading", archive.size)
        try:
            made = api.create_with_archive(spec, archive.path, progress.update, to=to)
        finally:
            progress.close()
        report(f"workspace uploaded ({format_size(archive.size)})")
        return made


def check_file_count(plan: dict[str, Any], folder: WorkspaceFolder | None) -> None:
    """Refuse a folder with more files than the server accepts, by its answer to a dry run.

    Raises:
        UsageError: There are too many.
    """
    most = plan.get("maxWorkspaceFiles")
    if folder and most and len(folder.entries) > most:
        raise UsageError(
            f"workspace: {folder.root} has {len(folder.entries):,} files and folders, more than the {most:,} that the "
            "server accepts",
            hint="Exclude some with a .gradientignore, or put data sets in the project's storage.",
        )


def _submit_stored(
    api: Api, spec: dict[str, Any], archive: Archive, report: Callable[[str], None], to: str
) -> dict[str, Any] | None:
    """Submit with an archive that the server has; None if it was deleted meanwhile."""
    try:
        made = api.create({**spec, "workspaceSha256": archive.sha256}, to=to)
    except ServerError as error:
        if error.field != "workspaceSha256":
            raise
        return None
    report(f"workspace unchanged, not uploaded ({format_size(archive.size)})")
    return made
