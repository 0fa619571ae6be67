"""Parameters of the original clients: in the query, as JSON, or as JSON in the body of a GET.

Unknown names are ignored: those clients send all options of their command line. Numbers and booleans may be text,
`true` from one client and `True` from another.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.datastructures import QueryParams

from core.errors import SpecInvalid
from service.auth.authentication import Caller
from service.http.body_limit import allow_json
from service.http.errors import problem
from service.schemas.base import check_texts

MAX_PATTERNS, MAX_IDS = 100, 1000
"""File name patterns, and ids or tags, that one request may name; the original clients send fewer."""
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(?:\.0+)?\Z")


class Params:
    """The parameters of one request; an empty one counts as not given.

    `body`: the JSON object; takes precedence over the query.
    """

    def __init__(self, query: QueryParams, body: Mapping[str, Any]) -> None:
        self._query = query
        self._body = body

    def is_empty(self, name: str) -> bool:
        """Return whether the client sent a parameter with empty text."""
        return bool(self._value(name) == "")

    def text(self, name: str) -> str | None:
        value = self._value(name)
        if value is None or value == "":
            return None
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str | int | float):
            raise problem(("body", name), "must be text")
        return _check_unicode(str(value), name)

    def required(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise problem(("query", name), "required, but missing")
        return value

    def flag(self, name: str) -> bool:
        """Return a parameter as a bool; False if it is not given."""
        value = (self.text(name) or "false").casefold()
        if value not in _TRUE | _FALSE:
            raise problem(("query", name), "must be true or false")
        return value in _TRUE

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """Return a parameter as a whole number, clamped to its range."""
        value = self.text(name)
        if value is None:
            return default
        if not _NUMBER.match(value):
            raise problem(("query", name), "must be a whole number")
        return max(low, min(high, int(value.partition(".")[0])))

    def text_list(self, name: str) -> list[str]:
        """Return all values of a repeated parameter: as `name`, as `name[0]` and so on, or as a list."""
        return [_check_unicode(value, name) for value in self._iter_texts(name) if value]

    def object(self, name: str) -> dict[str, Any]:
        """Return a parameter that is an object, written as JSON in the query."""
        value = self._body.get(name)
        if isinstance(value, dict):
            return value
        text = self.text(name)
        return {} if text is None else parse_object(text.encode(), name)

    def _value(self, name: str) -> Any:  # noqa: ANN401 - any JSON value
        return self._body[name] if name in self._body else self._query.get(name)

    def _iter_texts(self, name: str) -> Iterator[str]:
        numbered = re.compile(rf"{re.escape(name)}(?:\[[0-9]*\])?\Z")
        yield from (value for key, value in self._query.multi_items() if numbered.match(key))
        given = self._body.get(name, [])
        for value in given if isinstance(given, list) else [given]:
            if not isinstance(value, str):
                raise problem(("body", name), "must be a list of strings")
            yield value


async def read_params(request: Request) -> Params:
    """Read the parameters of a request whose body was not read yet."""
    body = await request.body()
    return Params(request.query_params, parse_object(body, "body") if body.strip() else {})


async def _authenticated_params(request: Request, _caller: Caller) -> Params:
    # The key is checked before the body is read.
    allow_json(request)
    return await read_params(request)


OriginalParams = Annotated[Params, Depends(_authenticated_params)]  # the parameters of an authenticated request


def parse_object(text: bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object; empty text is an empty object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecInvalid(f"{name}: not valid JSON.", field=name) from error
    if value is not None and not isinstance(value, dict):
        raise SpecInvalid(f"{name}: must be a JSON object.", field=name)
    if b"\\u0000" in text:
        check_texts(value)
    return value or {}


def check_count(given: Sequence[str], limit: int, kind: str, field: str) -> None:
    """Refuse a request that names too many things."""
    if len(given) > limit:
        raise SpecInvalid(
            f"{field}: {len(given):,} {kind} exceed the limit of {limit:,} per request. Send several requests.",
            field=field,
        )


def openapi_params(*names: str, body: bool = False) -> dict[str, Any]:
    declaration: dict[str, Any] = {
        "parameters": [{"name": n, "in": "query", "required": False, "schema": {"type": "string"}} for n in names]
    }
    if body:
        declaration["requestBody"] = {
            "required": False,
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    return declaration


def _check_unicode(value: str, name: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise problem(("body", name), "contains half of a surrogate pair, which is not valid Unicode") from None
    return value
