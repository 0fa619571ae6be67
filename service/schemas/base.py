"""Bases of requests and responses: JSON in camelCase, times in UTC with milliseconds and Z."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Self, TypeVar
from urllib.parse import unquote_to_bytes

from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic.alias_generators import to_camel

from core.db.models.metrics import NOT_FINITE
from core.errors import SpecInvalid
from core.formatting import iso_time
from core.jobs.spec.params import Value
from core.system.json_fields import find_unknown_field

Time = Annotated[datetime, PlainSerializer(iso_time, return_type=str)]


Number = Annotated[
    float,
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "enum": list(NOT_FINITE)}]}, mode="serialization"),
]
"""A number; of those that JSON lacks, the name as a string."""


class View(BaseModel):
    """Base of responses."""

    # From attributes: a field that is a view itself may be given the object that it is of.
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, from_attributes=True)

    @classmethod
    def of(cls, source: object, **others: Any) -> Self:  # noqa: ANN401 - values of the fields
        """Build one from the attributes of an object that are named as its fields, and from the others."""
        for name in cls.model_fields:
            if name not in others and hasattr(source, name):
                others[name] = getattr(source, name)
        return cls.model_validate(others)


class RequestModel(BaseModel):
    """Base of requests: unknown fields are refused, and text such as "5" is not taken as a number."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True)


T = TypeVar("T")
R = TypeVar("R", bound=BaseModel)

LARGE_BYTES = 64 * 1024
"""Bytes of the largest JSON that is parsed in the event loop, which meanwhile serves nobody else."""

MAX_LIST = 1000  # most elements of a list in a request, where the field sets no other limit

LimitedList = Annotated[list[T], Field(fail_fast=True)]
"""A list in a request whose field sets a limit. Only its first error is found: each takes memory and time."""

RequestList = Annotated[list[T], Field(fail_fast=True, max_length=MAX_LIST)]  # a list in a request

RequestTexts = Annotated[dict[str, str], Field(fail_fast=True)]  # texts by name in a request


def single_error_message(text: str) -> WrapValidator:
    """Return a validator that reports one message instead of one for each type of a union."""

    def validate(given: object, check: ValidatorFunctionWrapHandler) -> object:
        try:
            return check(given)
        except ValidationError:
            raise ValueError(text) from None

    return WrapValidator(validate)


RequestValues = Annotated[
    dict[str, Annotated[Value, single_error_message("must be a string, a number, true or false")]],
    Field(fail_fast=True),
]
"""Texts and numbers by name in a request."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_ERRORS = 100  # most errors of a request that are described: to describe one takes far longer than to find it


class QueryModel(BaseModel):
    """Base of query parameters: numbers are parsed from text, unknown names are refused."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")


def check_encoding(raw: bytes, what: str) -> None:
    """Refuse bytes behind %XX that are not UTF-8; they would be read as other characters."""
    try:
        unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise SpecInvalid(f"{what} is not UTF-8: encode it as UTF-8, then as %XX.") from None


def check_texts(value: object, *field: str) -> None:
    """Refuse NUL and lone surrogates in text, also in lists and objects: a database stores neither."""
    if isinstance(value, str):
        if "\0" in value or (not value.isascii() and _SURROGATE.search(value)):
            what = "NUL character" if "\0" in value else "half of a surrogate pair"
            name = ".".join(part[:80] for part in field)
            raise SpecInvalid(f"{name or 'The body'}: the value contains a {what}; remove it.", field=name or None)
    elif isinstance(value, Mapping):
        for name, inside in value.items():
            check_texts(name, *field)
            check_texts(inside, *field, str(name))
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for number, inside in enumerate(value):
            check_texts(inside, *field, str(number))


def parse_request(model: type[R], raw: bytes | dict[str, object]) -> R:
    """Validate a request, given as JSON text or as its fields."""
    if isinstance(raw, bytes) and len(raw) > LARGE_BYTES:
        _check_names(model, raw)
    try:
        parsed = model.model_validate_json(raw) if isinstance(raw, bytes) else model.model_validate(raw)
    except ValidationError as error:
        errors = _describe_errors(model, error)
    else:
        if not isinstance(raw, bytes) or b"\\u0000" in raw:
            check_texts(json.loads(raw) if isinstance(raw, bytes) else raw)
        return parsed
    # Outside the block: who logs this error must not format the other one, with all its errors.
    raise RequestValidationError(errors)


def _check_names(model: type[BaseModel], raw: bytes) -> None:
    names = _names(model)
    name = find_unknown_field(raw, tuple(names))
    if name is not None:
        error = {"type": "extra_forbidden", "loc": ("body", name), "msg": "Unknown.", "ctx": {"known": names}}
        raise RequestValidationError([error])


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _describe_errors(model: type[BaseModel], error: ValidationError) -> list[dict[str, object]]:
    if error.error_count() > _MAX_ERRORS:
        message = f"{error.error_count():,} names or values are invalid, too many to list"
        return [{"type": "value_error", "loc": ("body",), "msg": message, "input": None}]
    hidden = {field.alias or name for name, field in model.model_fields.items() if field.repr is False}
    names = _names(model)
    return [
        {"type": problem["type"], "loc": ("body", *problem["loc"]), "msg": problem["msg"]}
        # Hidden fields must not be echoed; the input of invalid JSON is the whole request.
        | {"input": None if hidden & {*problem["loc"]} or (hidden and not problem["loc"]) else problem["input"]}
        | ({"ctx": {"known": names}} if problem["type"] == "extra_forbidden" else {})
        for problem in error.errors(include_url=False, include_context=False)
    ]


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
