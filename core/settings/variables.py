"""GRADIENT_* variables, read by pydantic-settings, and a line for each that is wrong."""

import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from core.errors import SettingsInvalid

PREFIX = "GRADIENT_"
_OF_JOBS = "GRADIENT_STATSD_PORT"  # no mistake: jobs have it
_PRIVATE = frozenset({"database", "oidc", "queue", "secrets"})  # groups with passwords
_SHOWN = 100
_PROBLEMS = {
    "dict_type": "It is not a JSON object",
    "extra_forbidden": "There is no such setting; .env.example lists them all",
    "list_type": "It is not a JSON list",
    "model_type": "It is not a JSON object",
    "string_pattern_mismatch": (
        "It does not have the form that this setting requires"
    ),  # else a reader sees a regular expression
}


class Variables(EnvSettingsSource):
    """Leaves a value that is not JSON to the model, which refuses it with all others; so it does with one misspelt."""

    def _load_env_vars(self) -> Mapping[str, str | None]:
        unknown = find_unknown(self.settings_cls)
        return {name: text for name, text in super()._load_env_vars().items() if name.upper() not in unknown}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ANN401 - any type
        try:
            return super().decode_complex_value(field_name, field, value)
        except (ValueError, RecursionError):
            return value


def names(model: type[BaseModel], prefix: str = PREFIX) -> Iterator[str]:
    """Yield the names of all variables that a model of settings has."""
    for name, field in model.model_fields.items():
        variable = f"{prefix}{name.upper()}"
        yield variable
        if (group := _group(field)) is not None:
            yield from names(group, f"{variable}__")


def find_unknown(model: type[BaseModel]) -> dict[str, str]:
    """Return what is wrong with variables that are meant for the service, and that it does not have."""
    by_letters = {_letters(name): name for name in names(model)}
    problems = {}
    for name in (variable.upper() for variable, text in os.environ.items() if text):
        similar = by_letters.get(_letters(name))
        if not name.startswith(PREFIX) or name in {similar, _OF_JOBS} or not ("__" in name or similar):
            continue
        similar = similar or next(iter(get_close_matches(name, by_letters.values(), n=1)), None)
        hint = f" Did you mean {similar}?" if similar else ""
        problems[name] = f"There is no such setting.{hint} .env.example lists them all."
    return problems


def refusal(model: type[BaseModel], error: ValidationError | None) -> SettingsInvalid | None:
    """Return the error about variables that are unknown, and about values that the model refuses."""
    problems = find_unknown(model)
    environ = {variable.upper(): text for variable, text in os.environ.items() if text}
    for problem in error.errors(include_url=False, include_input=False) if error else ():
        path, field, rest = _locate(model, problem["loc"])
        # The variable may be that of a group, as a JSON object.
        depth = next((end for end in range(len(path), 0, -1) if _name(path[:end]) in environ), len(path))
        variable = _name(path[:depth])
        message = _PROBLEMS.get(problem["type"], problem["msg"].removeprefix("Value error, ")).rstrip(".")
        within = "".join(f"{part}: " for part in (*path[depth:], *rest))
        text = environ.get(variable, "")
        hidden = not text or path[0] in _PRIVATE or "@" in text or "?" in text
        value = "" if hidden else f" It is {_printable(repr(text))}."
        meaning = f" See .env.example: {field.description}." if field is not None and field.description else ""
        problems.setdefault(variable, f"{within}{message}.{value}{meaning}")  # it may have one of several types
    if not problems:
        return None
    lines = (f"{_printable(variable)}: {message}" for variable, message in problems.items())
    return SettingsInvalid("\n".join(lines), variables=tuple(problems))


def _group(field: FieldInfo) -> type[BaseModel] | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _letters(name: str) -> str:
    return re.sub("[^A-Z0-9]", "", name)


def _name(path: list[str]) -> str:
    return PREFIX + "__".join(path).upper()


def _locate(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[list[str], FieldInfo | None, list[str]]:
    """Return the path of a setting, the setting, and the items of its value that are wrong."""
    path: list[str] = []
    field, group = None, model
    for part in loc:
        path.append(str(part))
        field = group.model_fields.get(str(part))
        if field is None or (inner := _group(field)) is None:
            break
        group = inner
    return path, field, [f"item {part + 1}" for part in loc[len(path) :] if isinstance(part, int)]


def _printable(text: str) -> str:
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return text.encode("utf-8", "backslashreplace").decode()
