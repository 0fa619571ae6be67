"""Schemas of changes: to the clone of a job, to a job's name, tags and note, and to several jobs at once."""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from core.errors import SpecInvalid
from core.jobs.spec.job_spec import JobSpec
from service.schemas.base import ErrorDetail, LimitedList, QueryModel, RequestList, RequestModel, View
from service.schemas.job_options import RequestOptions
from service.schemas.jobs import JobView, Ports

_KEPT = ("workspace", "workspace_sha256", "registry_username")


class CloneJob(RequestOptions, RequestModel):
    """Changes to the cloned job; options left out stay as they are."""

    machine_type: str | None = Field(None, max_length=200, description="name or alias from GET /machine-types")
    command: str | None = Field(None, description="command, run by the container's shell")
    ports: Ports = Field(None, description="ports to publish instead, as in a submission")

    def changed(self, spec: JobSpec, machine_type: str) -> JobSpec:
        """Return the specification of the clone; environment variables and parameters are added to those of the job.

        `machine_type`: the name of the clone's machine type; the request may have an alias.
        """
        given = self.model_dump(exclude_none=True)
        for name in _KEPT:
            if name in given:
                alias = type(self).model_fields[name].alias
                raise SpecInvalid(
                    "A clone takes this from the original job. Leave it out, or submit a new job.", field=alias
                )
        if "ports" in given:
            given["ports"] = (self.ports,) if isinstance(self.ports, str) else tuple(self.ports or ())
        if "tags" in given:
            given["tags"] = tuple(given["tags"])
        variables = {**spec.env_vars, **given.get("env_vars", {})}
        params = {**spec.params, **given.get("params", {})}
        return replace(spec, **given | {"machine_type": machine_type, "env_vars": variables, "params": params})


class CloneQuery(QueryModel):
    """Query parameters of a clone."""

    only_failed: bool = Field(default=False, description="for an array: only members that failed")
    pin_image: bool = Field(default=False, description="use the image digest of the original job")


class ChangeTags(RequestModel):
    """Tags to add to a job, and to remove from it."""

    add: RequestList[str] = Field([], description="tags to add; tags that the job already has are ignored")
    remove: RequestList[str] = Field([], description="tags to remove; tags that the job does not have are ignored")


class ChangeJob(ChangeTags):
    """Changes to a job; what is left out stays as it is."""

    name: str | None = Field(None, description="name; null: none of its own")
    tags: RequestList[str] = Field([], description="tags in place of those that it has, before `add` and `remove`")
    note: str | None = Field(None, description="text for people about the job, at most 2,000 characters; null: none")


class JobActions(ChangeTags):
    """An action on several jobs."""

    action: Literal["stop", "delete", "tag"]
    ids: LimitedList[str] = Field(min_length=1, max_length=200, description="ids of the jobs, or of whole arrays")
    now: bool = Field(default=False, description="stop them without their grace period")


class ActionResult(View):
    """The result of an action on one job."""

    id: str
    done: bool
    job: JobView | None = Field(None, description="the job after the action; null: deleted, or not done")
    error: ErrorDetail | None = Field(None, description="why the action was not done")


class ActionResults(View):
    """The results of an action, in the order of the ids."""

    results: list[ActionResult]
