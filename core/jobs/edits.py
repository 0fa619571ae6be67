"""Edits of a job at any time, also after its end: its name, tags and note."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import SpecInvalid
from core.jobs import lifecycle
from core.jobs.guarded_updates import add_event
from core.jobs.spec.job_spec import MAX_NAME
from core.jobs.spec.labels import check_label, check_note, check_tags
from core.security.actor import acting_key


def edit(
    session: Session,
    job_id: str,
    *,
    add: Sequence[str] = (),
    remove: Collection[str] = (),
    **values: Any,  # noqa: ANN401 - a text, or a list of tags
) -> Job:
    """Set `name`, `tags` and `note`, if given, then add and remove tags; of changes at the same time, none is lost."""
    job = lifecycle.lock_job(session, job_id)
    name, note = values.get("name", job.name), values.get("note", job.note)
    note = (note or "").replace("\r\n", "\n").strip() or None
    kept = [tag for tag in values.get("tags", job.spec.tags) if tag not in remove]
    tags = list(dict.fromkeys([*kept, *add]))
    check_tags(tags)
    check_note(note or "")
    if name != job.name:
        if job.array_id is not None:
            raise SpecInvalid("The jobs of an array or a sweep share its name. Use a note or a tag.", field="name")
        if name is not None:
            check_label(name, "name", MAX_NAME)
    before = {"renamed": job.name, "tagged": ", ".join(job.spec.tags), "annotated": job.note}
    after = {"renamed": name, "tagged": ", ".join(tags), "annotated": note}
    job.name, job.note, job.spec_json = name, note, {**job.spec_json, "name": name, "tags": tags}
    session.flush()
    for kind, text in after.items():
        if text != before[kind]:
            add_event(session, job, kind, detail=text or None, actor=acting_key())
    return job
