"""Commands of `gradient-cli` that make the same as the form, and project files for its jobs."""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from core.jobs.spec.job_spec import CODE_OPTIONS, REDACTED

_FLAGS = {
    "workingDir": "workingDirectory",
    "tags": "tag",
    "params": "param",
    "space": "param",
    "packages": "with",
    "requirementsFile": "requirements",
    "extras": "extra",
    "groups": "group",
}
"""Options whose flag has another name than in the API."""
_FILED = {"workingDir": "workingDirectory"}  # options that have another name in a project file
_NOT_GIVEN = frozenset({"workspace", "workspaceSha256", "registryPassword"}) | CODE_OPTIONS


def as_command(fields: Mapping[str, Any], command: str = "jobs create") -> str:
    """Return the command of `gradient-cli` that submits a request with these fields.

    Values that the form hides are left to the environment of the command, and a password to its prompt. Uploaded files
    are those of the folder that it is run in.
    """
    if command == "compare create":  # there, one job at a time is the default
        fields = {name: value for name, value in fields.items() if name != "serial"} | (
            {} if fields.get("serial") else {"parallel": True}
        )
    elif "space" in fields:  # a parameter that is not tried is one with a single value
        fields = {**fields, "params": {n: _single(text) for n, text in fields.get("params", {}).items()}}
    lines = [f"gradient-cli {command}", *(_quote(flag, value) for flag, value in _flags(fields))]
    return " \\\n  ".join(lines)


def _flags(fields: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    for name, value in fields.items():
        flag = _FLAGS.get(name, name)
        if name in _NOT_GIVEN:
            continue
        if value is True:
            yield flag, None
        elif isinstance(value, dict):
            yield from ((flag, key if text == REDACTED else f"{key}={text}") for key, text in value.items())
        elif isinstance(value, list):
            yield from ((flag, text) for text in value)
        else:
            yield flag, str(value)
    if "workspaceSha256" not in fields:
        yield "workspace", fields.get("workspace", "none")


def _single(text: str) -> str:
    return f'"{text}"' if "," in text or ".." in text or text.strip() == "flag" else text


def _quote(flag: str, value: str | None) -> str:
    if value is None:
        return f"--{flag}"
    # After a space, a value that begins with a dash would be taken for an option.
    return f"--{flag}={shlex.quote(value)}" if value.startswith("-") else f"--{flag} {shlex.quote(value)}"


def as_project_file(fields: Mapping[str, Any]) -> str:
    lines = []
    for name, value in fields.items():
        if name not in _NOT_GIVEN and not isinstance(value, dict):
            lines.append(f"{_FILED.get(name, name)} = {_toml(value)}")
    if "workspaceSha256" not in fields:
        lines.append(f"workspace = {_toml(fields.get('workspace', 'none'))}")
    for table, values in fields.items():
        if isinstance(values, dict):
            lines += ["", f"[{table}]"]
            lines += [
                f"# {name} is hidden here"
                if text == REDACTED
                else f"{name if name.isidentifier() else _toml(name)} = {_toml(text)}"
                for name, text in values.items()
            ]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
