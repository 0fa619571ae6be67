"""The folders with TensorBoard's event files of a selection of jobs."""

import re
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import ArtifactNotFound
from core.jobs import queries
from core.storage.artifacts.store import ArtifactStore
from core.storage.retention import OutputKind
from service.presenters.removed import check_not_removed

_EVENT_FILE = "tfevents"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 60


def find_runs(session: Session, store: ArtifactStore, job_ids: Iterable[str]) -> dict[str, Path]:
    """Return the folders of all attempts that stored event files, by the name of the run.

    Raises `ArtifactNotFound`: no attempt of these jobs has stored event files.
    """
    jobs = [queries.get(session, job_id) for job_id in dict.fromkeys(job_ids)]
    runs = {name: folder for job in jobs for name, folder in _runs_of(store, job).items()}
    if not runs:
        if len(jobs) == 1:
            check_not_removed(session, jobs[0], OutputKind.ARTIFACTS)
        yet = "yet " if any(job.finished_at is None for job in jobs) else ""
        who = "This job has no" if len(jobs) == 1 else "None of these jobs has"
        raise ArtifactNotFound(
            f"{who} event files for TensorBoard among its artifacts {yet}(files with `tfevents` in their names). "
            "Have the program write them below $GRADIENT_ARTIFACTS_DIR; those of a running job appear with the next "
            "copy of its artifacts."
        )
    return runs


def _runs_of(store: ArtifactStore, job: Job) -> dict[str, Path]:
    name = f"{_NOT_IN_A_NAME.sub('_', job.shown_name)[:_MAX_NAME]}-{job.id}"
    found = {
        number: folder
        for number in range(1, job.attempt + 1)
        if _has_event_files(store, job.id, number) and (folder := store.folder(job.id, number))
    }
    return {name if len(found) == 1 else f"{name}-attempt-{number}": folder for number, folder in found.items()}


def _has_event_files(store: ArtifactStore, job_id: str, attempt: int) -> bool:
    return any(_EVENT_FILE in file.path.rpartition("/")[2] for file in store.walk(job_id, attempt))
