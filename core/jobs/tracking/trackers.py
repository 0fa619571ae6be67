"""Weights & Biases and MLflow, where a job's variables name them: ids that last over attempts, and links in its log."""

import json
import re
from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.database import Database
from core.db.models.jobs import Event, Job
from core.jobs.tracking import job_notes

_LINK = re.compile(rb"View run\b[^\r\n]{0,300}?(https?://[^\s\x1b\"'<>]{1,400}/runs/[\w.-]{1,128})")
_LONGEST, _MOST_LINKS, _MOST_CLONES = 1000, 3, 100


def variables(database: Database, job: Job) -> dict[str, str]:
    """Build the variables that those of the job replace: a run in W&B continues over attempts, and clones name its job.

    A run of MLflow has to exist on its server before a program can continue it, so its runs only get tags.
    """
    if not job_notes.uses_tracker(job.spec):
        return {}
    root, parent = job.id, job.parent_id
    with database.read() as session:
        for _ in range(_MOST_CLONES):
            if parent is not None:
                root, parent = parent, session.scalar(select(Job.parent_id).where(Job.id == parent))
    wandb, mlflow = (job_notes.uses_tracker(job.spec, (prefix,)) for prefix in (job_notes.WANDB, job_notes.MLFLOW))
    tags = {"WANDB_TAGS": root} if root != job.id else {}
    return {
        **({"WANDB_RUN_ID": job.id, "WANDB_RESUME": "allow", **tags} if wandb else {}),
        **({"MLFLOW_RUN_CONTEXT": json.dumps({"gradient.job": job.id, "gradient.root": root})} if mlflow else {}),
    }


class LinkFinder:
    """Finds links to runs in output as it is shipped."""

    def __init__(self) -> None:
        self._tail = b""
        self.links: dict[str, None] = {}

    def feed(self, _offset: int, data: bytes) -> None:
        text = self._tail + data
        for match in _LINK.finditer(text) if b"View run" in text else ():
            if len(self.links) < _MOST_LINKS and match.end() < len(text):  # else it may go on
                self.links[match[1].decode(errors="replace")] = None
        self._tail = text[-_LONGEST:]


def add_links(session: Session, job: Job, links: Collection[str]) -> None:
    """Record links as notes on the job's attempt; a repeat does nothing."""
    of_attempt = Event.job_id == job.id, Event.attempt == job.attempt, Event.kind == job_notes.EVENT
    recorded = set(session.scalars(select(Event.detail).where(*of_attempt)))
    for text in (f"Its run: {link}" for link in links):
        if text not in recorded:
            job_notes.add(session, job, text)
