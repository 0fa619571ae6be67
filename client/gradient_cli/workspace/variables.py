"""Environment variables and parameters of a job, as flags, project files and programs give them."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from gradient_cli.errors import UsageError
from gradient_cli.text import decode

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(
    r"""(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*
    (?:'(?P<literal>[^']*)' | "(?P<escaped>(?:[^"\\]|\\.)*)" | (?P<bare>[^\s'"#](?:.*?\S)??)?)
    (?:\s+\#.*|(?<==)\#.*)?""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}


def parse(given: object) -> dict[str, str]:
    """Return the variables of an option: a mapping, or a list of assignments and of JSON objects."""
    if given is None:
        return {}
    if isinstance(given, dict):
        return {name: _value(name, value) for name, value in given.items()}
    if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
        raise UsageError("envVars: must be a list of strings", hint='For example ["LR=0.1"].')
    variables: dict[str, str] = {}
    for item in given:
        variables.update(_from_json(item) if item.lstrip().startswith("{") else _assignment(item))
    return variables


def parse_filed(given: object, path: str | None) -> dict[str, str]:
    if path and isinstance(given, list):
        for item in given:
            if isinstance(item, str) and "=" not in item:
                raise UsageError(
                    f"{path}: envVars: {item!r} has no value, and a project file gets none of your environment",
                    hint=f"Write {item}=VALUE there, or pass --envVars {item}",
                )
    if given is None or isinstance(given, (dict, list)):
        return parse(given)
    raise UsageError(
        f"{f'{path}: ' if path else ''}envVars: must be a table",
        hint='Write [envVars] on a separate line, then A = "1".',
    )


def _from_json(text: str) -> dict[str, str]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"envVars: not JSON: {error}", hint="Or repeat NAME=VALUE for each variable.") from None
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
        raise UsageError(f"params: {wrong!r} is not an assignment", hint="Write NAME=VALUE, such as --param lr=0.01.")
    return dict(str(item).split("=", 1) for item in items)


def read_file(path: str) -> dict[str, str]:
    """Read the variables of a file.

    A line is `NAME=VALUE`, perhaps after `export`. A value may be in single quotes, as it is, or in double quotes, with
    backslash escapes; a `#` after white space begins a comment. Nothing is expanded.
    """
    try:
        with open(path, "rb") as file:
            lines = decode(file.read()).splitlines()
    except OSError as error:
        raise UsageError(f"env-file: cannot read {path}: {error.strerror}", hint="Check its path.") from None
    except UnicodeDecodeError:
        raise UsageError(f"env-file: {path} is not UTF-8 text", hint="Save it as UTF-8.") from None
    variables: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(text)
        if not match:
            raise UsageError(
                f"env-file: {path}, line {number}: not an assignment",
                hint="Write NAME=VALUE; put values that contain quotes or # into quotes.",
            )
        variables[match["name"]] = _plain_value(match)
    return variables


def _plain_value(match: re.Match[str]) -> str:
    if match["escaped"] is not None:
        return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), match["escaped"])
    return match["literal"] or match["bare"] or ""
