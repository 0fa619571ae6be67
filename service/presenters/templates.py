from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.models.jobs import Project
from core.db.models.schedules import Schedule
from core.db.models.sweeps import Sweep
from core.security import api_keys
from service.app_state import AppState
from service.presenters.jobs import option_fields, port_views


def template_fields(
    session: Session, app_state: AppState, found: Sequence[Schedule | Sweep]
) -> dict[str, dict[str, Any]]:
    """Return, by its id, what the public forms of a schedule and of a sweep have alike."""
    ids = {one.project_id for one in found}
    projects = dict(session.execute(select(Project.id, Project.name).where(Project.id.in_(ids))).all())
    owners = api_keys.names(session, {one.submitted_by for one in found})
    return {
        one.id: option_fields(one.spec)
        | {
            "name": one.spec.name or f"{type(one).__name__.lower()} {one.seq}",
            "ports": port_views(one.spec),
            "project": projects[one.project_id],
            "owner": owners.get(one.submitted_by),
            "owner_key": one.submitted_by,
            "url": f"{app_state.settings.public_url}/ui/{one.__tablename__}/{one.id}",
        }
        for one in found
    }
