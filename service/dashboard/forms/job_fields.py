"""The fields of the form of a new job, derived from the options of a submission, and what was typed into them.

An option that is added to `JobSpec` gets its field here without a change.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo

from core.formatting import format_short_duration, parse_duration
from core.jobs.spec.job_spec import CODE_OPTIONS, REDACTED, SECRET_PREFIX, JobSpec
from core.jobs.spec.params import Value, command_params, read_value
from service.dashboard.forms.kinds import KINDS
from service.schemas.jobs import SubmitJob

SHOWN_FIRST = ("name", "project", "container", "tags", "params", "envVars")
"""Options that are always shown, in this order; the others can be unfolded."""
_THEN = ("outputs", "timeLimit", "maxCost", "maxAttempts", "ports")  # the first of the others

_DRAWN_APART = frozenset({"machineType", "command", "workspace", "workspaceSha256", "projectId"}) | CODE_OPTIONS
_LABELS = {"envVars": "Environment variables", "container": "Image", "cpus": "CPUs", "memoryMb": "Memory (MiB)"}
_LABELS |= {"sharedMemMb": "Shared memory (MiB)", "workingDir": "Working folder"}
_LABELS |= {"params": "Parameters", "space": "Values to try", "stop": "Stop trials early", "parallel": "Trials at once"}
_LABELS |= {"onMiss": "For missed times", "onOverlap": "If one is still running", "serial": "One job at a time"}
_LABELS |= {"repeats": "Jobs on each machine type", "stopAfter": "Not before this many values"}
_HINTS = {
    "variables": (
        "one NAME=VALUE per line; NAME=secret:SECRET passes a stored secret; write multi-line values as JSON "
        "strings in double quotes"
    ),
    "params": "one NAME=VALUE per line",
    "space": (
        "one NAME=VALUES per line, such as lr=log:1e-5..1e-1, layers=1..8, opt=adam,sgd or amp=flag; the command gets "
        "them as options in $GRADIENT_ARRAY_VALUE, and as JSON in $GRADIENT_PARAMS"
    ),
    "lines": "one per line",
    "tags": "separated by commas",
    "duration": "such as 90m, 1h30m or 2d",
}
_TAG = re.compile(r'\s*"((?:[^"]|"")+)"\s*(?:[,\n]|$)|([^,\n]+)')
_SPEC_DEFAULTS = {
    (SubmitJob.model_fields[name].alias or name): value
    for name, value in JobSpec(machine_type="", command="true").to_json().items()
    if name in SubmitJob.model_fields
}


@dataclass(frozen=True, slots=True)
class JobField:
    name: str
    kind: str  # text, lines, tags, variables, number, duration, flag, choice or password
    label: str
    help: str  # text below the field
    makes: str  # the kinds of `KINDS` that have it
    choices: tuple[str, ...] = ()  # the first one if the field is empty


def _kind(annotation: str, description: str, *, hidden: bool) -> str:
    if hidden:
        return "password"
    if "Literal" in annotation:
        return "choice"
    if "dict" in annotation:
        return "variables"
    if "bool" in annotation:
        return "flag"
    if "int" in annotation or "float" in annotation:
        return "duration" if "seconds" in description else "number"
    return "lines" if "list" in annotation else "text"


def _create_fields() -> dict[str, JobField]:
    options: dict[str, tuple[FieldInfo, list[str]]] = {}
    for kind_name, made in KINDS.items():
        for attribute, option in made.model.model_fields.items():
            name = option.alias or attribute
            options[name] = (option, [*options.get(name, (option, []))[1], kind_name])
    fields = {}
    for name, (option, makes) in options.items():
        description = option.description or ""
        text = re.sub(r"( from)? \(?GET [^ ):]+\)?", "", description.replace("in seconds", "").rstrip(", "))
        kind = name if name == "tags" else _kind(str(option.annotation), description, hidden=option.repr is False)
        label_words = re.sub(r"(?<!^)(?=[A-Z])", " ", name)
        label = _LABELS.get(name, label_words[0].upper() + label_words[1:].lower())
        text, hint = "" if kind == "variables" else text, _HINTS.get(name, _HINTS.get(kind))
        if type(option.default) in ({int, str} if kind == "text" else {int}) and "default" not in text:
            text += f"; default: {option.default}"
        shown = f"{text[:1].upper()}{text[1:]}{'; ' if text and hint else ''}{hint or ''}."
        first = option.default if isinstance(option.default, str) else "none"
        choices = dict.fromkeys((first, *re.findall(r"'(\w+)'", str(option.annotation)))) if kind == "choice" else ()
        fields[name] = JobField(name, kind, label, shown, " ".join(makes), tuple(choices))
    return fields


FIELDS = _create_fields()  # every option of a submission, by its name in the API
_OF_JOBS = [name for name, field in FIELDS.items() if "job" in field.makes.split()]
USUAL_FIELDS = [FIELDS[name] for name in SHOWN_FIRST]
OTHER_FIELDS = [
    FIELDS[name] for name in dict.fromkeys((*_THEN, *_OF_JOBS)) if name not in _DRAWN_APART | {*SHOWN_FIRST}
]
KIND_FIELDS = [field for name, field in FIELDS.items() if name not in {*_OF_JOBS, "goal"}]  # `metric` has the goal


def describe_spec(spec: JobSpec, project: str) -> dict[str, str]:
    """Return the texts of the fields that stand for a job's options, with its secret values hidden."""
    stored = spec.to_json() | {"env_vars": spec.redacted_env(), "workspace": spec.redacted_workspace()}
    texts = {"project": project}
    for attribute, value in stored.items():
        if attribute not in SubmitJob.model_fields:
            continue
        name = SubmitJob.model_fields[attribute].alias or attribute
        if value is not None and (value != _SPEC_DEFAULTS[name] or name in {"machineType", "command"}):
            texts[name] = _to_text(FIELDS[name].kind, value)
    return texts


