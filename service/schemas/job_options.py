"""The options of a job in requests and responses, derived from the fields of `JobSpec`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from pydantic import BaseModel, Field, create_model

from core.jobs.spec.job_spec import JobSpec
from core.jobs.spec.params import Value
from service.schemas.base import RequestList, RequestTexts, RequestValues

_IN_REQUEST = {tuple[str, ...]: RequestList[str], dict[str, str]: RequestTexts, dict[str, Value]: RequestValues}
_NOT_REQUESTED = {"workspace_contents", "nodes"}
_IN_RESPONSE = {tuple[str, ...]: list[str]}


def _options(types: dict[Any, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the JSON type and the description of each option.

    `types`: JSON types by types of `JobSpec`; others are the same.
    """
    for name, hint in get_type_hints(JobSpec, include_extras=True).items():
        kind, text = get_args(hint)
        yield name, types.get(kind, kind), text


if TYPE_CHECKING:

    class RequestOptions(BaseModel):
        """The options that the service reads by name, for the type checker."""

        name: str | None
        workspace: str | None
        env_vars: dict[str, str] | None
        registry_username: str | None
        cpus: float | None
        memory_mb: int | None
        array_reuse: str | None

    class ViewOptions(BaseModel):
        """The options that the dashboard reads by name, for the type checker."""

        params: dict[str, Value]

else:
    RequestOptions = create_model(
        "RequestOptions",
        __doc__="The options of a submission; all are optional.",
        **{
            name: (kind | None, Field(None, description=text))
            for name, kind, text in _options(_IN_REQUEST)
            if name not in _NOT_REQUESTED
        },
    )
    ViewOptions = create_model(
        "ViewOptions",
        __doc__="The options that a job has.",
        **{name: (kind, Field(description=text)) for name, kind, text in _options(_IN_RESPONSE)},
    )
