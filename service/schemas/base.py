"""The base of all responses, and the responses of the health checks."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class View(BaseModel):
    """Base of responses."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Health(View):
    """The status and version of the service."""

    status: str
    version: str


class Readiness(View):
    """Readiness to serve requests, check by check."""

    status: str
    checks: dict[str, str]
