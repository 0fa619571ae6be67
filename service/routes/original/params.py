"""What the original clients send along: in the query, as JSON, or as JSON in the body of a GET.

Names that are not asked for are passed over: those clients send whatever lies on their command line. Numbers and
booleans come as such or as text, `true` from one client and `True` from another.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.datastructures import QueryParams

from core.errors import SpecInvalid
from service.auth import Caller
from service.body_limit import allow_json
from service.deps import Stores
from service.errors import problem

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(?:\.0+)?\Z")


class Params:
    """The parameters of one request; an empty one counts as not given.

    Args:
        query: Of the URL.
        body: Of the JSON; what stands in both is taken from here.
    """

    def __init__(self, query: QueryParams, body: Mapping[str, Any]) -> None:
        self._query = query
        self._body = body

    def text(self, name: str) -> str | None:
        """A parameter as text.

        Raises:
            RequestValidationError: It is a list or an object, or no Unicode.
        """
        value = self._body[name] if name in self._body else self._query.get(name)
        if value is None or value == "":
            return None
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str | int | float):
            raise problem(("body", name), "must be text")
        return _unicode(str(value), name)

    def required(self, name: str) -> str:
        """A parameter that must be there.

        Raises:
            RequestValidationError: It is not, or is no text.
        """
        value = self.text(name)
        if value is None:
            raise problem(("query", name), "required, but missing")
        return value

    def flag(self, name: str) -> bool:
        """Whether something is wished.

        Raises:
            RequestValidationError: It is neither true nor false.
        """
        value = (self.text(name) or "false").casefold()
        if value not in _TRUE | _FALSE:
            raise problem(("query", name), "must be true or false")
        return value in _TRUE

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number; one that is out of range is brought into it.

        Raises:
            RequestValidationError: It is none.
        """
        value = self.text(name)
        if value is None:
            return default
        if not _NUMBER.match(value):
            raise problem(("query", name), "must be a whole number")
        return max(low, min(high, int(value.partition(".")[0])))

    def every(self, name: str) -> list[str]:
        """All values of a parameter that may come several times: as `name`, as `name[0]` and so on, or as a list.

        Raises:
            RequestValidationError: One is no text.
        """
        return [_unicode(value, name) for value in self._every(name) if value]

    def object(self, name: str) -> dict[str, Any]:
        """A parameter that is an object, written as JSON in the query.

        Raises:
            SpecInvalid: It is none.
        """
        value = self._body.get(name)
        if isinstance(value, dict):
            return value
        text = self.text(name)
        return {} if text is None else parse_object(text.encode(), name)

    def _every(self, name: str) -> Iterator[str]:
        numbered = re.compile(rf"{re.escape(name)}(?:\[[0-9]*\])?\Z")
        yield from (value for key, value in self._query.multi_items() if numbered.match(key))
        given = self._body.get(name, [])
        for value in given if isinstance(given, list) else [given]:
            if not isinstance(value, str):
                raise problem(("body", name), "must be a list of texts")
            yield value


async def read_params(request: Request) -> Params:
    """The parameters of a request whose body was not read yet.

    Raises:
        SpecInvalid: The body is not a JSON object.
    """
    body = await request.body()
    return Params(request.query_params, parse_object(body, "body") if body.strip() else {})


async def _params(request: Request, stores: Stores, _caller: Caller) -> Params:
    # The key is checked before the body is read.
    allow_json(request, stores.settings.api)
    return await read_params(request)


Given = Annotated[Params, Depends(_params)]
"""The parameters of a request that carries a key."""


def parse_object(text: bytes, name: str) -> dict[str, Any]:
    """JSON that must be an object; nothing at all is an empty one.

    Raises:
        SpecInvalid: It is not.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecInvalid(f"{name}: not valid JSON.", field=name) from error
    if found is not None and not isinstance(found, dict):
        raise SpecInvalid(f"{name}: must be a JSON object.", field=name)
    return found or {}


def check_names(given: Sequence[str], limit: int, setting: str, field: str) -> None:
    """Refuse a request that names too many things.

    Raises:
        SpecInvalid: There are more than `limit` of them.
    """
    if len(given) > limit:
        raise SpecInvalid(
            f"{field}: {len(given):,} {setting} are more than the {limit:,} that one request may name "
            f"(GRADIENT_LIMITS__{setting.upper()}). Send them in several requests.",
            field=field,
        )


def takes(*names: str, body: bool = False) -> dict[str, Any]:
    """How parameters are declared in the OpenAPI document.

    Args:
        names: Of the parameters.
        body: Whether they may come as JSON too.
    """
    told: dict[str, Any] = {
        "parameters": [{"name": n, "in": "query", "required": False, "schema": {"type": "string"}} for n in names]
    }
    if body:
        told["requestBody"] = {"required": False, "content": {"application/json": {"schema": {"type": "object"}}}}
    return told


def _unicode(value: str, name: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise problem(("body", name), "holds half of a surrogate pair, which is not valid Unicode") from None
    return value
