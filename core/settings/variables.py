"""GRADIENT_* variables: the values that they give to a model of settings, and what is wrong with them, by variable."""

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from core.errors import SettingsInvalid

PREFIX = "GRADIENT_"
_OF_JOBS = "GRADIENT_STATSD_PORT"  # no mistake: jobs have it
_PRIVATE = frozenset({"database", "queue", "secrets"})  # groups with passwords
_NOT_WORD = re.compile("[^A-Z0-9]")
_SHOWN = 100

_Problems = dict[str, str]  # by variable


def read(model: type[BaseModel], environ: Mapping[str, str]) -> tuple[dict[str, Any], _Problems]:
    """Return what variables give, as a tree of groups, and what is wrong with those that give nothing."""
    tree: dict[str, Any] = {}
    problems: _Problems = {}
    for variable in sorted(environ, key=_depth):  # a group first: others change single values of it
        name, text = variable.upper(), environ[variable]
        if not text or not name.startswith(PREFIX):  # an empty GRADIENT_HOME would be the current folder
            continue
        path = name.removeprefix(PREFIX).lower().split("__")
        try:
            _insert(tree, path, _decode(_annotation(model, path), text))
        except ValueError as error:
            problems[variable] = _sentence(str(error), model, path, text)
        except KeyError:
            similar = _similar(model, name)
            if len(path) > 1 or (similar and _letters(similar) == _letters(name) and name != _OF_JOBS):
                hint = f" Do you mean {similar}?" if similar else ""
                problems[variable] = f"There is no such setting.{hint} .env.example lists them all."
    return tree, problems


def explain(error: ValidationError, model: type[BaseModel], environ: Mapping[str, str]) -> _Problems:
    """Return what is wrong with values that have been read, in the words of the model."""
    given = {variable.upper(): variable for variable in environ if environ[variable]}
    problems: _Problems = {}
    for one in error.errors(include_url=False, include_input=False):
        path, items = _split(model, one["loc"])
        # The variable may be that of a group, as a JSON object.
        ends = (end for end in range(len(path), 0, -1) if _name(path[:end]) in given)
        end = next(ends, len(path))
        variable = given.get(_name(path[:end]), _name(path))
        words = one["msg"].removeprefix("Value error, ")
        if one["type"] == "extra_forbidden":
            words = "There is no such setting; .env.example lists them all"
        if one["type"] == "string_pattern_mismatch":  # a reader would see a regular expression
            words = "It is not of the form that this setting has"
        within = "".join(f"{part}: " for part in (*path[end:], *items))
        if variable in problems:  # one of several types that it may have
            continue
        problems[variable] = _sentence(f"{within}{words}", model, path, environ.get(variable, ""))
    return problems


def merge(tree: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree with other values, of which each group given as a mapping changes only what it names."""
    merged = dict(tree)
    for name, value in values.items():
        known = merged.get(name)
        merged[name] = merge(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def refuse(problems: _Problems) -> SettingsInvalid:
    lines = [f"{_printable(variable)}: {words}" for variable, words in problems.items()]
    return SettingsInvalid("\n".join(lines), variables=tuple(problems))


def names(model: type[BaseModel], prefix: str = PREFIX) -> Iterator[str]:
    """Yield the names of all variables that a model of settings has."""
    for name, field in model.model_fields.items():
        variable = f"{prefix}{name.upper()}"
        yield variable
        group = _group(field.annotation)
        if group is not None:
            yield from names(group, f"{variable}__")


def _depth(variable: str) -> int:
    return variable.count("__")


def _name(path: list[str]) -> str:
    return PREFIX + "__".join(path).upper()


def _similar(model: type[BaseModel], name: str) -> str | None:
    known = list(names(model))
    same = (one for one in known if _letters(one) == _letters(name))
    return next(same, None) or next(iter(get_close_matches(name, known, n=1)), None)


def _letters(name: str) -> str:
    return _NOT_WORD.sub("", name)


def _annotation(model: type[BaseModel], path: list[str]) -> Any:  # noqa: ANN401 - any type
    """Return the type of what a path names. Raises `KeyError`: nothing has that name."""
    annotation: Any = model
    for part in path:
        annotation = _member(annotation, part)
    return annotation


def _member(annotation: Any, part: str) -> Any:  # noqa: ANN401 - any type
    group = _group(annotation)
    if group is not None:
        return group.model_fields[part].annotation
    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    raise KeyError(part)


def _insert(tree: dict[str, Any], path: list[str], value: object) -> None:
    for part in path[:-1]:
        if not isinstance(tree.setdefault(part, {}), dict):
            return  # what its group's variable has there is refused
        tree = tree[part]
    tree[path[-1]] = value


def _decode(annotation: Any, text: str) -> object:  # noqa: ANN401 - any type
    """Return a value as the model takes it: lists, mappings and groups are JSON."""
    types = list(_alternatives(annotation))
    is_object = _group(annotation) is not None or get_origin(annotation) is dict
    if not is_object and not any(get_origin(one) is list for one in types):
        return text
    try:
        value: object = json.loads(text)
    except RecursionError:
        raise ValueError("It is JSON of too many levels.") from None
    except ValueError as error:
        if not is_object and any(get_origin(one) is not list and one is not type(None) for one in types):
            return text  # such as a word in place of a list
        raise ValueError(f"It is not valid JSON: {error}.") from None
    if is_object and not isinstance(value, dict):
        raise ValueError("It is not a JSON object.")
    return value


def _group(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - any type
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _alternatives(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 - any type
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in {Union, UnionType}:
        for one in get_args(annotation):
            yield from _alternatives(one)
    else:
        yield annotation


def _split(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[list[str], list[str]]:
    """Return the path of a setting, and the places in its value that pydantic names after it."""
    path: list[str] = []
    annotation: Any = model
    for part in loc:
        try:
            annotation = _member(annotation, str(part))
        except KeyError:
            if _group(annotation) is not None:  # unknown there
                path.append(str(part))
            break
        path.append(str(part))
    return path, [f"item {part + 1}" for part in loc[len(path) :] if isinstance(part, int)]


def _sentence(words: str, model: type[BaseModel], path: list[str], text: str) -> str:
    """Return a problem with the value, unless it may have a password, and what the setting means."""
    shown = "" if not text or path[0] in _PRIVATE or "@" in text or "?" in text else f" It is {_printable(repr(text))}."
    field = _field(model, path)
    meaning = f" See .env.example: {field.description}." if field is not None and field.description else ""
    return f"{words.rstrip('.')}.{shown}{meaning}"


def _field(model: type[BaseModel], path: list[str]) -> FieldInfo | None:
    try:
        group = _group(_annotation(model, path[:-1]))
    except KeyError:
        return None
    return None if group is None else group.model_fields.get(path[-1])


def _printable(text: str) -> str:
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return text.encode("utf-8", "backslashreplace").decode()
