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
    session: Session, app_state: AppState, templates: Sequence[Schedule | Sweep]
) -> dict[str, dict[str, Any]]:
    """Return, by its id, what the public forms of a schedule and of a sweep have alike."""
    ids = {template.project_id for template in templates}
    projects = dict(session.execute(select(Project.id, Project.name).where(Project.id.in_(ids))).all())
    owners = api_keys.names(session, {template.submitted_by for template in templates})
    return {
        template.id: option_fields(template.spec)
        | {
            "name": template.spec.name or f"{type(template).__name__.lower()} {template.seq}",
            "ports": port_views(template.spec),
            "project": projects[template.project_id],
            "owner": owners.get(template.submitted_by),
            "owner_key": template.submitted_by,
            "url": f"{app_state.settings.public_url}/ui/{template.__tablename__}/{template.id}",
        }
        for template in templates
    }
