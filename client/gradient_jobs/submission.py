"""Submission of a job, or of a sweep, with its folder."""

from __future__ import annotations

import logging
from typing import Any

from gradient_cli.api.client import Api
from gradient_cli.api.submissions import JOBS
from gradient_cli.workspace import submission, workspace_path

LOG = logging.getLogger("gradient_jobs")


def submit(
    api: Api,
    job: dict[str, Any],
    workspace: str,
    include: list[str],
    *,
    to: str = JOBS,
    fields: dict[str, Any] | None = None,  # of what is created with this job
) -> dict[str, Any]:
    submission.choose_machine_type(api, job, LOG.info)
    spec = {**job, **(fields or {})}
    if workspace == "none" or workspace_path.is_url(workspace):
        return api.create({**spec, "workspace": workspace}, to=to)
    folder = submission.read_folder(workspace, include)
    return submission.submit(api, spec, workspace, folder, LOG.info, to=to, planned=job)
