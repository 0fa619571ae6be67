"""Names of the fields of a JSON object, checked before its values: an error for each of very many takes much memory."""

from functools import cache

from pydantic import ValidationError
from pydantic_core import SchemaValidator, core_schema


def find_unknown_field(text: bytes, fields: tuple[str, ...]) -> str | None:
    try:
        _validator(fields).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return str(first["loc"][0]) if first["type"] == "literal_error" else None
    return None


@cache
def _validator(fields: tuple[str, ...]) -> SchemaValidator:
    omitted = core_schema.with_default_schema(core_schema.none_schema(), on_error="omit")
    return SchemaValidator(core_schema.dict_schema(core_schema.literal_schema(list(fields)), omitted, fail_fast=True))
