"""Submission of a job with its workspace, of which only what the server lacks is packed and uploaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.errors import ServerError, UsageError
from gradient_cli.formatting import format_count, format_size
from gradient_cli.workspace.packing import git
from gradient_cli.workspace.packing.archive import Archive, WorkspaceFolder, open_archive
from gradient_cli.workspace.packing.manifest import FolderManifest
from gradient_cli.workspace.packing.pack import create_pack
from gradient_cli.workspace.transfer.progress import Progress


def choose_machine_type(api: Api, spec: dict[str, Any], report: Callable[[str], None]) -> None:
    """Set the server's default machine type in a job that names none."""
    if spec.get("machineType"):
        return
    spec["machineType"] = api.machine_types()["default"]
    report(f"machine type: {spec['machineType']}, the server's default; --machineType NAME selects another")


def read_folder(path: str, include: list[str]) -> WorkspaceFolder | None:
    if os.path.isdir(path):
        return WorkspaceFolder(path, include)
    if not os.path.exists(path):
        raise UsageError(
            f"workspace: {path} does not exist",
            hint="Give a folder, an archive (.zip, .tar.gz), a git URL such as https://host/repo.git#ref, or none.",
        )
    return None


def submit(
    api: Api,
    spec: dict[str, Any],
    path: str,
    folder: WorkspaceFolder | None,  # the folder's files; None: it is an archive
    report: Callable[[str], None] = terminal.print_message,  # called with a line about the upload
    *,
    to: str = "/jobs",  # the endpoint
    planned: dict[str, Any] | None = None,  # a job to validate before the upload; None: `spec`
) -> dict[str, Any]:
    report = partial(_report_path, report, path)
    if folder is not None:
        return _submit_files(api, spec, folder, report, to, planned)
    archive = open_archive(path)
    api.resolve_job(planned or spec)  # an invalid spec is refused now rather than after the upload
    progress = Progress("uploading", archive.size)
    try:
        made = api.create_with_archive(spec, archive.path, progress.update, to=to)
    finally:
        progress.close()
    report(f"workspace uploaded ({format_size(archive.size)})")
    return made


def _report_path(report: Callable[[str], None], path: str, text: str) -> None:
    report(f"{text}: {terminal.sanitize(os.path.abspath(path))}")


def plan_upload(api: Api, path: str, folder: WorkspaceFolder | None) -> Archive:
    """Return the digest of a folder's manifest or of an archive, with the bytes that would be uploaded."""
    if folder is None:
        return open_archive(path)
    manifest = _read_manifest(api, folder)
    missing = api.missing_contents(manifest.data, manifest.base)
    return Archive("", manifest.sha256, sum(manifest.contents[sha256].size for sha256 in missing), temporary=False)


def _submit_files(
    api: Api,
    spec: dict[str, Any],
    folder: WorkspaceFolder,
    report: Callable[[str], None],
    to: str,
    planned: dict[str, Any] | None,
) -> dict[str, Any]:
    spec = {**git.describe_commit(folder.root), **spec}
    manifest = _read_manifest(api, folder)
    stored = Archive("", manifest.sha256, folder.size, temporary=False)
    if manifest.base == manifest.sha256 and api.has_workspace(manifest.sha256):
        made = _submit_stored(api, spec, stored, report, to)
        if made is not None:
            return made
    missing = api.missing_contents(manifest.data, manifest.base)
    # An invalid spec or too many files are refused now rather than after the upload.
    check_file_count(api.resolve_job(planned or spec), folder)
    try:
        sent = _upload(api, manifest, missing, manifest.base)
    except ServerError as error:
        if error.field != "contents":
            raise
        sent = _upload(api, manifest, list(manifest.contents), None)  # the base was deleted meanwhile
    manifest.remember()
    made = api.create({**spec, "workspaceSha256": manifest.sha256}, to=to)
    some = f"{len(missing):,} of {format_count(len(manifest.contents), 'file')}, "
    report(f"workspace uploaded ({some if len(missing) < len(manifest.contents) else ''}{format_size(sent)})")
    return made


def _read_manifest(api: Api, folder: WorkspaceFolder) -> FolderManifest:
    progress = Progress("reading", folder.size)
    try:
        return FolderManifest(folder, api.url, progress.update)
    finally:
        progress.close()


def _upload(api: Api, manifest: FolderManifest, missing: list[str], base: str | None) -> int:
    """Upload a manifest with the missing contents, and return the bytes of their archive."""
    if not missing:
        api.store_workspace(manifest.sha256, manifest.data, base, None, lambda _sent: None)
        return 0
    contents = {sha256: manifest.contents[sha256] for sha256 in missing}
    packing_progress = Progress("packing", sum(entry.size for entry in contents.values()))
    try:
        archive = create_pack(manifest.root, contents, manifest.read, packing_progress.update)
    finally:
        packing_progress.close()
    with archive:
        progress = Progress("uploading", archive.size)
        try:
            api.store_workspace(manifest.sha256, manifest.data, base, archive.path, progress.update)
        finally:
            progress.close()
        return archive.size


def check_file_count(plan: dict[str, Any], folder: WorkspaceFolder | None) -> None:
    """Refuse a folder with more files than the server accepts, by its answer to a dry run."""
    most = plan.get("maxWorkspaceFiles")
    if folder and most and len(folder.entries) > most:
        raise UsageError(
            f"workspace: {folder.root} has {len(folder.entries):,} files and folders; the server accepts at most "
            f"{most:,}",
            hint="Exclude some with a .gradientignore, or put data sets in the project's storage.",
        )


def _submit_stored(
    api: Api, spec: dict[str, Any], archive: Archive, report: Callable[[str], None], to: str
) -> dict[str, Any] | None:
    """Submit with a workspace that the server has; None if it was deleted meanwhile."""
    try:
        made = api.create({**spec, "workspaceSha256": archive.sha256}, to=to)
    except ServerError as error:
        if error.field != "workspaceSha256":
            raise
        return None
    report(f"workspace unchanged, not uploaded ({format_size(archive.size)})")
    return made
