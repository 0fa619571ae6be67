import os
from collections.abc import Callable
from pathlib import Path

from core.errors import ArtifactNotFound
from core.jobs import queries
from core.jobs.spec.dependencies import JobInput, parse_inputs
from core.jobs.spec.job_spec import JobSpec
from core.storage.artifacts.store import ArtifactStore
from core.system.untrusted_folders import open_beneath, opened_beneath, opened_folder
from worker.attempt.scratch import copy_artifacts
from worker.backends.base import LaunchError
from worker.context import WorkerContext


def place_inputs(
    context: WorkerContext,
    spec: JobSpec,
    check: Callable[[], None],
    report_progress: Callable[[str, str], None],
    workspace: Path,
) -> None:
    """Copy the artifacts that a job asks for into its workspace; see `place_input`."""
    for job_input in parse_inputs(spec.inputs):
        report_progress("provisioning", f"copying the artifacts of job {job_input.job_id}")
        with context.database.read() as session:
            row = queries.get_row(session, job_input.job_id)
        place_input(context.artifacts, job_input, 0 if row is None else row.attempt, workspace, check)


def place_input(
    store: ArtifactStore,
    wanted: JobInput,
    attempt: int,  # the number of the job's last attempt
    workspace: Path,
    check: Callable[[], None],  # raises if the start has to be aborted; called before each file
) -> None:
    """Copy the artifacts of a job's last attempt that left any into a new folder of a workspace."""
    folder = workspace / wanted.folder
    inside, parent = workspace.resolve(), folder.parent.resolve()
    # Of the workspace, where a link may lead anywhere.
    if not parent.is_relative_to(inside):
        raise LaunchError("input_missing", f"{wanted.folder} leads out of the workspace")
    try:
        with (
            opened_folder(inside) as top,
            opened_beneath(top, parent.relative_to(inside).parts, create=True, mode=0o755) as above,
        ):
            os.mkdir(folder.name, 0o755, dir_fd=above)
            opened = open_beneath(above, [folder.name])
    except (FileExistsError, NotADirectoryError):
        raise LaunchError(
            "input_missing", f"the workspace already has {wanted.folder}; choose another folder for --input"
        ) from None
    try:
        copy_artifacts(store, wanted.job_id, attempt, opened, check=check)
        if not os.listdir(opened):  # noqa: PTH208 - a descriptor
            raise LaunchError("input_missing", f"job {wanted.job_id} has no artifacts")
    except ArtifactNotFound:
        raise LaunchError("input_missing", f"the artifacts of job {wanted.job_id} have been deleted") from None
    finally:
        os.close(opened)
