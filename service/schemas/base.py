"""Bases of requests and responses: JSON in camelCase, times in UTC with milliseconds and Z."""

from datetime import datetime
from typing import Annotated, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.alias_generators import to_camel

from core.formatting import iso_time

Time = Annotated[datetime, PlainSerializer(iso_time, return_type=str)]


class View(BaseModel):
    """Base of responses."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class RequestModel(BaseModel):
    """Base of requests: unknown fields are refused, and text such as "5" is not taken as a number."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True)


R = TypeVar("R", bound=RequestModel)


class QueryModel(BaseModel):
    """Base of query parameters: numbers are parsed from text, unknown names are refused."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")


def parse_request(model: type[R], raw: bytes | dict[str, object]) -> R:
    """Validate a request, given as JSON text or as its fields.

    Raises:
        RequestValidationError: The JSON does not fit the model; for an unknown field, the error lists the known names.
    """
    try:
        return model.model_validate_json(raw) if isinstance(raw, bytes) else model.model_validate(raw)
    except ValidationError as error:
        hidden = {field.alias or name for name, field in model.model_fields.items() if field.repr is False}
        known = [field.alias or name for name, field in model.model_fields.items()]
        found = [
            {"type": one["type"], "loc": ("body", *one["loc"]), "msg": one["msg"]}
            # Hidden fields must not be echoed; the input of invalid JSON is the whole request.
            | {"input": None if hidden & {*one["loc"]} or (hidden and not one["loc"]) else one["input"]}
            | ({"ctx": {"known": known}} if one["type"] == "extra_forbidden" else {})
            for one in error.errors(include_url=False, include_context=False)
        ]
        raise RequestValidationError(found) from error


def single_error_message(text: str) -> WrapValidator:
    """Return a validator that reports one message instead of one for each type of a union."""

    def validate(given: object, check: ValidatorFunctionWrapHandler) -> object:
        try:
            return check(given)
        except ValidationError:
            raise ValueError(text) from None

    return WrapValidator(validate)


class ErrorDetail(View):
    """The details of an error."""

    name: str = Field(description="stable name of the kind of error")
    status: int = Field(description="the HTTP status")
    message: str = Field(description="what is wrong and what to do about it")
    field: str | None = Field(None, description="name of the input that caused the error")


class ErrorView(View):
    """The response to a failed request."""

    error: ErrorDetail


class Health(View):
    """The status and version of the service."""

    status: str
    version: str


class Readiness(View):
    """Readiness to serve requests, check by check."""

    status: str
    checks: dict[str, str]