def _to_text(kind: str, value: Any) -> str:  # noqa: ANN401 - of any option
    if kind == "flag":
        return "on" if value else ""
    if kind == "variables":
        return "\n".join(
            f"{name}={_quote_lines(text if isinstance(text, str) else json.dumps(text))}"
            for name, text in value.items()
        )
    if kind == "lines":
        return "\n".join(value)
    if kind == "tags":
        return format_tags(value)
    if kind == "duration":
        return format_short_duration(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _quote_lines(value: Value) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    plain = text == text.strip() and "\n" not in text and not text.startswith('"')
    return text if plain else json.dumps(text, ensure_ascii=False)


def format_tags(tags: Iterable[str]) -> str:
    """Return tags as they are typed: in quotation marks if a comma would divide one."""
    return ", ".join(
        '"{}"'.format(tag.replace('"', '""')) if "," in tag or tag.startswith('"') else tag for tag in tags
    )


def parse_tags(text: str) -> list[str]:
    tags = (quoted.replace('""', '"') or plain.strip() for quoted, plain in _TAG.findall(text))
    return list(filter(None, tags))


def parse_fields(texts: Mapping[str, str], makes: str = "job") -> tuple[dict[str, Any], dict[str, str]]:
    """Convert what was typed into the fields of a request for one of `KINDS`.

    Returns the fields that are not empty, by their names in the API; and the errors, by the same names.
    """
    values: dict[str, Any] = {}
    errors = {}
    for name, field in FIELDS.items():
        text = texts.get(name, "")
        if not text.strip() or makes not in field.makes.split():
            continue
        try:
            values[name] = _from_text(field.kind, text)
        except ValueError as error:
            errors[name] = str(error)
        except OverflowError:
            errors[name] = f"{text.strip()[:20]}… is too large."
    return values, errors


def _from_text(kind: str, text: str) -> object:
    if kind in _PARSERS:
        return _PARSERS[kind](text)
    return text if kind == "password" or "\n" in text else text.strip()


def _parse_number(text: str) -> float:
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is not a number.") from None


def _parse_duration(text: str) -> int:
    given = text.replace(" ", "")
    if re.fullmatch(r"\d+", given, re.ASCII):
        return int(given)
    seconds = parse_duration(given)
    if seconds is None:
        raise ValueError(f"{text[:80]!r} is not a duration. Write 90m, 1h30m, 2d, or seconds.")
    return round(seconds)


def _parse_variables(text: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.strip().partition("=")
        if not equals:
            raise ValueError(f"Line {number}: {name[:80]!r} has no value. Write NAME=VALUE.")
        if name in variables:
            raise ValueError(f"Line {number}: {name[:80]} is given twice. Keep one of them.")
        variables[name] = _unquote(value, number)
    return variables


def _unquote(value: str, number: int) -> str:
    if not value.startswith('"'):
        return value
    try:
        text = json.loads(value)
    except ValueError:
        raise ValueError(f"Line {number}: the value begins with a quotation mark but is not a JSON string.") from None
    return str(text)


_PARSERS: Mapping[str, Callable[[str], object]] = {
    "flag": bool,
    "variables": _parse_variables,
    "tags": parse_tags,
    "lines": lambda text: [line.strip() for line in text.split("\n") if line.strip()],
    "duration": lambda text: _parse_duration(text.strip()),
    "number": lambda text: _parse_number(text.strip()),
}


def add_secrets(fields: dict[str, Any], names: list[str]) -> None:
    """Add environment variables that stand for the secrets of the same names."""
    if names:
        fields["envVars"] = {name: SECRET_PREFIX + name for name in names} | fields.get("envVars", {})


def reveal_values(fields: dict[str, Any], original: JobSpec) -> None:
    """Replace values that the form hides by those of the job that the form was filled from."""
    variables = fields.get("envVars", {})
    for name, value in variables.items():
        if value == REDACTED and name in original.env_vars:
            variables[name] = original.env_vars[name]
    if original.workspace is not None and fields.get("workspace") == original.redacted_workspace():
        fields["workspace"] = original.workspace


def find_changes(texts: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    # A form names the digest of an upload only, and files are never the source in the form that a job filled.
    texts = {"source": "none", **texts}
    names = [*(name for name in _OF_JOBS if name != "workspaceSha256"), "source", "workspaceOf"]
    return {name: before.get(name, "") for name in names if texts.get(name, "").strip() != before.get(name, "").strip()}


def find_conflicts(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return what contradicts recorded parameters, by their names: the command, a variable, or what a sweep tries."""
    by_command, variables = command_params(fields.get("command", "")), fields.get("envVars", {})
    conflicts = {}
    for name, text in fields.get("params", {}).items():
        option, variable = name.replace("-", "_"), variables.get(name, text)
        hidden = variable == REDACTED or variable.startswith(SECRET_PREFIX)
        if name in fields.get("space", {}):
            conflicts[name] = "the sweep tries values of it"
        elif by_command.get(option, read_value(text)) != read_value(text):
            conflicts[name] = f"the command says {by_command[option]}"
        elif option not in by_command and not hidden and read_value(variable) != read_value(text):
            conflicts[name] = f"the environment variable says {variable}"
    return conflicts


def without_param(text: str, name: str) -> str:
    return "\n".join(line for line in text.split("\n") if line.partition("=")[0].strip() != name)
