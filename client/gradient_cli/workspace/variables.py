"""Environment variables and parameters of a job, as flags, project files and programs give them."""

from __future__ import annotations

import os
import re

from gradient_cli.errors import UsageError

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    from typing import Any

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse(given: object) -> dict[str, str]:
    """Return the variables of an option: a mapping, or a list of assignments and of JSON objects."""
    if given is None:
        return {}
    if isinstance(given, dict):
        return {name: _value(name, value) for name, value in given.items()}
    if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
        raise UsageError("envVars: must be a list of strings", hint='For example ["LR=0.1"].')
    found: dict[str, str] = {}
    for item in given:
        found.update(_from_json(item) if item.lstrip().startswith("{") else _assignment(item))
    return found


def _from_json(text: str) -> dict[str, str]:
    import json

    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"envVars: not JSON: {error}", hint="Or write NAME=VALUE, once for each variable.") from None
    return {name: _value(name, item) for name, item in value.items()}


def _value(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise UsageError(f"envVars.{name}: the value must be text or a number", hint="Put quotes around it.")


def _assignment(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not _VARIABLE.fullmatch(name):
        raise UsageError(f"envVars: {name!r} is not a valid variable name", hint="Write NAME=VALUE.")
    if equals:
        return {name: value}
    if name not in os.environ:
        raise UsageError(
            f"envVars: {name} is not set in this environment",
            hint=f"Write {name}=VALUE, or export {name} before submitting.",
        )
    return {name: os.environ[name]}


def parse_params(given: object) -> dict[str, Any]:
    if given is None or isinstance(given, dict):
        return given or {}
    items = given if isinstance(given, list) else [given]
    wrong = next((item for item in items if not (isinstance(item, str) and item.partition("=")[1])), None)
    if wrong is not None:
        raise UsageError(f"params: {wrong!r} is no assignment", hint="Write NAME=VALUE, such as --param lr=0.01.")
    return dict(str(item).split("=", 1) for item in items)
